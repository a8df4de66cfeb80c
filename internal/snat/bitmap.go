package snat

import "math/bits"

// Bitmap is a set of ranges with two levels: a bit of the upper level marks a non-zero element of
// the lower one.
type Bitmap struct {
	words [Ranges / 64]uint64
	upper [Ranges / 64 / 64]uint64
}

// Has reports whether the range is in the set.
func (b *Bitmap) Has(r Range) bool { return b.words[r/64]>>(r%64)&1 != 0 }

// Set adds the range to the set.
func (b *Bitmap) Set(r Range) {
	b.words[r/64] |= 1 << (r % 64)
	b.upper[r/4096] |= 1 << (r / 64 % 64)
}

// Clear removes the range from the set.
func (b *Bitmap) Clear(r Range) {
	if b.words[r/64] &^= 1 << (r % 64); b.words[r/64] == 0 {
		b.upper[r/4096] &^= 1 << (r / 64 % 64)
	}
}

// Next returns the first range of the set at or after from, else the first one; false: the set is
// empty.
func (b *Bitmap) Next(from Range) (Range, bool) {
	if r, ok := b.after(from); ok {
		return r, true
	}
	return b.after(0)
}

func (b *Bitmap) after(from Range) (Range, bool) {
	w := from / 64
	if left := b.words[w] >> (from % 64); left != 0 {
		return from + Range(bits.TrailingZeros64(left)), true
	}
	if w++; int(w) == len(b.words) {
		return 0, false
	}
	u := w / 64
	left := b.upper[u] >> (w % 64) << (w % 64)
	for left == 0 {
		if u++; int(u) == len(b.upper) {
			return 0, false
		}
		left = b.upper[u]
	}
	w = u*64 + Range(bits.TrailingZeros64(left))
	return w*64 + Range(bits.TrailingZeros64(b.words[w])), true
}

// Count returns the number of ranges in the set.
func (b *Bitmap) Count() (n int) {
	for _, w := range b.words {
		n += bits.OnesCount64(w)
	}
	return n
}
