package dataplane

import (
	"encoding/binary"
	"fmt"
	"math"
)

// stageMembers brings the member words of an endpoint to their wanted state. Words of members that stay keep their
// alive bit; words that are not published yet are written at once.
func (c *change) stageMembers(e *muxEntry, wanted []MuxMember) error {
	t, count := c.t, 0
	for _, m := range wanted {
		count = max(count, int(m.ID)+1)
	}
	old, oldCount := e.block, e.count
	next := old
	if uint32(count) > old.words {
		var err error
		if next, err = c.moveMembers(old, oldCount, uint32(count)); err != nil {
			return err
		}
	}
	// Between the publication of the members and that of the ring, readers may need the old ids too.
	between := max(count, oldCount)
	if next.words > 0 {
		clear(t.mem.members[next.first+uint32(oldCount) : next.first+next.words])
	}
	kept := make(map[uint16]bool, len(wanted))
	for _, m := range sortedIDs(wanted) {
		kept[m.ID] = true
		if err := c.stageMember(e, next, m); err != nil {
			return fmt.Errorf("member %d: %w", m.ID, err)
		}
	}
	if next != old || between != oldCount {
		c.members = append(c.members, func() {
			e.block, e.count = next, between
			store(&t.mem.endpoints[e.index].Members, membersWord(next, between))
		})
	}
	c.removeMembers(e, kept, count)
	if next != old && old.words > 0 {
		c.released = append(c.released, func() { t.members.free(old) })
	}
	return nil
}

// moveMembers makes a larger block that begins as a copy of the old one.
func (c *change) moveMembers(old block, oldCount int, count uint32) (block, error) {
	t := c.t
	next, ok := t.members.alloc(count)
	if !ok {
		return block{}, fmt.Errorf("members: no room for %d more: %d in all", count, len(t.mem.members))
	}
	c.undos = append(c.undos, func() { t.members.free(next) })
	if err := t.copyCounters(old, next, oldCount); err != nil {
		return block{}, err
	}
	c.members = append(c.members, func() {
		// As late as possible: health may have flipped bits since.
		for i := range uint32(oldCount) {
			store(&t.mem.members[next.first+i], load(&t.mem.members[old.first+i]))
		}
	})
	return next, nil
}

// stageMember plans the word of one member in the endpoint's block `in`.
func (c *change) stageMember(e *muxEntry, in block, m MuxMember) error {
	t, word := c.t, &c.t.mem.members[in.first+uint32(m.ID)]
	present := e.members[m.ID]
	if present == nil {
		if err := clearCounter(t.maps.MemberCounts, t.dirtyMembers, in.first+uint32(m.ID)); err != nil {
			return err
		}
	}
	backend := present
	if present == nil || present.backendKey != m.backendKey() {
		var err error
		if backend, err = c.backend(m.backendKey()); err != nil {
			return err
		}
	}
	c.members = append(c.members, func() {
		alive := m.Alive
		if present != nil {
			alive = load(word)&memberAlive != 0
		}
		store(word, memberWord(backend.index, m.Choosable, alive))
		e.members[m.ID] = backend
	})
	if present != nil && present != backend {
		c.dropBackend(present)
	}
	return nil
}

// removeMembers clears the words of members that are not wanted any more; count is the new number of words.
func (c *change) removeMembers(e *muxEntry, kept map[uint16]bool, count int) {
	t := c.t
	for id, b := range e.members {
		if kept[id] {
			continue
		}
		c.gone = append(c.gone, func() {
			store(t.word(e, id), 0)
			delete(e.members, id)
		})
		c.dropBackend(b)
	}
	c.gone = append(c.gone, func() {
		if e.count != count {
			e.count = count
			store(&t.mem.endpoints[e.index].Members, membersWord(e.block, count))
		}
	})
}

func (m MuxMember) backendKey() backendKey { return backendKey{m.Outer, m.MTU} }

// backend finds or makes the record of a backend and takes a reference.
func (c *change) backend(k backendKey) (*backendRef, error) {
	t := c.t
	b, ok := t.byOuter[k]
	if !ok {
		index, free := t.backends.alloc()
		if !free {
			return nil, fmt.Errorf("backends: no room: at most %d", len(t.mem.backends))
		}
		b = &backendRef{backendKey: k, index: index}
		t.mem.backends[index] = backendRecord(k)
		// A way that cannot be written down is no reason to refuse a plan: the program asks the kernel, and SetNextHops
		// tells the fault.
		_ = t.hops.resolve(b)
		t.byOuter[k], t.byIndex[index] = b, b
	}
	b.refs++
	c.undos = append(c.undos, func() { t.release(b) })
	return b, nil
}

// dropBackend gives a reference back when the change is released.
func (c *change) dropBackend(b *backendRef) {
	c.released = append(c.released, func() { c.t.release(b) })
}

// release gives a reference to a record back that no reader can follow any more.
func (t *muxTables) release(b *backendRef) {
	if b.refs--; b.refs > 0 {
		return
	}
	if t.byOuter[b.backendKey] == b {
		delete(t.byOuter, b.backendKey)
	}
	delete(t.byIndex, b.index)
	t.backends.free(b.index)
}

// backendRecord is the record of a backend, not resolved yet. An MTU of 0 is unknown and not enforced.
func backendRecord(k backendKey) muxBackend {
	r := muxBackend{OuterDst: k.outer.As16(), Mtu: k.mtu}
	if k.mtu == 0 {
		r.Mtu = math.MaxUint32
	}
	if !k.outer.Is4() {
		r.OuterV6 = 1
		return r
	}
	a := k.outer.As4()
	r.Outer4Be = binary.NativeEndian.Uint32(a[:])
	// Version and TOS, length, protocol and source are added per packet.
	header := [...]byte{0x40, 0, 64, 0, a[0], a[1], a[2], a[3]}
	for i := 0; i < len(header); i += 2 {
		r.Sum4 += uint32(binary.NativeEndian.Uint16(header[i:]))
	}
	r.Sum4 = r.Sum4&0xffff + r.Sum4>>16
	r.Sum4 = r.Sum4&0xffff + r.Sum4>>16
	return r
}
