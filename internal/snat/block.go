package snat

import (
	"fmt"
	"time"
)

// Owner is the number of a DIP within a block; 0 means none.
type Owner uint16

// Block holds the ranges of one VIP. Each is closed, leased, resting, or free. A closed range may
// still be leased or resting if an endpoint began to listen in it after it was leased. Ranges are
// allocated next fit, so a freed range is the last to be leased again and rests longer than the
// minimum.
type Block struct {
	free   Bitmap // neither closed, nor leased, nor resting
	closed Bitmap
	owners [Ranges]Owner
	next   Range
	resting
	nfree, nleased int
}

// resting holds ranges that may not be leased yet, ordered by time.
type resting struct {
	queue []rest
	first int
}

type rest struct {
	r     Range
	until int64 // Unix nanoseconds
}

// NewBlock returns a block in which all ranges except the closed ones are free.
func NewBlock(closed *Bitmap) *Block {
	b := &Block{closed: *closed}
	for r := range Range(Ranges) {
		b.open(r)
	}
	return b
}

// open frees a range unless it is leased, closed or free.
func (b *Block) open(r Range) {
	if b.owners[r] == 0 && !b.closed.Has(r) && !b.free.Has(r) {
		b.free.Set(r)
		b.nfree++
	}
}

// Free returns the number of ranges that may be leased.
func (b *Block) Free() int { return b.nfree }

// Leased returns the number of ranges with an owner.
func (b *Block) Leased() int { return b.nleased }

// Resting returns the number of resting ranges.
func (b *Block) Resting() int { return len(b.queue) - b.first }

// Owner returns the owner of the range; 0: none.
func (b *Block) Owner(r Range) Owner { return b.owners[r] }

// Take leases the next free range; false: there is none.
func (b *Block) Take(o Owner) (Range, bool) {
	r, ok := b.free.Next(b.next)
	if !ok {
		return 0, false
	}
	b.free.Clear(r)
	b.nfree--
	b.nleased++
	b.owners[r] = o
	b.next = (r + 1) % Ranges
	return r, true
}

// Hold leases a given range that is known to be leased, resting and closed ranges included; false:
// another owner has it.
func (b *Block) Hold(r Range, o Owner) bool {
	if b.owners[r] != 0 {
		return b.owners[r] == o
	}
	if b.free.Has(r) {
		b.free.Clear(r)
		b.nfree--
	}
	for i := b.first; i < len(b.queue); i++ {
		if b.queue[i].r == r {
			b.queue = append(b.queue[:i], b.queue[i+1:]...)
			break
		}
	}
	b.owners[r] = o
	b.nleased++
	return true
}

// Give ends a lease. The range then rests until the given time.
func (b *Block) Give(r Range, until time.Time) {
	if b.owners[r] == 0 {
		panic(fmt.Sprintf("snat: range %s is given back, but nobody has it", r))
	}
	b.owners[r] = 0
	b.nleased--
	b.Rest(r, until)
}

// Rest keeps a range without owner from being leased until the given time, or until the time of the
// previous entry if that is later, because the quarantine may have been shortened.
func (b *Block) Rest(r Range, until time.Time) {
	if b.free.Has(r) {
		b.free.Clear(r)
		b.nfree--
	}
	if b.first > 32 && b.first*2 > len(b.queue) {
		b.queue = b.queue[:copy(b.queue, b.queue[b.first:])]
		b.first = 0
	}
	at := until.UnixNano()
	if b.first < len(b.queue) {
		at = max(at, b.queue[len(b.queue)-1].until)
	}
	b.queue = append(b.queue, rest{r, at})
}

// Tick frees the ranges whose rest is over.
func (b *Block) Tick(now time.Time) {
	for at := now.UnixNano(); b.first < len(b.queue) && b.queue[b.first].until <= at; b.first++ {
		b.open(b.queue[b.first].r)
	}
}

// Close sets the ranges that may not be leased. Existing leases stay.
func (b *Block) Close(closed *Bitmap) {
	was := b.closed
	b.closed = *closed
	rests := Bitmap{}
	for _, q := range b.queue[b.first:] {
		rests.Set(q.r)
	}
	for r := range Range(Ranges) {
		switch {
		case closed.Has(r) && b.free.Has(r):
			b.free.Clear(r)
			b.nfree--
		case was.Has(r) && !closed.Has(r) && !rests.Has(r):
			b.open(r)
		}
	}
}
