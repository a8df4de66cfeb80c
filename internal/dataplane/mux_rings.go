package dataplane

import (
	"fmt"
	"slices"

	"github.com/shuntlb/shunt/internal/lb"
)

// slots16 are the member ids in a block of ring words.
func (t *muxTables) slots16(b block) []uint16 {
	return slotsOf(t.mem.rings[b.first : b.first+b.words])
}

// Rings implements MuxTables.
func (m *Mux) Rings(key lb.EndpointKey) (ring, backup []uint16) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.tables.entries[key]
	if e == nil || e.adopted {
		return nil, nil
	}
	return append(ring, m.tables.slots16(e.rings[0].block)...), append(backup, m.tables.slots16(e.rings[1].block)...)
}

// Rings implements MuxTables.
func (f *FakeMux) Rings(key lb.EndpointKey) (ring, backup []uint16) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state.Rings(key)
}

// Rings are the rings of an endpoint.
func (s MuxState) Rings(key lb.EndpointKey) (ring, backup []uint16) {
	for _, e := range s.Endpoints {
		if e.Key == key {
			return e.Ring, e.BackupRing
		}
	}
	return nil, nil
}

// WithRings is the state with the rings that it keeps, from the state before.
func (s MuxState) WithRings(before MuxState) (MuxState, error) {
	s.Endpoints = slices.Clone(s.Endpoints)
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if !e.KeepRings {
			continue
		}
		at := slices.IndexFunc(before.Endpoints, func(b MuxEndpoint) bool { return b.Key == e.Key })
		if at < 0 {
			return MuxState{}, fmt.Errorf("endpoint %v: rings: to be kept, but none was applied", e.Key)
		}
		e.KeepRings, e.Ring, e.BackupRing = false, before.Endpoints[at].Ring, before.Endpoints[at].BackupRing
	}
	return s, nil
}
