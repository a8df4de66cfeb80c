package dataplane

import (
	"iter"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/shuntlb/shunt/internal/lb"
)

// counterRegions is the number of regions of counter tables: one for each possible CPU, the last the agent's own.
func counterRegions() int { return ebpf.MustPossibleCPU() + 1 }

// regions is a table of counters: element i of region r is cells[r*size+i].
type regions[T any] struct {
	cells []T
	size  uint32
}

// of yields element i of every region.
func (r regions[T]) of(i uint32) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for at := int(i); at < len(r.cells); at += int(r.size) {
			if !yield(&r.cells[at]) {
				return
			}
		}
	}
}

// clear zeroes element i. No program may be counting in it.
func (r regions[T]) clear(i uint32) {
	var zero T
	for cell := range r.of(i) {
		*cell = zero
	}
}

// own is element i of the agent's region.
func (r regions[T]) own(i uint32) *T { return &r.cells[len(r.cells)-int(r.size)+int(i)] }

// sumOf adds up element i of a table of packet counters.
func sumOf(r regions[muxCounter], i uint32) (sum Counter) {
	for cell := range r.of(i) {
		sum.Packets += load(&cell.Packets)
		sum.Bytes += load(&cell.Bytes)
	}
	return sum
}

// countedOf is sumOf without the agent's own region: what programs counted, without what the agent folded or took over.
func countedOf(r regions[muxCounter], i uint32) Counter {
	sum, own := sumOf(r, i), r.own(i)
	return Counter{Packets: sum.Packets - load(&own.Packets), Bytes: sum.Bytes - load(&own.Bytes)}
}

// fold adds what element `from` counted to the agent's part of `to`, and clears it. No program may be counting in `from`.
func fold(from regions[muxCounter], i uint32, to regions[muxCounter], j uint32) {
	sum, own := sumOf(from, i), to.own(j)
	own.Packets += sum.Packets
	own.Bytes += sum.Bytes
	from.clear(i)
}

// countBatch is the number of endpoints whose counters are read while the tables are held: of 20,000 endpoints the reading
// takes some tenths of a second, and health must not wait for it.
const countBatch = 128

// Counters implements MuxTables.
func (m *Mux) Counters() (MuxCounters, error) {
	c, keys, err := m.countReasons()
	for batch := range slices.Chunk(keys, countBatch) {
		m.mu.Lock()
		for _, key := range batch {
			if e := m.tables.entries[key]; e != nil {
				m.tables.count(key, e, c)
			}
		}
		m.mu.Unlock()
	}
	return c, err
}

// countReasons begins Counters: it tells of which endpoints the counters are to be read yet.
func (m *Mux) countReasons() (c MuxCounters, keys []lb.EndpointKey, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.former != nil {
		c, err = m.former.count()
		return c, nil, err
	}
	c = noCounters()
	for i, r := range MuxReasons().All {
		for cell := range m.memory.reasons.of(uint32(i)) {
			c.Reasons[r.Name] += load(cell)
		}
	}
	for vip := range m.tables.snat.byVIP {
		if e := m.tables.entries[vip]; e != nil {
			c.Answers[vip] = sumOf(m.memory.endpointCounts, e.index)
		}
	}
	keys = make([]lb.EndpointKey, 0, len(m.tables.entries))
	for key := range m.tables.entries {
		if key.Protocol != 0 {
			keys = append(keys, key)
		}
	}
	return c, keys, nil
}

// count adds the counters of an endpoint and of its members to c.
func (t *muxTables) count(key lb.EndpointKey, e *muxEntry, c MuxCounters) {
	total := sumOf(t.mem.endpointCounts, e.index)
	add := func(i uint32) Counter {
		n := sumOf(t.mem.memberCounts, i)
		total.Packets += n.Packets
		total.Bytes += n.Bytes
		return n
	}
	for id := range e.members.all() {
		n := add(e.block.first + uint32(id))
		if uint32(id) < e.before.words {
			was := add(e.before.first + uint32(id))
			n.Packets += was.Packets
			n.Bytes += was.Bytes
		}
		c.Members[MemberKey{key, id}] = n
	}
	for _, i := range e.leaving {
		add(i)
		if id := i - e.block.first; id < e.before.words {
			add(e.before.first + id)
		}
	}
	c.Endpoints[key] = total
	if refused := countedOf(t.mem.endpointCounts, e.index); refused.Packets > 0 {
		c.Refused[key] = refused
	}
}
