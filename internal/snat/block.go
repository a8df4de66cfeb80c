package snat

import (
	"fmt"
	"time"
)

// Owner names a DIP within a block; 0 is nobody.
type Owner uint16

// Block is the ranges of one VIP. Each is closed, leased, at rest, or free; one that is closed may still be leased or at rest, as
// those are in which an endpoint began to listen after they were leased. Ranges are taken next fit: one that was freed is the last
// to be taken again (the time that it rests is the least, not the usual).
type Block struct {
	free   Bitmap // neither closed, nor leased, nor at rest
	closed Bitmap
	owners [Ranges]Owner
	next   Range
	resting
	nfree, nleased int
}

// resting are ranges that may not be leased yet, in the order of their times.
type resting struct {
	queue []rest
	first int
}

type rest struct {
	r     Range
	until int64 // Unix nanoseconds
}

// NewBlock makes a block of which only the closed ranges may not be leased.
func NewBlock(closed *Bitmap) *Block {
	b := &Block{closed: *closed}
	for r := range Range(Ranges) {
		b.open(r)
	}
	return b
}

// open makes a range free unless something is against it.
func (b *Block) open(r Range) {
	if b.owners[r] == 0 && !b.closed.Has(r) && !b.free.Has(r) {
		b.free.Set(r)
		b.nfree++
	}
}

// Free is how many ranges may be taken, Leased how many are.
func (b *Block) Free() int { return b.nfree }

// Leased is how many ranges have an owner.
func (b *Block) Leased() int { return b.nleased }

// Resting is how many ranges rest.
func (b *Block) Resting() int { return len(b.queue) - b.first }

// Owner is who has the range; 0: nobody.
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

// Hold leases a given range, as it is known from elsewhere; false: somebody else has it. That it rested, or is closed, does not matter.
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

// Give ends a lease: the range rests until the given time.
func (b *Block) Give(r Range, until time.Time) {
	if b.owners[r] == 0 {
		panic(fmt.Sprintf("snat: range %s is given back, but nobody has it", r))
	}
	b.owners[r] = 0
	b.nleased--
	b.Rest(r, until)
}

// Rest keeps a range that nobody has from being leased until the given time, or as long as the one that began to rest before it if that is
// later: the quarantine may have been shortened.
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

// Tick ends the rest of ranges whose time is over.
func (b *Block) Tick(now time.Time) {
	for at := now.UnixNano(); b.first < len(b.queue) && b.queue[b.first].until <= at; b.first++ {
		b.open(b.queue[b.first].r)
	}
}

// Close changes which ranges may not be leased. Those that are leased stay so.
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
