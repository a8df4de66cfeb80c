package ring

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
)

// Member is a backend's place in an endpoint.
type Member struct {
	ID     uint16
	DIP    netip.Addr // with Port the natural key; distinct among the members
	Port   uint16
	Weight uint16 // 0: not in the ring
}

// Build makes the ring of 1<<code member ids, or nil when no member has weight. Shares are proportional to weights, as
// far as whole slots allow. code must lie in [CodeMin, CodeMax].
//
// Member i prefers the slots offset+j*skip (mod size) for j = 0, 1, …; skip is odd, so it prefers every slot once. The
// members take turns in the order of their natural keys. In round r a member has a turn when floor(r*weight/max)
// grows, and takes the first slot it prefers that is still free.
func Build(code uint8, members []Member) []uint16 {
	turns := newTurns(code, members)
	if len(turns) == 0 {
		return nil
	}
	size := uint32(1) << code
	ring := make([]uint16, size)
	taken := make([]uint64, size/64)
	heaviest := turns[0].weight
	for _, t := range turns {
		heaviest = max(heaviest, t.weight)
	}
	for left := size; ; {
		for i := range turns {
			t := &turns[i]
			if t.credit += t.weight; t.credit < heaviest {
				continue
			}
			t.credit -= heaviest
			ring[t.take(taken, size-1)] = t.id
			if left--; left == 0 {
				return ring
			}
		}
	}
}

// turn is a member's progress through its permutation.
type turn struct {
	at     uint32 // the slot it prefers next
	skip   uint32
	weight uint32
	credit uint32 // below the heaviest weight between rounds
	id     uint16
}

// take moves on to the first free preferred slot and takes it. There must be one.
func (t *turn) take(taken []uint64, mask uint32) uint32 {
	at := t.at
	for taken[at>>6]>>(at&63)&1 != 0 {
		at = (at + t.skip) & mask
	}
	taken[at>>6] |= 1 << (at & 63)
	t.at = (at + t.skip) & mask
	return at
}

// newTurns lists the members with weight in the order of their natural keys.
func newTurns(code uint8, members []Member) []turn {
	sorted := slices.DeleteFunc(slices.Clone(members), func(m Member) bool { return m.Weight == 0 })
	slices.SortFunc(sorted, func(a, b Member) int {
		x, y := a.naturalKey(), b.naturalKey()
		return bytes.Compare(x[:], y[:])
	})
	turns := make([]turn, len(sorted))
	for i, m := range sorted {
		seed := m.seed()
		turns[i] = turn{
			at:     Slot(mix64(seed+1), code),
			skip:   Slot(mix64(seed+2), code) | 1,
			weight: uint32(m.Weight),
			id:     m.ID,
		}
	}
	return turns
}

// naturalKey is the DIP in 16 bytes, IPv4 mapped, then the port, big endian.
func (m Member) naturalKey() (key [18]byte) {
	dip := m.DIP.As16()
	copy(key[:], dip[:])
	binary.BigEndian.PutUint16(key[16:], m.Port)
	return key
}

// seed is mix64(mix64(mix64(high half of the DIP) ^ low half) ^ port), the halves as big-endian numbers.
func (m Member) seed() uint64 {
	key := m.naturalKey()
	h := mix64(binary.BigEndian.Uint64(key[:8]))
	h = mix64(h ^ binary.BigEndian.Uint64(key[8:16]))
	return mix64(h ^ uint64(m.Port))
}
