package snat

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// Book is the in-memory copy of the lease store: a page for each VIP, and a log of batches that are
// not in the stored copies of all their pages. Every member and the muxes read the store; only the
// leader writes it.
type Book struct {
	pages map[VIP]*Page
	log   []logged
	// last is the number of the last batch.
	last uint64
}

// logged is a batch that is stored on its own.
type logged struct {
	number uint64
	size   int
	vips   []VIP
}

// NewBook returns an empty lease store.
func NewBook() *Book { return &Book{pages: map[VIP]*Page{}} }

// RestKept is how long a page records that a range was freed. A new leader needs the record for the
// longest quarantine of a VIP, whatever its clock shows.
const RestKept = restMargin * MaxQuarantine

// restMargin is the multiple of its quarantine for which a new leader may not lease a range,
// because clocks of leaders differ.
const restMargin = 3

// Last returns the number of the last batch; 0: there was none.
func (b *Book) Last() uint64 { return b.last }

// Page returns a VIP's page, or nil. It changes with the lease store.
func (b *Book) Page(v VIP) *Page { return b.pages[v] }

// VIPs returns those with a page, ordered.
func (b *Book) VIPs() []VIP { return slices.SortedFunc(maps.Keys(b.pages), VIP.Compare) }

// Leased returns the number of leased ranges of all VIPs.
func (b *Book) Leased() (n int) {
	for _, p := range b.pages {
		n += p.leased
	}
	return n
}

// Fold applies a batch; size is its packed length. A page that already contains the batch does not
// change.
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

// Load adds the stored copy of a page. If the lease store has a newer page, it only records that
// the copy is stored.
func (b *Book) Load(p *Page) {
	b.last = max(b.last, p.Through)
	if old := b.pages[p.VIP]; old != nil && old.Through >= p.Through {
		old.Saved = max(old.Saved, p.Through)
		return
	}
	b.pages[p.VIP] = p
}

// Stored records that a page's copy through a batch is stored; false: the lease store is older and
// must load the copy.
func (b *Book) Stored(v VIP, through uint64) bool {
	p := b.pages[v]
	if p == nil || p.Through < through {
		return false
	}
	p.Saved = max(p.Saved, through)
	b.last = max(b.last, through)
	return true
}

// Drop removes a page without leases whose stored copy was deleted.
func (b *Book) Drop(v VIP) {
	if p := b.pages[v]; p != nil && p.leased == 0 {
		delete(b.pages, v)
	}
}

// DropBatch removes a batch whose stored copy was deleted.
func (b *Book) DropBatch(number uint64) {
	if len(b.log) > 0 && b.log[0].number == number { // the oldest is deleted first
		b.log = b.log[1:]
		return
	}
	b.log = slices.DeleteFunc(b.log, func(l logged) bool { return l.number == number })
}

const (
	// logBatches and logBytes are the sizes from which the log is shortened. A page is stored once
	// for all its batches, and a new leader reads the log in milliseconds.
	logBatches, logBytes = 2048, 1 << 20
	// saveBytes is about the amount to save for that in one transaction; a part of it until the log
	// has twice that size, because requests wait for the transaction.
	saveBytes, savePart = 96 << 10, 8
	// mostDropped is the number of batches that are deleted in one transaction.
	mostDropped = 32
)

// Save returns the copies of pages to store with the next batch so that the log stays short, and
// the batches that can then be deleted.
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

// Clone returns an independent copy.
func (b *Book) Clone() *Book {
	out := &Book{pages: make(map[VIP]*Page, len(b.pages)), log: slices.Clone(b.log), last: b.last}
	for v, p := range b.pages {
		out.pages[v] = p.Clone()
	}
	return out
}

// Quarantine is how long a freed range rests unless the VIP's Network sets another time. It exceeds
// the lifetime of a packet and TIME-WAIT (RFC 9293 section 3.4.1 with the 30 s that stacks use for
// a segment's lifetime). MaxQuarantine is the maximum that a Network can set.
const (
	Quarantine    = 2 * time.Minute
	MaxQuarantine = 10 * time.Minute
)
