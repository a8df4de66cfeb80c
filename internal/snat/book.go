package snat

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// Book is all leases as the store has them: a page for each VIP, and a log of batches that are not in the stored copies of all their
// pages. What is stored is read by any member, and by muxes; only the leader adds to it.
type Book struct {
	pages map[VIP]*Page
	log   []logged
	// last is the number of the last batch.
	last uint64
}

// logged is a batch that is stored by itself.
type logged struct {
	number uint64
	size   int
	vips   []VIP
}

// NewBook makes an empty book.
func NewBook() *Book { return &Book{pages: map[VIP]*Page{}} }

// RestKept is how long a page remembers that a range was freed: what a leader that begins must know, whatever its clock says, with the
// longest quarantine that a VIP may have.
const RestKept = restMargin * MaxQuarantine

// restMargin is for how many times its quarantine a range may not be leased by a leader that begins: clocks of leaders differ.
const restMargin = 3

// Last is the number of the last batch; 0: there was none.
func (b *Book) Last() uint64 { return b.last }

// Page is a VIP's; nil when nothing is known of it. It changes with the book.
func (b *Book) Page(v VIP) *Page { return b.pages[v] }

// VIPs are those with a page, ordered.
func (b *Book) VIPs() []VIP { return slices.SortedFunc(maps.Keys(b.pages), VIP.Compare) }

// Leased is how many ranges of all VIPs are.
func (b *Book) Leased() (n int) {
	for _, p := range b.pages {
		n += p.leased
	}
	return n
}

// Fold takes in a batch; size is its packed length. One that a page has already says nothing new to it.
func (b *Book) Fold(batch *Batch, size int) error {
	vips := make([]VIP, len(batch.Sections))
	for i := range batch.Sections {
		s := &batch.Sections[i]
		vips[i] = s.VIP
		p := b.pages[s.VIP]
		if p == nil {
			p = newPage(s.VIP)
			b.pages[s.VIP] = p
		}
		if batch.Number <= p.Through {
			continue
		}
		for _, r := range s.Freed {
			if err := p.free(r, batch.At); err != nil {
				return fmt.Errorf("batch %d: %w", batch.Number, err)
			}
		}
		for _, l := range s.Leased {
			if err := p.lease(l); err != nil {
				return fmt.Errorf("batch %d: %w", batch.Number, err)
			}
		}
		if batch.At.After(p.latest) {
			p.latest = batch.At
		}
		p.Through = batch.Number
	}
	if n := len(b.log); n == 0 || b.log[n-1].number < batch.Number {
		b.log = append(b.log, logged{batch.Number, size, vips})
	}
	b.last = max(b.last, batch.Number)
	return nil
}

// Load takes in the stored copy of a page. One of before what the book has says nothing new but that it is stored.
func (b *Book) Load(p *Page) {
	b.last = max(b.last, p.Through)
	if old := b.pages[p.VIP]; old != nil && old.Through >= p.Through {
		old.Saved = max(old.Saved, p.Through)
		return
	}
	b.pages[p.VIP] = p
}

// Stored takes in that a page's copy through a batch is stored; false: the book is behind it, and has to load the copy.
func (b *Book) Stored(v VIP, through uint64) bool {
	p := b.pages[v]
	if p == nil || p.Through < through {
		return false
	}
	p.Saved = max(p.Saved, through)
	b.last = max(b.last, through)
	return true
}

// Drop forgets a page whose stored copy is gone, and a batch that is no longer stored.
func (b *Book) Drop(v VIP) {
	if p := b.pages[v]; p != nil && p.leased == 0 {
		delete(b.pages, v)
	}
}

// DropBatch forgets that a batch is stored by itself.
func (b *Book) DropBatch(number uint64) {
	if len(b.log) > 0 && b.log[0].number == number { // the oldest goes first
		b.log = b.log[1:]
		return
	}
	b.log = slices.DeleteFunc(b.log, func(l logged) bool { return l.number == number })
}

const (
	// logBatches and logBytes are from which size on the log is shortened: a page is stored once for all batches that it is in, and a
	// leader that begins reads the log in milliseconds.
	logBatches, logBytes = 2048, 1 << 20
	// saveBytes is about how much is saved for that at a time, a part of it as long as the log has not twice that size: whoever asks
	// waits for what is stored beside.
	saveBytes, savePart = 96 << 10, 8
	// mostDropped is how many batches go at a time.
	mostDropped = 32
)

// Save tells what to store beside the next batch so that the log stays short: copies of pages, and the batches that can go then.
func (b *Book) Save() (pages []*Page, batches []uint64) {
	size := 0
	for _, l := range b.log {
		size += l.size
	}
	if len(b.log) < logBatches && size < logBytes {
		return nil, nil
	}
	room := saveBytes
	if len(b.log) < 2*logBatches && size < 2*logBytes {
		room /= savePart
	}
	saved := map[VIP]bool{}
	for len(batches) < len(b.log) {
		l := b.log[len(batches)]
		for _, v := range l.vips {
			p := b.pages[v]
			if p == nil || saved[v] || p.Saved >= l.number {
				continue
			}
			if room <= 0 {
				return pages, batches
			}
			saved[v] = true
			pages = append(pages, p)
			room -= 32 + 4*len(p.dips) + 4*p.leased + 6*len(p.Rests())
		}
		if batches = append(batches, l.number); len(batches) >= mostDropped {
			break
		}
	}
	return pages, batches
}

// Clone is a copy of the pages that changes with nothing.
func (b *Book) Clone() *Book {
	out := &Book{pages: make(map[VIP]*Page, len(b.pages)), log: slices.Clone(b.log), last: b.last}
	for v, p := range b.pages {
		out.pages[v] = p.Clone()
	}
	return out
}

// Quarantine is how long a range rests that was freed unless the VIP's Network says another time: longer than a packet lives, and than TIME-WAIT
// lasts (RFC 9293 section 3.4.1 with the 30 s that stacks take for a segment's life). MaxQuarantine is the longest that it may say.
const (
	Quarantine    = 2 * time.Minute
	MaxQuarantine = 10 * time.Minute
)
