package dataplane

import (
	"slices"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/snat"
)

// stageSNAT writes a VIP's members and words, as stage does endpoints.
func (t *muxTables) stageSNAT(vip lb.EndpointKey, keys []backendKey, words *[snat.Ranges]uint16, crowded bool) (*change, error) {
	c := &change{t: t, crowded: crowded}
	if err := c.snat(vip, keys, words); err != nil {
		c.undo()
		return nil, err
	}
	return c, nil
}

func (c *change) snat(vip lb.EndpointKey, keys []backendKey, words *[snat.Ranges]uint16) error {
	t := &c.t.snat
	old := t.byVIP[vip]
	switch {
	case len(keys) == 0:
		if old != nil {
			c.leaveSNAT(vip, old, nil)
		}
		return nil
	case old != nil && slices.Equal(old.keys(), keys):
		c.members = append(c.members, func() { t.blocks[old.index].fill(words) })
		return nil
	case old == nil && len(t.byVIP) >= t.room():
		return noRoom(TableSNAT, "VIPs with SNAT: no room: at most %d (--max-snat-vips)", t.room())
	}
	next, err := c.snatMembers(keys)
	if err != nil {
		return err
	}
	var ok bool
	if next.index, ok = t.indices.alloc(); !ok {
		return noRoom(TableSNAT, "VIPs with SNAT: no room beside %d others (--max-snat-vips)", len(t.byVIP))
	}
	c.undos = append(c.undos, func() { t.indices.free(next.index) })
	b := &t.blocks[next.index]
	b.Members = membersWord(next.members, len(keys))
	b.fill(words)
	c.leaveSNAT(vip, old, next)
	return nil
}

// snatMembers writes member words that nobody sees yet.
func (c *change) snatMembers(keys []backendKey) (*snatRef, error) {
	t := c.t
	r := &snatRef{backends: make([]*backendRef, len(keys))}
	var ok bool
	if r.members, ok = c.allocMembers(uint32(len(keys)), nil); !ok {
		return nil, noRoom(TableMembers, "members: no room for %d more: %d in all (--max-members)", len(keys), len(t.mem.members))
	}
	c.undos = append(c.undos, func() { t.members.free(r.members) })
	for i := range r.members.words {
		at := r.members.first + i
		t.mem.memberCounts.clear(at)
		word := uint64(0)
		if int(i) < len(keys) && keys[i] != (backendKey{}) {
			b, err := c.backend(keys[i])
			if err != nil {
				return nil, err
			}
			r.backends[i], word = b, memberWord(b.index, true, true)
		}
		store(&t.mem.members[at], word)
	}
	return r, nil
}

// leaveSNAT publishes what a VIP has next, nil for nothing, and frees what it had when no reader can follow it any more.
func (c *change) leaveSNAT(vip lb.EndpointKey, old, next *snatRef) {
	t := c.t
	c.slots = append(c.slots, func() {
		if next != nil {
			t.snat.byVIP[vip] = next
		} else {
			delete(t.snat.byVIP, vip)
		}
		if e := t.entries[vip]; e != nil {
			t.nameSNAT(e, vip)
			store(&t.mem.slots[e.slot].Members, e.vipMembers())
		}
	})
	if old == nil {
		return
	}
	c.released = append(c.released, func() {
		for i := range old.members.words {
			store(&t.mem.members[old.members.first+i], 0)
		}
		t.members.free(old.members)
		t.snat.indices.free(old.index)
	})
	for _, b := range old.backends {
		if b != nil {
			c.dropBackend(b)
		}
	}
}

// nameSNAT makes the entry of a VIP know its block.
func (t *muxTables) nameSNAT(e *muxEntry, vip lb.EndpointKey) {
	e.ranges.snat = 0
	if r := t.snat.byVIP[vip]; r != nil {
		e.ranges.snat = r.index + 1
	}
}

// vipMembers is the members word of a VIP's slot.
func (e *muxEntry) vipMembers() uint64 {
	return uint64(e.ranges.any) | uint64(e.ranges.snat)<<muxSnatShiftSNAT_BLOCK_SHIFT
}
