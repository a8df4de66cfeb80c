package dataplane

import (
	"fmt"
	"sync/atomic"
)

// sweepChunk is the number of buckets that a sweep goes through while it holds the tables: about half a millisecond.
const sweepChunk = 1 << 13

// sweep is one pass through the flow table.
type sweep struct {
	t      *muxTables
	totals FlowTotals
	counts []uint32 // flows by member word
	held   []uint64 // entries by index of the endpoint
	// What was given up before the pass began, and is free after it.
	limbo []block
	moved []move
}

// move is a move of an endpoint's members: the how manieth it was.
type move struct {
	e *muxEntry
	n int
}

// newSweep begins a pass. It does not end the moves of the endpoints in but.
func (t *muxTables) newSweep(but map[*muxEntry]bool) *sweep {
	s := &sweep{t: t, limbo: t.limbo, counts: make([]uint32, len(t.mem.members)), held: make([]uint64, t.mem.endpointCounts.size)}
	t.limbo = nil
	t.sweeps++
	for _, e := range t.entries {
		if e.ripe && !but[e] {
			s.moved = append(s.moved, move{e, e.moves})
		}
	}
	s.totals.ByClass = make(map[FlowClass]uint64)
	s.totals.Capacity = uint64(len(t.mem.flows)) * uint64(muxLimitLIMIT_FLOW_BUCKET)
	return s
}

// chunk goes through some buckets. Without a clock nothing expires.
func (s *sweep) chunk(from int, tick uint64, clock bool) {
	t := s.t
	var classes [4]uint64
	for i := range t.mem.flows[from:min(from+sweepChunk, len(t.mem.flows))] {
		bucket := &t.mem.flows[from+i]
		for j := range bucket.Entries {
			word := &bucket.Entries[j]
			w := flowWord(load(word))
			if w.class() == 0 {
				continue
			}
			e := t.owners[w.member()/memberBlockMin]
			switch {
			case e == nil:
				atomic.CompareAndSwapUint64(word, uint64(w), 0)
				continue
			case clock && w.idleFor(tick) > t.idle(e, w):
				if atomic.CompareAndSwapUint64(word, uint64(w), 0) {
					s.totals.Expired++
				}
				continue
			}
			// Flows of ids that are not in use now move too: they may be in use again.
			id := w.member() - e.block.first
			if old := w.member() - e.moved.first; id >= e.block.words && old < e.moved.words {
				atomic.CompareAndSwapUint64(word, uint64(w), uint64(w.withMember(e.block.first+old)))
				id = old
			}
			// What remembers a client is no flow that a draining member waits for.
			if id < uint32(e.count) && !e.isClient(w) {
				s.counts[e.block.first+id]++
			}
			classes[w.class()]++
			s.held[e.index]++
		}
	}
	for class, n := range classes {
		if n > 0 {
			s.totals.ByClass[FlowClass(class)] += n
		}
	}
}

// end frees what no flow names any more.
func (s *sweep) end() {
	t := s.t
	for _, b := range s.limbo {
		t.members.free(b)
	}
	for _, m := range s.moved {
		e := m.e
		if !e.ripe || e.moves != m.n {
			continue // it moved again meanwhile, or is gone
		}
		e.policy &^= endpointMoved
		store(&t.mem.slots[e.slot].Policy, e.policy)
		if e.extra != 0 {
			store(&t.mem.extras[e.extra-1].MembersBefore, 0)
		}
		t.own(e.moved, nil)
		t.members.free(e.moved)
		e.moved, e.ripe = block{}, false
	}
}

// sweepNow is a whole pass without a clock: it frees member words that were given up.
func (t *muxTables) sweepNow() { t.sweepBut(nil) }

// sweepBut is sweepNow for the time when a change is being staged that says what it knows of the moves of these endpoints.
func (t *muxTables) sweepBut(but map[*muxEntry]bool) {
	s := t.newSweep(but)
	for from := 0; from < len(t.mem.flows); from += sweepChunk {
		s.chunk(from, 0, false)
	}
	s.end()
}

// Sweep implements MuxTables.
func (m *Mux) Sweep() (FlowTotals, error) {
	m.sweeping.Lock()
	defer m.sweeping.Unlock()
	m.mu.Lock()
	s := m.tables.newSweep(nil)
	m.mu.Unlock()
	for from := 0; from < len(m.memory.flows); from += sweepChunk {
		tick, err := m.now()
		if err != nil {
			m.mu.Lock()
			m.tables.limbo = append(m.tables.limbo, s.limbo...)
			m.mu.Unlock()
			return FlowTotals{}, fmt.Errorf("sweep the flow table: %w", err)
		}
		m.mu.Lock()
		s.chunk(from, tick, true)
		m.mu.Unlock()
	}
	nat, err := m.sweepSessions()
	if err != nil {
		return FlowTotals{}, err
	}
	err = m.sweepConnections()
	m.mu.Lock()
	defer m.mu.Unlock()
	s.end()
	s.totals.Over = m.tables.share(s.held, nat.held, nat.waiting, s.totals.Capacity)
	s.totals.Members = nat.members
	m.flowsUsed = 0
	for _, n := range s.totals.ByClass {
		m.flowsUsed += n
	}
	m.natUsed = 0
	for class, n := range nat.byClass {
		m.natUsed += n
		s.totals.ByClass[class] += n
	}
	s.totals.Expired += nat.expired
	for key, e := range m.tables.entries {
		for id := range e.members.all() {
			if n := s.counts[e.block.first+uint32(id)]; n > 0 {
				s.totals.Members[MemberKey{key, id}] += uint64(n)
			}
		}
	}
	s.totals.Pressed = m.flowsUsed > s.totals.Capacity/4 || m.natUsed > uint64(m.memory.natRoom)/4
	return s.totals, err
}
