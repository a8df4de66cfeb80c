package dataplane

import (
	"sync/atomic"
	"time"
)

// hostSweepStep is how many buckets a step looks at: half a megabyte of tags.
const hostSweepStep = 1 << 13

// HostFlows says what is in the flow table of a host.
type HostFlows struct {
	// Capacity is the number of flows that there is room for, ByClass those that the last whole sweep found.
	Capacity uint64
	ByClass  map[FlowClass]uint64
	// Expired counts flows that were taken out since the agent started because their time was over. Others of that kind lose their
	// place to a new flow. Abandoned counts those that were found to be given up by their servers.
	Expired, Abandoned uint64
	// Addresses of DIPs and VIPs that flows may name, and how many there is room for.
	Addresses, AddressCapacity uint64
	SNAT                       HostSNATCounts
}

// HostSNATCounts says what there is of ports for connections that servers open.
type HostSNATCounts struct {
	// Servers have Ports together, of which Used had connections when the table was last swept.
	Servers, Ports, Used uint64
	// Waiting is how many packets the agent was given because there was no port.
	Waiting uint64
	// Short is how many servers use part of their ranges, because the table has no room for all.
	Short uint64
}

// hostSweep is a pass through the flow table, and what the one before found.
type hostSweep struct {
	at      int // next bucket
	counts  [4]uint64
	held    []uint32 // trusted flows by the number of their VIP
	aliases uint64
	snat    snatSweep
	// Addresses that were leaving when the pass began, and those of them that flows name.
	leaving, named map[uint32]bool

	last               HostFlows
	expired, abandoned uint64
	// over are the VIPs that are marked, pressed is whether a quarter of the places that the last step saw had trusted flows; guarded by Host.mu.
	over    []Share
	pressed bool
}

// SweepStep implements HostTables.
func (h *Host) SweepStep() error {
	h.sweeping.Lock()
	defer h.sweeping.Unlock()
	if h.flows == nil {
		return nil
	}
	h.sweepStep(h.now())
	return h.snat.release()
}

// sweepStep is a step at a time of CLOCK_MONOTONIC.
func (h *Host) sweepStep(now time.Duration) {
	s, t := &h.sweep, h.flows
	if s.at == 0 {
		h.beginSweep()
	}
	end := min(s.at+hostSweepStep, len(t.tags))
	before, places := s.counts[FlowTrusted], uint64(end-s.at)*uint64(flowWays)
	s.chunk(t, h.snat, &h.connections, s.at, end, tagTick(now))
	h.mu.Lock()
	s.pressed = s.counts[FlowTrusted]-before >= places/4
	h.mu.Unlock()
	if s.at = end; end < len(t.tags) {
		return
	}
	h.endSweep()
}

func (h *Host) beginSweep() {
	s, t := &h.sweep, h.flows
	s.counts, s.aliases = [4]uint64{}, 0
	if s.held == nil {
		s.held = make([]uint32, len(t.addrs.cells))
	}
	clear(s.held)
	s.leaving, s.named, s.snat = map[uint32]bool{}, map[uint32]bool{}, h.snat.beginSweep()
	h.mu.Lock()
	h.connections.begin(h.state.plans)
	for n := range t.addrs.leaving {
		s.leaving[n] = true
	}
	h.mu.Unlock()
	// Aliases that come from here on make it 1 again.
	atomic.CompareAndSwapUint64(&t.setup.Aliases, 1, 2)
}

// chunk takes out what is over, doubts flows that their servers gave up, and counts the rest. Records are looked at only when what they name matters, and for connections.
func (s *hostSweep) chunk(t *flowTable, leases *snatTables, c *connections, from, to int, tick uint64) {
	look := len(s.leaving) > 0 || load(&t.setup.Aliases) != 0 || s.snat.look
	for b := from; b < to; b++ {
		for way := range flowWays {
			word := &t.tags[b].Tags[way]
			tag := flowTag(load(word))
			if tag.class() == 0 {
				continue
			}
			r := &t.records[b*flowWays+way]
			connection := tag.class() == FlowTrusted && tag&tagBusy == 0 && t.owns(r)
			if !tag.live(tick) {
				binding := r.Binding
				if atomic.CompareAndSwapUint64(word, uint64(tag), 0) {
					s.expired++
					if connection {
						c.gone(binding)
					}
				}
				continue
			}
			if connection && t.abandoned(r, tick) {
				binding := r.Binding
				if next, done := t.doubt(word, tag); done {
					s.abandoned++
					c.gone(binding)
					tag, connection = next, false
				}
			}
			if connection {
				c.met(r.Binding)
			}
			if !look {
				s.count(tag, r)
				continue
			}
			switch r.Kind {
			case uint8(hostFlowKindFLOW_ALIAS):
				s.aliases++
			case uint8(hostFlowKindFLOW_SNAT), uint8(hostFlowKindFLOW_BACK):
				if tag&tagBusy == 0 && !s.snat.flow(leases, word, tag, r, tick) {
					s.expired++
					continue
				}
			}
			s.count(tag, r)
			for _, n := range [2]uint32{r.Dip, r.Vip} {
				if s.leaving[n] {
					s.named[n] = true
				}
			}
		}
	}
}

// count counts a live flow.
func (s *hostSweep) count(tag flowTag, r *hostFlowRecord) {
	s.counts[tag.class()]++
	if tag.class() == FlowTrusted && tag&tagBusy == 0 {
		s.held[r.vip()]++
	}
}

func (h *Host) endSweep() {
	s, t := &h.sweep, h.flows
	s.at = 0
	if s.aliases == 0 {
		atomic.CompareAndSwapUint64(&t.setup.Aliases, 2, 0)
	}
	h.snat.endSweep(&s.snat)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.shareLocked()
	t.addrs.swept(s.leaving, s.named)
	h.connections.end()
	s.last.ByClass = map[FlowClass]uint64{FlowUntrusted: s.counts[FlowUntrusted], FlowTrusted: s.counts[FlowTrusted], FlowClosing: s.counts[FlowClosing]}
	s.last.Expired, s.last.Abandoned = s.expired, s.abandoned
}

// flowTotalsLocked is what the last whole sweep found.
func (h *Host) flowTotalsLocked() HostFlows {
	out := h.sweep.last
	out.Capacity = uint64(len(h.flows.records))
	out.Addresses, out.AddressCapacity = uint64(len(h.flows.addrs.numbers)), uint64(len(h.flows.addrs.cells)-1)
	out.SNAT = h.snat.counts()
	return out
}
