package dataplane

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"github.com/shuntlb/shunt/internal/lb"
)

// flowWord is a flow entry (bpf/abi.h, enum flow_bit).
type flowWord uint64

func (w flowWord) class() FlowClass { return FlowClass(w >> muxFlowBitFLOW_CLASS_SHIFT & 3) }

// member is the index of the flow's member word.
func (w flowWord) member() uint32 {
	const bits = muxFlowBitFLOW_FINGERPRINT_SHIFT - muxFlowBitFLOW_MEMBER_SHIFT
	return uint32(w>>muxFlowBitFLOW_MEMBER_SHIFT) & (1<<bits - 1)
}

// withMember is the same flow with another member word.
func (w flowWord) withMember(index uint32) flowWord {
	return w&^(flowWord(w.member())<<muxFlowBitFLOW_MEMBER_SHIFT) | flowWord(index)<<muxFlowBitFLOW_MEMBER_SHIFT
}

// age is the number of ticks since the flow was refreshed: flow_age of bpf/lib/flow.h.
func (w flowWord) age(tick uint64) uint64 {
	age := (tick - uint64(w)) & 0xffff
	if age == 0xffff {
		return 0
	}
	return age
}

// clockLate is how many ticks the time of who reads the flow table may be old: it waits for the tables, and for a CPU, while
// the programs go on.
const clockLate = 1 << 8

// idleFor is age for a tick that was read a while ago.
func (w flowWord) idleFor(tick uint64) uint64 {
	if age := (tick - uint64(w)) & 0xffff; age < 1<<16-clockLate {
		return age
	}
	return 0
}

// now is the present tick of flow stamps.
func (m *Mux) now() (uint64, error) {
	if _, err := m.objects.ReadClock.Run(&ebpf.RunOptions{}); err != nil {
		return 0, fmt.Errorf("read the programs' clock: %w", err)
	}
	var jiffies uint64
	if err := m.objects.ClockJiffies.Get(&jiffies); err != nil {
		return 0, fmt.Errorf("read the programs' clock: %w", err)
	}
	return jiffies >> m.tickShift, nil
}

// SetBackup implements MuxTables.
func (m *Mux) SetBackup(use map[lb.EndpointKey]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, on := range use {
		e, ok := m.tables.entries[key]
		if !ok || e.backup == on {
			continue
		}
		e.backup = on
		store(&m.tables.mem.slots[e.slot].Ring, ringWord(e.active(), e.hashKey))
	}
}

// flowList collects the flows of endpoints, up to a number in all.
type flowList struct {
	of    []lb.EndpointKey
	flows [][]Flow
	left  int
}

// add appends a flow to those of the endpoint at index i, unless the list is full.
func (l *flowList) add(i int, f Flow) {
	if l.left > 0 {
		l.flows[i] = append(l.flows[i], f)
		l.left--
	}
}

// Flows implements MuxTables.
func (m *Mux) Flows(ctx context.Context, of []lb.EndpointKey, most int) ([][]Flow, error) {
	tick, err := m.now()
	if err != nil {
		return nil, fmt.Errorf("list flows: %w", err)
	}
	l := &flowList{of, make([][]Flow, len(of)), most}
	if err := m.sessionsOf(ctx, l, tick); err != nil {
		return nil, fmt.Errorf("list flows: %w", err)
	}
	if err := m.connectionsOf(ctx, l, tick); err != nil {
		return nil, fmt.Errorf("list flows: %w", err)
	}
	for from := 0; from < len(m.memory.flows) && l.left > 0; from += sweepChunk {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("list flows: %w", err)
		}
		if err := m.flowsOf(l, from, tick); err != nil {
			return nil, fmt.Errorf("list flows: %w", err)
		}
	}
	return l.flows, nil
}

// memberRange is a range of member words of one of the listed endpoints.
type memberRange struct {
	first, end uint32
	entry      *muxEntry
	i          int // in flowList.of
}

