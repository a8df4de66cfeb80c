package dataplane

import (
	"fmt"
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
		store(&m.tables.mem.slots[e.slot].Ring, ringWord(e.active(), e.keySlot))
	}
}

// Flows implements MuxTables.
func (m *Mux) Flows(key lb.EndpointKey, most int) ([]Flow, error) {
	tick, err := m.now()
	if err != nil {
		return nil, fmt.Errorf("list flows: %w", err)
	}
	flows, err := m.sessionsOf(key, most, tick)
	if err != nil {
		return nil, fmt.Errorf("list flows: %w", err)
	}
	flows = m.connectionsOf(key, most, tick, flows)
	for from := 0; from < len(m.memory.flows) && len(flows) < most; from += sweepChunk {
		m.mu.Lock()
		e, ok := m.tables.entries[key]
		if !ok {
			m.mu.Unlock()
			return nil, fmt.Errorf("list flows: endpoint %v: not found", key)
		}
		flows = m.tables.flowsOf(e, from, tick, flows)
		m.mu.Unlock()
	}
	return flows[:min(len(flows), most)], nil
}

// flowsOf appends the live flows of an endpoint in a chunk of buckets.
func (t *muxTables) flowsOf(e *muxEntry, from int, tick uint64, flows []Flow) []Flow {
	for i := range t.mem.flows[from:min(from+sweepChunk, len(t.mem.flows))] {
		for j := range t.mem.flows[from+i].Entries {
			w := flowWord(load(&t.mem.flows[from+i].Entries[j]))
			index, mine := t.memberOf(e, w.member())
			if w.class() == 0 || !mine || w.idleFor(tick) > t.idle(e, w) {
				continue
			}
			flows = append(flows, t.flow(e, w, index, tick))
		}
	}
	return flows
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
		{"endpoints", uint64(t.endpoints.n), uint64(len(t.endpoints.used))},
		{"members", uint64(t.members.used), uint64(len(t.mem.members))},
		{"backends", uint64(t.backends.n), uint64(len(t.mem.backends))},
		{"rings", uint64(t.rings.used) * slotsPerWord, uint64(len(t.mem.rings)) * slotsPerWord},
		{"flows", m.flowsUsed, uint64(len(t.mem.flows)) * uint64(muxLimitLIMIT_FLOW_BUCKET)},
		{"sources", t.guards.sources.used(), uint64(len(t.mem.sourceWords))},
		{"devices", uint64(len(t.hops.devices)), uint64(len(t.mem.devices))},
		{"cookie_sets", uint64(t.cookies.indices.n), uint64(len(t.mem.cookieSets))},
		{"connections", m.connections.used, uint64(len(m.connections.records))},
		{"snat_vips", uint64(len(t.snat.byVIP)), uint64(t.snat.room())},
		{"nat_sessions", m.natUsed, uint64(t.mem.natRoom)},
		{"quic_endpoints", uint64(t.quic.endpoints), uint64(t.quic.room())},
	}
}
