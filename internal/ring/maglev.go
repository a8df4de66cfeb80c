package ring

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
)

// Member is a backend in an endpoint.
type Member struct {
	ID     uint16
	DIP    netip.Addr // the natural key, together with Port; distinct among the members
	Port   uint16
	Weight uint16 // 0: not in the ring
}

// Build returns the ring of 1<<code member ids, or nil if no member has weight. Shares are
// proportional to weights, up to rounding to whole slots. code must be in [CodeMin, CodeMax].
//
// Member i prefers the slots offset+j*skip (mod size) for j = 0, 1, …; skip is odd, so it prefers
// every slot once. The members take turns in the order of their natural keys. In round r a member
// has a turn if floor(r*weight/max) grows, and takes the first preferred slot that is free.
func Build(code uint8, members []Member) []uint16 { return new(Builder).Build(code, members) }

// Builder builds rings and reuses its workspace. The zero value is ready; it is not safe for
// concurrent use.
type Builder struct {
	turns   []turn
	seekers []seeker
	free    []uint8  // by slot; 1: free
	left    []uint32 // the free slots, when there are few
}

// Build is the function of the same name.
func (b *Builder) Build(code uint8, members []Member) []uint16 {
	if !b.begin(members) {
		return nil
	}
	for i := range b.turns {
		t := &b.turns[i]
		seed := t.seed()
		t.at, t.skip = Slot(mix64(seed+1), code), Slot(mix64(seed+2), code)|1
		t.back = inverse(t.skip)
	}
	ring := make([]uint16, 1<<code)
	b.fill(ring)
	return ring
}

// turn is a member's progress through its permutation.
type turn struct {
	hi, lo uint64 // the DIP's 16 bytes, IPv4 mapped, as big-endian numbers
	port   uint16
	id     uint16
	weight uint32
	credit uint32 // less than the heaviest weight between rounds
	at     uint32 // a slot; all slots it prefers to this one are taken
	skip   uint32
	back   uint32 // inverse of skip
}

// begin lists the members with weight in the order of their natural keys; false if there are none.
func (b *Builder) begin(members []Member) bool {
	b.turns = b.turns[:0]
	for _, m := range members {
		if m.Weight == 0 {
			continue
		}
		dip := m.DIP.As16()
		b.turns = append(b.turns, turn{
			hi: binary.BigEndian.Uint64(dip[:8]), lo: binary.BigEndian.Uint64(dip[8:]), port: m.Port,
			id: m.ID, weight: uint32(m.Weight),
		})
	}
	slices.SortFunc(b.turns, func(x, y turn) int {
		return cmp.Or(cmp.Compare(x.hi, y.hi), cmp.Compare(x.lo, y.lo), cmp.Compare(x.port, y.port))
	})
	return len(b.turns) > 0
}

// heaviest returns the largest weight.
func (b *Builder) heaviest() (w uint32) {
	for i := range b.turns {
		w = max(w, b.turns[i].weight)
	}
	return w
}

// due reports whether the member has a turn in the next round.
func (t *turn) due(heaviest uint32) bool {
	if t.credit += t.weight; t.credit < heaviest {
		return false
	}
	t.credit -= heaviest
	return true
}

// seed returns mix64(mix64(mix64(high half of the DIP) ^ low half) ^ port), with the halves as
// big-endian numbers.
func (t *turn) seed() uint64 { return mix64(mix64(mix64(t.hi)^t.lo) ^ uint64(t.port)) }

// grown returns a slice of n elements, s itself when it is large enough.
func grown[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}