// rangesLocked are the member words of the listed endpoints, in ascending order.
func (m *Mux) rangesLocked(l *flowList) ([]memberRange, error) {
	var out []memberRange
	for i, key := range l.of {
		e := m.tables.entries[key]
		if e == nil {
			return nil, fmt.Errorf("endpoint %v: not found", key)
		}
		count := uint32(e.count)
		out = append(out, memberRange{e.block.first, e.block.first + count, e, i})
		if words := min(count, e.moved.words); words > 0 {
			out = append(out, memberRange{e.moved.first, e.moved.first + words, e, i})
		}
	}
	slices.SortFunc(out, func(a, b memberRange) int { return cmp.Compare(a.first, b.first) })
	return out, nil
}

// flowsOf lists the live flows of endpoints in a chunk of buckets. It holds m.mu for the chunk only.
func (m *Mux) flowsOf(l *flowList, from int, tick uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	ranges, err := m.rangesLocked(l)
	if err != nil {
		return err
	}
	t := m.tables
	for i := range t.mem.flows[from:min(from+sweepChunk, len(t.mem.flows))] {
		for j := range t.mem.flows[from+i].Entries {
			w := flowWord(load(&t.mem.flows[from+i].Entries[j]))
			if w.class() == 0 {
				continue
			}
			at, found := slices.BinarySearchFunc(ranges, w.member(), func(r memberRange, word uint32) int { return cmp.Compare(r.first, word) })
			if !found {
				at--
			}
			if at < 0 || w.member() >= ranges[at].end {
				continue
			}
			if e := ranges[at].entry; w.idleFor(tick) <= t.idle(e, w) {
				index, _ := t.memberOf(e, w.member())
				l.add(ranges[at].i, t.flow(e, w, index, tick))
			}
		}
	}
	return nil
}

// flow is an entry of an endpoint's flow to member id, as Flows lists it.
func (t *muxTables) flow(e *muxEntry, w flowWord, id uint32, tick uint64) Flow {
	age := w.idleFor(tick)
	if e.extra != 0 && w.class() == FlowUntrusted && !e.isClient(w) {
		age -= min(age, uint64(t.mem.extras[e.extra-1].UntrustedAge))
	}
	return Flow{
		Member: uint16(id), Class: w.class(), Age: time.Duration(age) * t.tick,
		Source: e.isClient(w),
	}
}

// memberOf is the member id that a word of an endpoint stands for, by its present or its last place.
func (t *muxTables) memberOf(e *muxEntry, word uint32) (id uint32, ok bool) {
	if id = word - e.block.first; id < uint32(e.count) {
		return id, true
	}
	id = word - e.moved.first
	return id, id < e.moved.words && id < uint32(e.count)
}

// Pressure implements MuxTables.
func (m *Mux) Pressure() []TablePressure {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.tables
	return []TablePressure{
		{TableEndpoints, uint64(t.endpoints.n), uint64(len(t.endpoints.used))},
		{TableMembers, uint64(t.members.used), uint64(len(t.mem.members))},
		{TableBackends, uint64(t.backends.n), uint64(len(t.mem.backends))},
		{TableRings, uint64(t.rings.used) * slotsPerWord, uint64(len(t.mem.rings)) * slotsPerWord},
		{"flows", m.flowsUsed, uint64(len(t.mem.flows)) * uint64(muxLimitLIMIT_FLOW_BUCKET)},
		{TableSources, t.guards.sources.used(), uint64(len(t.mem.sourceWords))},
		{TableSourceLists, uint64(t.guards.sources.indices.n), uint64(len(t.mem.sourceLists))},
		{TableRanges, uint64(t.ports.used), uint64(len(t.mem.portRanges))},
		{"devices", uint64(len(t.hops.devices)), uint64(len(t.mem.devices))},
		{TableCookies, uint64(t.cookies.indices.n), uint64(len(t.mem.cookieSets))},
		{TableConnections, m.connections.used, uint64(len(m.connections.records))},
		{TableSNAT, uint64(len(t.snat.byVIP)), uint64(t.snat.room())},
		{TableNAT, m.natUsed, uint64(t.mem.natRoom)},
		{TableQUIC, uint64(t.quic.endpoints), uint64(t.quic.room())},
	}
}
