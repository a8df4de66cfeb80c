package dataplane

import (
	"sync/atomic"

	loads "github.com/shuntlb/shunt/internal/load"
	"github.com/shuntlb/shunt/internal/plan"
)

// connections are the established flows of clients, by the index of their binding's counter. Programs count those that begin and end, the
// sweep those that it takes out, and now and then all there are.
type connections struct {
	counts []hostFlowCount // of the programs
	// expired are those that sweeps took out, atomic.
	expired []uint64
	// found are those that the present sweep met; the sweep's.
	found []uint32

	// The rest is guarded by Host.mu.
	tallies []loads.Tally
	// began are the counts of bindings that were there when the present sweep began, without what sweeps took out.
	began map[uint32]flowCounts
}

// flowCounts are how many established flows of a binding began and ended.
type flowCounts struct{ began, ended uint64 }

func newConnections(counts []hostFlowCount) connections {
	return connections{
		counts: counts, expired: make([]uint64, len(counts)), found: make([]uint32, len(counts)), tallies: make([]loads.Tally, len(counts)),
	}
}

// of are the counts of an index.
func (c *connections) of(index uint32) flowCounts {
	n := c.ofPrograms(index)
	n.ended += load(&c.expired[index])
	return n
}

// ofPrograms are its counts without what sweeps took out.
func (c *connections) ofPrograms(index uint32) flowCounts {
	return flowCounts{load(&c.counts[index].Opened), load(&c.counts[index].Closed)}
}

// fresh makes an index that of a binding without connections.
func (c *connections) fresh(index uint32) {
	n := c.of(index)
	c.tallies[index].None(n.began, n.ended)
	delete(c.began, index)
}

// begin starts a count of all.
func (c *connections) begin(plans []plannedBinding) {
	c.began = make(map[uint32]flowCounts, len(plans))
	for i := range plans {
		index := plans[i].index
		c.began[index] = c.ofPrograms(index)
		c.found[index] = 0
	}
}

// end takes in what the count found. What the sweep took out itself it did not find: as if it had gone before.
func (c *connections) end() {
	for index, was := range c.began {
		is := c.of(index)
		was.ended += load(&c.expired[index])
		c.tallies[index].Counted(uint64(c.found[index]), was.began, was.ended, is.began, is.ended)
	}
}

// met counts an established flow that a sweep met, gone one that it took out.
func (c *connections) met(binding uint16)  { c.found[binding]++ }
func (c *connections) gone(binding uint16) { atomic.AddUint64(&c.expired[binding], 1) }

// adopt counts the flows that are there when the agent starts: all at once, for no schedule should begin with wrong figures.
func (c *connections) adopt(t *flowTable, tick uint64) {
	began := make([]flowCounts, len(c.counts))
	for index := range began {
		began[index] = c.of(uint32(index))
	}
	t.all(tick, func(tag flowTag, r *hostFlowRecord) {
		if tag.class() == FlowTrusted && t.owns(r) {
			c.met(r.Binding)
		}
	})
	for index, was := range began {
		is := c.of(uint32(index))
		c.tallies[index].Counted(uint64(c.found[index]), was.began, was.ended, is.began, is.ended)
	}
}

// owns tells whether a record is of a flow that a client began, and of the server that its binding leads to: it may have been another's before.
func (t *flowTable) owns(r *hostFlowRecord) bool {
	inbound := r.Kind == uint8(hostFlowKindFLOW_INBOUND) || r.Kind == uint8(hostFlowKindFLOW_HAIRPIN)
	return inbound && t.binding[r.Binding].Dip == r.Dip
}

// Connections implements HostTables.
func (h *Host) Connections(each func(b *plan.Binding, established, opened uint64)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.flows == nil {
		return
	}
	for i := range h.state.plans {
		p := &h.state.plans[i]
		if !p.Rewrite {
			continue
		}
		n := h.connections.of(p.index)
		if now, known := h.connections.tallies[p.index].Now(n.began, n.ended); known {
			each(&p.Binding, now, n.began)
		}
	}
}
