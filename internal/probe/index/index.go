// Package index is a hash table from hashes to numbers of things that are stored elsewhere. An
// entry takes 4 bytes plus spare room.
package index

import "math/bits"

// Index holds numbers by the hashes of the things that they identify. The zero value is empty. It
// is not safe for concurrent use.
type Index struct {
	// slots are numbers plus 1; 0 is free. A number is in the first slot from its hash's on that
	// was free when it was added. There is no gap between the two.
	slots []uint32
	n     int
	// Hash returns the hash of the thing with a number. It must not change while the number is in
	// the index.
	Hash func(number uint32) uint64
}

// Len returns how many numbers there are.
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

// Find returns the number with this hash for which wanted returns true.
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

// Add adds a number that is not in the index.
func (x *Index) Add(number uint32) {
	if (x.n+1)*4 > len(x.slots)*3 {
		x.resize(max(16, len(x.slots)+len(x.slots)/4))
	}
	x.put(number)
	x.n++
}

// Expect makes room for n numbers in all.
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

// Remove removes a number. It panics if the number is not in the index.
func (x *Index) Remove(number uint32) {
	gap := x.home(x.Hash(number))
	for x.slots[gap] != number+1 {
		if x.slots[gap] == 0 {
			panic("index: a number is removed that is not there")
		}
		gap = x.next(gap)
	}
	x.n--
	// Move those behind the gap into it, unless their home slot lies behind it.
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
