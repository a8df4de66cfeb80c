package dataplane

import "fmt"

// buddy hands out blocks of a power of two of words, aligned to their size, from a table whose length is a power of
// two. It keeps nothing in the table itself, so that it can be rebuilt from the blocks in use.
type buddy struct {
	unit  uint8   // binary logarithm of the smallest block's words
	top   uint8   // order of the whole table; orders count in units
	heads []int32 // by order: first free block, or -1
	next  []int32 // by block: free lists
	prev  []int32
	order []int8 // by block: the order of a free block that begins here, else -1
}

// newBuddy covers `words` words, all free; smallest is the least block's number of words. Both are powers of two.
func newBuddy(words, smallest uint32) *buddy {
	b := &buddy{unit: log2(smallest), top: log2(max(words, smallest) / smallest)}
	n := words / smallest
	b.next, b.prev, b.order = make([]int32, n), make([]int32, n), make([]int8, n)
	b.heads = make([]int32, b.top+1)
	for i := range b.heads {
		b.heads[i] = -1
	}
	for i := range b.order {
		b.order[i] = -1
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
		at := b.heads[o]
		if at < 0 {
			continue
		}
		b.remove(at)
		for ; o > want; o-- {
			b.push(at+1<<(o-1), o-1)
		}
		return block{uint32(at) << b.unit, 1 << (want + b.unit)}, true
	}
	return block{}, false
}

// reserve takes the block that begins at first and holds at least `words` words; false when part of it is in use.
func (b *buddy) reserve(first, words uint32) (block, bool) {
	want, at := b.orderOf(words), int32(first>>b.unit)
	if want > b.top || int(at) >= len(b.order) || at&(1<<want-1) != 0 || first&(1<<b.unit-1) != 0 {
		return block{}, false
	}
	for o := want; o <= b.top; o++ {
		around := at &^ (1<<o - 1)
		if b.order[around] != int8(o) {
			continue
		}
		b.remove(around)
		for ; o > want; o-- {
			half := int32(1) << (o - 1)
			if at >= around+half {
				b.push(around, o-1)
				around += half
			} else {
				b.push(around+half, o-1)
			}
		}
		return block{first, 1 << (want + b.unit)}, true
	}
	return block{}, false
}

// free gives a block back and joins it with its free neighbours. The zero block is nothing.
func (b *buddy) free(k block) {
	if k.words == 0 {
		return
	}
	at, o := int32(k.first>>b.unit), b.orderOf(k.words)
	if b.order[at] >= 0 {
		panic(fmt.Sprintf("block of %d words at %d freed twice", k.words, k.first))
	}
	for ; o < b.top; o++ {
		other := at ^ 1<<o
		if b.order[other] != int8(o) {
			break
		}
		b.remove(other)
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

func (b *buddy) push(at int32, o uint8) {
	b.order[at], b.prev[at], b.next[at] = int8(o), -1, b.heads[o]
	if b.heads[o] >= 0 {
		b.prev[b.heads[o]] = at
	}
	b.heads[o] = at
}

func (b *buddy) remove(at int32) {
	if p := b.prev[at]; p >= 0 {
		b.next[p] = b.next[at]
	} else {
		b.heads[b.order[at]] = b.next[at]
	}
	if n := b.next[at]; n >= 0 {
		b.prev[n] = b.prev[at]
	}
	b.order[at] = -1
}
