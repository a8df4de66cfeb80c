// Package index finds things that are numbered elsewhere: a hash table of numbers alone, of 4 bytes and some room each.
package index

import "math/bits"

// Index has numbers by the hashes of what they stand for. The zero value is empty. It is not safe for concurrent use.
type Index struct {
	// slots are numbers plus 1, 0 free: each in the first free one from its hash's on when it came, without gaps up to it.
	slots []uint32
	n     int
	// Hash is that of the thing with a number; it does not change while the number is in.
	Hash func(number uint32) uint64
}

// Len is how many numbers there are.
func (x *Index) Len() int { return x.n }

func (x *Index) home(hash uint64) uint32 {
	high, _ := bits.Mul64(hash, uint64(len(x.slots)))
	return uint32(high)
}

func (x *Index) next(slot uint32) uint32 {
	if slot++; int(slot) < len(x.slots) {
		return slot
	}
	return 0
}

// Find is the number with this hash that is the wanted one.
func (x *Index) Find(hash uint64, wanted func(number uint32) bool) (uint32, bool) {
	if x.n == 0 {
		return 0, false
	}
	for slot := x.home(hash); x.slots[slot] != 0; slot = x.next(slot) {
		if number := x.slots[slot] - 1; wanted(number) {
			return number, true
		}
	}
	return 0, false
}

// Add puts a number in that is not there.
func (x *Index) Add(number uint32) {
	if (x.n+1)*4 > len(x.slots)*3 {
		x.resize(max(16, len(x.slots)+len(x.slots)/4))
	}
	x.put(number)
	x.n++
}

// Expect makes room for so many numbers in all.
func (x *Index) Expect(n int) {
	if n*4 > len(x.slots)*3 {
		x.resize(max(16, n*4/3+1, len(x.slots)+len(x.slots)/8))
	}
}

func (x *Index) put(number uint32) {
	slot := x.home(x.Hash(number))
	for x.slots[slot] != 0 {
		slot = x.next(slot)
	}
	x.slots[slot] = number + 1
}

// Remove takes a number out that is there.
func (x *Index) Remove(number uint32) {
	gap := x.home(x.Hash(number))
	for x.slots[gap] != number+1 {
		if x.slots[gap] == 0 {
			panic("index: a number is removed that is not there")
		}
		gap = x.next(gap)
	}
	x.n--
	// Those behind it that may not lie behind a gap move into it.
	size := uint32(len(x.slots))
	for slot := x.next(gap); x.slots[slot] != 0; slot = x.next(slot) {
		home := x.home(x.Hash(x.slots[slot] - 1))
		if (slot+size-home)%size >= (slot+size-gap)%size {
			x.slots[gap] = x.slots[slot]
			gap = slot
		}
	}
	x.slots[gap] = 0
	if len(x.slots) > 1024 && x.n*4 < len(x.slots) {
		x.resize(len(x.slots) / 2)
	}
}

func (x *Index) resize(size int) {
	before := x.slots
	x.slots = make([]uint32, size)
	for _, s := range before {
		if s != 0 {
			x.put(s - 1)
		}
	}
}
