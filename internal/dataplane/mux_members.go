package dataplane

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"slices"
)

// stageMembers brings the member words of an endpoint to their wanted state. Words of members that stay keep their
// alive bit; words that are not published yet are written at once.
func (c *change) stageMembers(e *muxEntry, wanted []MuxMember, encap Encap) error {
	t, count := c.t, 0
	for _, m := range wanted {
		count = max(count, int(m.ID)+1)
	}
	old, oldCount := e.block, e.count
	next := old
	if uint32(count) > old.words {
		var err error
		if next, err = c.moveMembers(e, uint32(count)); err != nil {
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
		if err := c.stageMember(e, next, m, encap); err != nil {
			return fmt.Errorf("member %d: %w", m.ID, err)
		}
	}
	if next != old || between != oldCount {
		c.members = append(c.members, func() {
			e.block, e.count = next, between
			store(&t.mem.slots[e.slot].Members, membersWord(next, between))
		})
	}
	if next != old && old.words > 0 {
		c.first = true
		c.released = append(c.released, func() {
			for i := range uint32(oldCount) {
				fold(t.mem.memberCounts, old.first+i, t.mem.memberCounts, next.first+i)
			}
			e.before, e.ripe = block{}, true
		})
	}
	c.removeMembers(e, kept, count)
	return nil
}

// checkKept refuses rings that are kept and may name members that are not.
func checkKept(e *muxEntry, w MuxEndpoint) error {
	if !w.KeepRings {
		return nil
	}
	ids := idsOf(w.Members)
	for id := range e.members.all() {
		if !ids.has(id) {
			return fmt.Errorf("rings: to be kept, but member %d is not", id)
		}
	}
	return nil
}

// moveMembers makes a larger block that begins as a copy of the present one.
func (c *change) moveMembers(e *muxEntry, count uint32) (block, error) {
	t, old, oldCount := c.t, e.block, e.count
	next, ok := c.allocMembers(count, e)
	if !ok {
		return block{}, noRoom(TableMembers, "members: no room for %d more: %d in all (--max-members)", count, len(t.mem.members))
	}
	c.undos = append(c.undos, func() {
		t.own(next, nil)
		t.members.free(next)
	})
	// What other members counted in these words before is nobody's.
	for i := range next.words {
		t.mem.memberCounts.clear(next.first + i)
	}
	c.members = append(c.members, func() {
		e.before, e.moved, e.ripe, e.moves = old, old, false, e.moves+1
		// As late as possible: health may have flipped bits since.
		for i := range uint32(oldCount) {
			store(&t.mem.members[next.first+i], load(&t.mem.members[old.first+i]))
			store(&t.mem.memberLoads[next.first+i], load(&t.mem.memberLoads[old.first+i]))
		}
	})
	return next, nil
}

// stageMember plans the word of one member in the endpoint's block `in`.
func (c *change) stageMember(e *muxEntry, in block, m MuxMember, encap Encap) error {
	t, word := c.t, &c.t.mem.members[in.first+uint32(m.ID)]
	present := e.members.get(m.ID)
	if present == nil {
		// What a member that is just going had counted under this id goes on as the new one's.
		at := in.first + uint32(m.ID)
		if i := slices.Index(e.leaving, at); i >= 0 {
			e.leaving = slices.Delete(e.leaving, i, i+1)
		} else {
			t.mem.memberCounts.clear(at)
		}
	}
	backend := present
	if present == nil || present.backendKey != m.backendKey(encap) {
		var err error
		if backend, err = c.backend(m.backendKey(encap)); err != nil {
			return err
		}
	}
	c.members = append(c.members, func() {
		alive := m.Alive
		if present != nil {
			alive = load(word)&memberAlive != 0
		} else {
			store(&t.mem.memberLoads[in.first+uint32(m.ID)], 0)
		}
		store(word, memberWord(backend.index, m.Choosable, alive))
		e.members.set(m.ID, backend)
	})
	if present != nil && present != backend {
		c.dropBackend(present)
	}
	return nil
}

// removeMembers clears the words of members that are not wanted any more; count is the new number of words.
func (c *change) removeMembers(e *muxEntry, kept map[uint16]bool, count int) {
	t := c.t
	for id, b := range e.members.all() {
		if kept[id] {
			continue
		}
		c.gone = append(c.gone, func() {
			store(t.word(e, id), 0)
			e.members.set(id, nil)
			e.leaving = append(e.leaving, e.block.first+uint32(id))
		})
		c.first = true
		c.released = append(c.released, func() { t.foldLeaving(e) })
		c.dropBackend(b)
	}
	c.gone = append(c.gone, func() {
		if e.count != count {
			e.count = count
			store(&t.mem.slots[e.slot].Members, membersWord(e.block, count))
		}
	})
}

// foldLeaving adds what members that are gone had counted to their endpoint.
func (t *muxTables) foldLeaving(e *muxEntry) {
	for _, i := range e.leaving {
		fold(t.mem.memberCounts, i, t.mem.endpointCounts, e.index)
	}
	e.leaving = nil
}

func (m MuxMember) backendKey(encap Encap) backendKey {
	return backendKey{m.Outer, m.MTU, encap, m.Port}
}

// backend finds or makes the record of a backend and takes a reference.
func (c *change) backend(k backendKey) (*backendRef, error) {
	t := c.t
	b := t.records.get(k)
	if b == nil {
		index, free := t.backends.alloc()
		if !free {
			return nil, noRoom(TableBackends, "backends: no room: at most %d (--max-backends)", len(t.mem.backends))
		}
		b = &backendRef{backendKey: k, index: index}
		t.mem.backends[index] = backendRecord(k)
		// A way that cannot be written down is no reason to refuse a plan: the program asks the kernel, and SetNextHops
		// tells the fault.
		_ = t.hops.resolve(b)
		t.records.put(b)
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
	t.records.remove(b)
	t.backends.free(b.index)
}

// overhead is the number of bytes in front of the inner packet (enum overhead).
func (k backendKey) overhead() uint32 {
	switch {
	case k.encap == encapNone:
		return uint32(muxOverheadOVERHEAD_NAT)
	case k.encap == EncapGUE && k.outer.Is4():
		return uint32(muxOverheadOVERHEAD_GUE4)
	case k.encap == EncapGUE:
		return uint32(muxOverheadOVERHEAD_GUE6)
	case k.outer.Is4():
		return uint32(muxOverheadOVERHEAD_IP4)
	}
	return uint32(muxOverheadOVERHEAD_IP6)
}

// backendKeyOf is what a record was made of.
func backendKeyOf(r *muxBackend) backendKey {
	k := backendKey{outer: netip.AddrFrom16(r.OuterDst).Unmap(), mtu: r.Mtu}
	if r.Mtu == math.MaxUint32 {
		k.mtu = 0
	}
	if r.Overhead == uint32(muxOverheadOVERHEAD_GUE4) || r.Overhead == uint32(muxOverheadOVERHEAD_GUE6) {
		k.encap = EncapGUE
	}
	if r.Overhead == uint32(muxOverheadOVERHEAD_NAT) {
		k.encap, k.port = encapNone, uint16(r.Port)
	}
	return k
}

// backendRecord is the record of a backend, not resolved yet. An MTU of 0 is unknown and not enforced.
func backendRecord(k backendKey) muxBackend {
	r := muxBackend{OuterDst: k.outer.As16(), Mtu: k.mtu, Overhead: k.overhead(), Port: uint32(k.port)}
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
