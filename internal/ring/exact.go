package ring

import "math/bits"

// BuildExact builds a ring with a prime number of slots as in the paper (section 3.4): offset below
// the size, skip from 1 to size-1, all weights equal. It is for comparison only, because the mux's
// rings have powers of two of slots. prime must be below 1<<30.
//
// As in Build the members search for free slots until few are left, which are then ranked per
// member.
func (b *Builder) BuildExact(prime uint32, members []Member) []uint16 {
	if !b.begin(members) {
		return nil
	}
	b.seekers = grown(b.seekers, len(b.turns))
	for i := range b.turns {
		b.seekers[i].begin(&b.turns[i], prime)
	}
	ring := make([]uint16, prime)
	b.allFree(2 * len(ring)) // twice: slots are looked up before they are wrapped
	next := b.seek(ring, 1<<(bits.Len32(prime)/2-1))
	b.free = b.free[:prime]
	b.listFree()
	b.finish(ring, next)
	return ring
}

// seek gives the members their turns until `few` slots are left, and returns the index of the next
// member.
func (b *Builder) seek(ring []uint16, few int) int {
	size, free := uint32(len(ring)), b.free
	for left := len(ring); ; {
		for i := range b.seekers {
			if left == few {
				return i
			}
			s := &b.seekers[i]
			at := s.take(free, size)
			for ; at == size; at = s.take(free, size) {
				s.list(free, size)
			}
			ring[at] = s.id
			left--
		}
	}
}

// finish gives the members their turns, beginning with first, until no slot is left: each ranks the
// free ones once.
func (b *Builder) finish(ring []uint16, first int) {
	for turn := 0; len(b.left) > 0; turn++ {
		s := &b.seekers[(first+turn)%len(b.seekers)]
		if turn < len(b.seekers) {
			s.rank(b.left, uint32(len(ring)))
		}
		best, least := 0, s.ranks[0]
		for i, rank := range s.ranks {
			if rank < least {
				best, least = i, rank
			}
		}
		ring[b.left[best]] = s.id
		b.left = dropped(b.left, best)
		for i := range min(turn+1, len(b.seekers)) {
			s := &b.seekers[(first+i)%len(b.seekers)]
			s.ranks = dropped(s.ranks, best)
		}
	}
}

// dropped removes element i by moving the last element to its place.
func dropped(s []uint32, i int) []uint32 {
	last := len(s) - 1
	s[i] = s[last]
	return s[:last]
}

// seeker is a member's progress through a ring whose size is prime. It lists free slots in advance,
// many at a time, because in a ring that fills up the state of the next one is unpredictable.
type seeker struct {
	at         uint32        // the next preferred slot
	stride     uint32        // lanes * skip (mod size)
	ahead      [lanes]uint32 // from at to the next preferred slots: j * skip (mod size)
	next, have uint32        // listed[next:have] are unused, not wrapped; some may be taken by now
	offset     uint32        // the first preferred slot
	back       uint32        // inverse of skip (mod size)
	id         uint16
	listed     [listLength]uint32
	ranks      []uint32 // of the remaining slots, when there are few
}

const (
	listLength = 64
	lanes      = 8 // number of slots checked per position
)

// begin resets a member to its first preferred slot.
func (s *seeker) begin(t *turn, prime uint32) {
	seed, p := t.seed(), uint64(prime)
	skip := mix64(seed+2)%(p-1) + 1
	s.id, s.offset, s.next, s.have = t.id, uint32(mix64(seed+1)%p), 0, 0
	s.at, s.stride, s.back = s.offset, uint32(lanes*skip%p), inversePrime(skip, p)
	for j := range s.ahead {
		s.ahead[j] = uint32(uint64(j) * skip % p)
	}
}

// take takes the first listed slot that is still free; size: there is none.
func (s *seeker) take(free []uint8, size uint32) uint32 {
	for s.next < s.have {
		at := wrap(s.listed[s.next%listLength], size)
		if s.next++; free[at] == 1 {
			free[at], free[at+size] = 0, 0
			return at
		}
	}
	return size
}

// list lists the free ones among the next slots. free has every slot twice.
func (s *seeker) list(free []uint8, size uint32) {
	at, slot, n := s.at, uint32(0), uint32(0)
	for range listLength / lanes {
		slot = at + s.ahead[0]
		s.listed[n%listLength] = slot
		n += uint32(free[slot])
		slot = at + s.ahead[1]
		s.listed[n%listLength] = slot
		n += uint32(free[slot])
		slot = at + s.ahead[2]
		s.listed[n%listLength] = slot
		n += uint32(free[slot])
		slot = at + s.ahead[3]
		s.listed[n%listLength] = slot
		n += uint32(free[slot])
		slot = at + s.ahead[4]
		s.listed[n%listLength] = slot
		n += uint32(free[slot])
		slot = at + s.ahead[5]
		s.listed[n%listLength] = slot
		n += uint32(free[slot])
		slot = at + s.ahead[6]
		s.listed[n%listLength] = slot
		n += uint32(free[slot])
		slot = at + s.ahead[7]
		s.listed[n%listLength] = slot
		n += uint32(free[slot])
		at = wrap(at+s.stride, size)
	}
	s.at, s.next, s.have = at, 0, n
}

// rank ranks slots by the member's preference: offset+j*skip has rank j, so slot s has rank
// (s-offset)/skip.
func (s *seeker) rank(slots []uint32, prime uint32) {
	s.ranks = s.ranks[:0]
	p, reciprocal := uint64(prime), ^uint64(0)/uint64(prime)
	for _, slot := range slots {
		x := uint64(wrap(slot+prime-s.offset, prime)) * uint64(s.back)
		q, _ := bits.Mul64(x, reciprocal) // x/p, or one less
		s.ranks = append(s.ranks, wrap(uint32(x-q*p), prime))
	}
}

// wrap returns at (mod size) for at below 2*size, without a branch, because the branch would be
// unpredictable.
func wrap(at, size uint32) uint32 {
	at -= size
	return at + size&uint32(int32(at)>>31)
}

// inversePrime returns the inverse of v, from 1 to p-1, modulo a prime p: v^(p-2).
func inversePrime(v, p uint64) uint32 {
	x := uint64(1)
	for e := p - 2; e > 0; e >>= 1 {
		if e&1 == 1 {
			x = x * v % p
		}
		v = v * v % p
	}
	return uint32(x)
}
