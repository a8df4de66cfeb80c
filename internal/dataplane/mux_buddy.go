package dataplane

import (
	"fmt"
	"math/bits"
)

// buddy hands out blocks of a power of two of words, aligned to their size, from a table whose length is a power of
// two; of those that fit the first. It keeps nothing in the table itself, so that it can be rebuilt from the blocks in use.
type buddy struct {
	unit uint8 // binary logarithm of the smallest block's words
	top  uint8 // order of the whole table; orders count in units
	// maps has a one for each free block, by order, n counts them; below word from[order] there is none.
	maps [][]uint64
	n    []uint32
	from []int
	used uint32 // words handed out
}

// newBuddy covers `words` words, all free; smallest is the least block's number of words. Both are powers of two.
func newBuddy(words, smallest uint32) *buddy {
	b := &buddy{unit: log2(smallest), top: log2(max(words, smallest) / smallest)}
	b.maps, b.n, b.from = make([][]uint64, b.top+1), make([]uint32, b.top+1), make([]int, b.top+1)
	for o := range b.maps {
		b.maps[o] = make([]uint64, (words/smallest>>o+63)/64)
	}
	b.push(0, b.top)
	return b
}

// block is a part of a table.
type block struct {
	first uint32
	words uint32 // a power of two, 0 for no block
}

// alloc finds a free block of at least `words` words.
func (b *buddy) alloc(words uint32) (block, bool) {
	want := b.orderOf(words)
	for o := want; o <= b.top; o++ {
		at, ok := b.first(o)
		if !ok {
			continue
		}
		b.remove(at, o)
		for ; o > want; o-- {
			b.push(at+1<<(o-1), o-1)
		}
		b.used += 1 << (want + b.unit)
		return block{at << b.unit, 1 << (want + b.unit)}, true
	}
	return block{}, false
}

// reserve takes the block that begins at first and holds at least `words` words; false when part of it is in use.
func (b *buddy) reserve(first, words uint32) (block, bool) {
	want, at := b.orderOf(words), first>>b.unit
	if want > b.top || at>>b.top != 0 || at&(1<<want-1) != 0 || first&(1<<b.unit-1) != 0 {
		return block{}, false
	}
	for o := want; o <= b.top; o++ {
		around := at &^ (1<<o - 1)
		if !b.isFree(around, o) {
			continue
		}
		b.remove(around, o)
		for ; o > want; o-- {
			half := uint32(1) << (o - 1)
			if at >= around+half {
				b.push(around, o-1)
				around += half
			} else {
				b.push(around+half, o-1)
			}
		}
		b.used += 1 << (want + b.unit)
		return block{first, 1 << (want + b.unit)}, true
	}
	return block{}, false
}

// free gives a block back and joins it with its free neighbours. The zero block is nothing.
func (b *buddy) free(k block) {
	if k.words == 0 {
		return
	}
	at, o := k.first>>b.unit, b.orderOf(k.words)
	for around := range b.top + 1 {
		if b.isFree(at, around) {
			panic(fmt.Sprintf("block of %d words at %d freed twice", k.words, k.first))
		}
	}
	b.used -= k.words
	for ; o < b.top; o++ {
		other := at ^ 1<<o
		if !b.isFree(other, o) {
			break
		}
		b.remove(other, o)
		at = min(at, other)
	}
	b.push(at, o)
}

func (b *buddy) orderOf(words uint32) uint8 {
	if words <= 1<<b.unit {
		return 0
	}
	return log2(words-1) + 1 - b.unit
}

// first is where the first free block of an order begins.
func (b *buddy) first(o uint8) (at uint32, ok bool) {
	for ; b.n[o] > 0; b.from[o]++ {
		if word := b.maps[o][b.from[o]]; word != 0 {
			return uint32(b.from[o]*64+bits.TrailingZeros64(word)) << o, true
		}
	}
	return 0, false
}

// isFree says whether the block of an order around a unit is free as one.
func (b *buddy) isFree(at uint32, o uint8) bool {
	i := at >> o
	return b.maps[o][i/64]>>(i%64)&1 != 0
}

func (b *buddy) push(at uint32, o uint8) {
	i := at >> o
	b.maps[o][i/64] |= 1 << (i % 64)
	b.n[o]++
	b.from[o] = min(b.from[o], int(i/64))
}

func (b *buddy) remove(at uint32, o uint8) {
	i := at >> o
	b.n[o]--
	b.maps[o][i/64] &^= 1 << (i % 64)
}
