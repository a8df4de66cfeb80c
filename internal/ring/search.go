package ring

import "math/bits"

// fill fills a ring whose size is a power of two: members search for free slots by preference, and
// the last few slots are found by searching the free slots instead.
func (b *Builder) fill(ring []uint16) {
	b.allFree(len(ring))
	heaviest, few := b.heaviest(), 1<<(bits.Len(uint(len(ring)))/2)
	for left := len(ring); ; {
		for i := range b.turns {
			t := &b.turns[i]
			if !t.due(heaviest) {
				continue
			}
			if left == few {
				b.listFree()
			}
			if left > few {
				ring[t.search(b.free)] = t.id
			} else {
				ring[b.nearest(t, uint32(len(ring)-1))] = t.id
			}
			if left--; left == 0 {
				return
			}
		}
	}
}

// allFree marks every slot free.
func (b *Builder) allFree(size int) {
	b.free = grown(b.free, size)
	for i := range b.free {
		b.free[i] = 1
	}
}

// search takes the first preferred slot that is free. There must be one. It checks eight slots
// together, because in a ring that fills up the state of the next one is unpredictable: with eight
// a branch is mispredicted only if all are taken.
func (t *turn) search(free []uint8) uint32 {
	at, skip, mask := t.at, t.skip, uint32(len(free)-1)
	for {
		found := uint32(free[at&mask]) | uint32(free[(at+skip)&mask])<<1 |
			uint32(free[(at+2*skip)&mask])<<2 | uint32(free[(at+3*skip)&mask])<<3 |
			uint32(free[(at+4*skip)&mask])<<4 | uint32(free[(at+5*skip)&mask])<<5 |
			uint32(free[(at+6*skip)&mask])<<6 | uint32(free[(at+7*skip)&mask])<<7
		if found != 0 {
			at = (at + uint32(bits.TrailingZeros32(found))*skip) & mask
			free[at] = 0
			t.at = at + skip
			return at
		}
		at += 8 * skip
	}
}

// listFree lists the remaining slots.
func (b *Builder) listFree() {
	b.left = b.left[:0]
	for at, is := range b.free {
		if is == 1 {
			b.left = append(b.left, uint32(at))
		}
	}
}

// inverse returns the inverse of an odd number modulo 1<<32, by Newton's method: an odd number is
// its own inverse modulo 8, and each step doubles the number of correct bits.
func inverse(odd uint32) uint32 {
	x := odd
	for range 4 {
		x *= 2 - odd*x
	}
	return x
}

// nearest takes the free slot that a member prefers most: at+j*skip has rank j, so slot s has rank
// (s-at)/skip.
func (b *Builder) nearest(t *turn, mask uint32) uint32 {
	best := ^uint64(0)
	for i, slot := range b.left {
		best = min(best, uint64((slot-t.at)*t.back&mask)<<32|uint64(i))
	}
	i, last := uint32(best), len(b.left)-1
	slot := b.left[i]
	b.left[i] = b.left[last]
	b.left = b.left[:last]
	return slot
}
