package host

import (
	"encoding/binary"

	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/ring"
)

// ringCacheBytes bounds the rings and keys of one generation of the cache, in bytes.
const ringCacheBytes = 4 << 20

// ringCacheEntry is the approximate overhead of an entry in addition to its ring and key, in bytes.
const ringCacheEntry = 128

// ringCache builds the rings of memberships and caches the recently used ones, because an endpoint
// that changes keeps its previous memberships, and a backend that flaps alternates between two. Its
// bound is in bytes and covers the keys, because a tenant chooses their length. The zero value is
// empty.
type ringCache struct {
	builder ring.Builder
	// young are the rings used since the last change of generation; old those of the generation
	// before.
	young, old map[string][]uint16
	// bytes is the size of young.
	bytes int
	// most replaces ringCacheBytes if it is not 0.
	most int
}

// walked returns the ring of a membership as ring.Builder.Walked does, without members that have no
// target. The caller must not write to the ring.
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

// keep adds a ring to the young generation, which becomes the old one if it would exceed its bound.
// It does not cache a ring that exceeds the bound alone.
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
