package host

import (
	"encoding/binary"

	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/ring"
)

// ringCacheBytes is how many bytes of rings and their names a generation of the cache holds.
const ringCacheBytes = 4 << 20

// ringCacheEntry is about how many bytes a ring needs beside its slots and its name.
const ringCacheEntry = 128

// ringCache builds the rings of memberships and keeps those that were used last. An endpoint that changes has the same former memberships
// as before, and one whose backend goes up and down has the same two again and again. The zero value is empty.
type ringCache struct {
	builder ring.Builder
	// young are the rings that were used since old was young.
	young, old map[string][]uint16
	// bytes are those of young.
	bytes int
	// most is used instead of ringCacheBytes if it is not 0.
	most int
}

// walked returns the ring that muxes walk by a membership, as ring.Builder.Walked does. Targets without which the membership has a
// member are left out. The caller must not write to the ring.
func (c *ringCache) walked(m *plan.Seats, targets map[uint16]*plan.Target) []uint16 {
	seats := make([]ring.Seat, 0, len(m.Seats))
	key := append(make([]byte, 0, 1+32*len(m.Seats)), m.RingCode)
	for _, s := range m.Seats {
		t := targets[s.ID]
		if t == nil {
			continue
		}
		seats = append(seats, ring.Seat{Member: ring.Member{ID: s.ID, DIP: t.DIP, Port: t.Port, Weight: s.Weight}, Backup: s.Backup, Down: s.Down})
		dip := t.DIP.As16()
		key = append(key, dip[:]...)
		for _, n := range []uint16{s.ID, t.Port, s.Weight} {
			key = binary.BigEndian.AppendUint16(key, n)
		}
		key = append(key, flagByte(s.Backup)|flagByte(s.Down)<<1)
	}
	name := string(key)
	if r, ok := c.young[name]; ok {
		return r
	}
	r, ok := c.old[name]
	if !ok {
		r = c.builder.Walked(m.RingCode, seats)
	}
	c.keep(name, r)
	return r
}

// keep puts a ring among the young ones. If they are too large then, they become the old ones. A ring that is too large alone is not kept.
func (c *ringCache) keep(name string, r []uint16) {
	most := ringCacheBytes
	if c.most != 0 {
		most = c.most
	}
	need := 2*len(r) + len(name) + ringCacheEntry
	if need > most {
		return
	}
	if c.young == nil || c.bytes+need > most {
		c.young, c.old, c.bytes = map[string][]uint16{}, c.young, 0
	}
	c.young[name] = r
	c.bytes += need
}

// flagByte returns 1 for true and 0 for false.
func flagByte(b bool) byte {
	if b {
		return 1
	}
	return 0
}
