package dataplane

import (
	"errors"
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

// stageRings gives the endpoint new rings where its present ones differ.
func (c *change) stageRings(e *muxEntry, w MuxEndpoint) error {
	t := c.t
	if w.KeepRings && e.adopted {
		return errors.New("rings: to be kept, but none was applied")
	}
	next, backup := e.rings, e.backup
	if e.adopted {
		// Which of the two the only one known is, it says itself.
		if len(w.BackupRing) > 0 && t.ringIs(e.rings[0], w.BackupCode, w.BackupRing) && !t.ringIs(e.rings[0], w.RingCode, w.Ring) {
			next, backup = [2]ringRef{1: e.rings[0]}, true
		}
		c.rings = append(c.rings, func() { e.adopted = false })
	}
	if e.rings[1].words == 0 && !backup {
		backup = w.UseBackup
	}
	for i, want := range [2][]uint16{w.Ring, w.BackupRing} {
		if w.KeepRings {
			break
		}
		var err error
		if next[i], err = c.stageRing(next[i], [2]uint8{w.RingCode, w.BackupCode}[i], want); err != nil {
			return err
		}
	}
	if next != e.rings || backup != e.backup || w.hashKey() != e.hashKey {
		c.rings = append(c.rings, func() {
			e.rings, e.backup, e.hashKey = next, backup, w.hashKey()
			store(&t.mem.slots[e.slot].Ring, ringWord(e.active(), e.hashKey))
		})
	}
	return nil
}

// ringIs compares a ring in the table with member ids.
func (t *muxTables) ringIs(r ringRef, code uint8, ring []uint16) bool {
	if len(ring) == 0 || r.words == 0 {
		return len(ring) == 0 && r.words == 0
	}
	return r.code == code && slices.Equal(t.slots16(r.block), ring)
}

// stageRing returns the present ring when it is the wanted one, else writes another: beside the present one, or in its place
// where the table never has room for both. Packets may meet slots of both meanwhile, whose members all are there.
func (c *change) stageRing(old ringRef, code uint8, ring []uint16) (ringRef, error) {
	t := c.t
	if t.ringIs(old, code, ring) {
		return old, nil
	}
	next, ok := block{}, true
	if len(ring) > 0 {
		next, ok = t.rings.alloc(uint32(len(ring) / slotsPerWord))
	}
	if !ok && old.words > 0 && old.code == code && !c.crowded {
		c.rings = append(c.rings, func() { packRing(t.mem.rings[old.first:old.first+old.words], ring) })
		return old, nil
	}
	if old.words > 0 {
		c.released = append(c.released, func() { t.rings.free(old.block) })
	}
	if len(ring) == 0 {
		return ringRef{}, nil
	}
	if !ok {
		return ringRef{}, noRoom(TableRings, "rings: no room for %d slots: %d slots in all (--ring-slots)", len(ring), len(t.mem.rings)*slotsPerWord)
	}
	c.undos = append(c.undos, func() { t.rings.free(next) })
	copy(t.slots16(next), ring)
	return ringRef{next, code}, nil
}
