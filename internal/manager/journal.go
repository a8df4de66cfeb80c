package manager

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/shuntlb/shunt/internal/store"
)

// page is one key of a journal: entries that were written together. It is never modified.
type page struct {
	key string
	// at is the write time, from the key.
	at   time.Time
	size int64
	// number orders pages by the time of their fold.
	number uint64
	// rev is the store revision that wrote the page.
	rev int64
	// value is set only for events.
	value []byte
	// objects holds the hashes of the objects that its events concern.
	objects map[uint32]bool
	class   pageClass
	// parts holds the shares of the owners of its entries. They sum to size bytes.
	parts []pagePart
}

// pageClass is a class of pages that has a bound of its own. A page with entries of several classes
// is pageUsual.
type pageClass uint8

const (
	pageUsual pageClass = iota
	// pageTenants: all entries are events of tenants, or calls of role tenant.
	pageTenants
	// pageRefused: all entries are refusals.
	pageRefused
	pageClasses
)

// classBytes holds a number of bytes per class.
type classBytes [pageClasses]int64

// sum returns the bytes of all classes.
func (c *classBytes) sum() (bytes int64) {
	for _, n := range c {
		bytes += n
	}
	return bytes
}

// numbered is a page's place in the order of a journal.
type numbered struct {
	number uint64
	page   *page // nil if it was removed
}

// journal holds the entries of one store directory, events or the audit log, which only time
// removes. It is part of the view. Its lock is acquired inside the view's lock.
type journal struct {
	dir string
	// read sets the fields of p that come from a page's value.
	read func(p *page, value []byte) error

	mu sync.Mutex
	// pages is sorted by number. Removed pages stay as nil until they outnumber the others.
	pages []numbered
	byKey map[string]*page
	next  uint64 // number of the next page
	// bytesOf holds the bytes of each class.
	bytesOf classBytes
	// held holds the bytes of each owner, in classes other than pageUsual.
	held map[pageShare]int64
	// grown is closed and replaced when a page is added.
	grown chan struct{}
}

func newJournal(dir string, read func(*page, []byte) error) *journal {
	return &journal{dir: dir, read: read, byKey: map[string]*page{}, held: map[pageShare]int64{}, grown: make(chan struct{})}
}

// pageKey returns the key of a page. Keys are ordered by time, and no two terms create the same
// key.
func pageKey(dir string, at time.Time, epoch int64, n uint64) string {
	return fmt.Sprintf("%s%019d-%d-%06d", dir, at.UnixNano(), epoch, n)
}

// pageTime returns the time in a page's key.
func pageTime(dir, key string) (time.Time, error) {
	nanos, _, _ := strings.Cut(strings.TrimPrefix(key, dir), "-")
	n, err := strconv.ParseInt(nanos, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("must be NANOSECONDS-EPOCH-NUMBER: %w", err)
	}
	return time.Unix(0, n), nil
}

// fold applies one change of the store.
func (j *journal) fold(ev store.Event) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.removeLocked(ev.KV.Key)
	if ev.Deleted {
		return nil
	}
	at, err := pageTime(j.dir, ev.KV.Key)
	if err != nil {
		return err
	}
	p := &page{key: ev.KV.Key, at: at, size: int64(len(ev.KV.Key) + len(ev.KV.Value)), number: j.next, rev: ev.KV.ModRevision}
	if err := j.read(p, ev.KV.Value); err != nil {
		return err
	}
	p.spread()
	j.pages = append(j.pages, numbered{p.number, p})
	j.next++
	j.byKey[p.key] = p
	j.countLocked(p, 1)
	close(j.grown)
	j.grown = make(chan struct{})
	return nil
}

// spread adds the bytes of a page that belong to no entry to its parts.
func (p *page) spread() {
	rest := p.size
	for _, part := range p.parts {
		rest -= part.bytes
	}
	for i := range p.parts {
		n := rest / int64(len(p.parts)-i)
		p.parts[i].bytes += n
		rest -= n
	}
}

// countLocked counts a page that is added (sign 1) or removed (sign -1).
func (j *journal) countLocked(p *page, sign int64) {
	j.bytesOf[p.class] += sign * p.size
	for _, part := range p.parts {
		s := pageShare{p.class, part.owner}
		if j.held[s] += sign * part.bytes; j.held[s] == 0 {
			delete(j.held, s)
		}
	}
}

// heldBy returns the bytes of an owner in a class.
func (j *journal) heldBy(s pageShare) int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.held[s]
}

func (j *journal) removeLocked(key string) {
	p := j.byKey[key]
	if p == nil {
		return
	}
	delete(j.byKey, key)
	at, _ := j.placeLocked(p.number)
	j.pages[at].page = nil
	j.countLocked(p, -1)
	if len(j.pages) > 2*len(j.byKey)+1 {
		j.pages = slices.DeleteFunc(j.pages, func(p numbered) bool { return p.page == nil })
	}
}

// placeLocked returns the index of the page with this number, or of the first one after it.
func (j *journal) placeLocked(number uint64) (int, bool) {
	return slices.BinarySearchFunc(j.pages, number, func(p numbered, number uint64) int { return cmp.Compare(p.number, number) })
}

// since returns the pages from a number on that are not older than at, the number after the last
// one, and the channel that is closed when a page is added.
func (j *journal) since(number uint64, at time.Time) (out []*page, next uint64, grown <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	from, _ := j.placeLocked(number)
	for _, p := range j.pages[from:] {
		if p.page != nil && !p.page.at.Before(at) {
			out = append(out, p.page)
		}
	}
	return out, j.next, j.grown
}

// bounds limits the size and the age of a journal.
type bounds struct {
	bytes int64
	age   time.Duration
	// of limits the pages of each class in addition. 0: no limit.
	of classBytes
}

// excess returns the keys of the pages to remove, at most most of them, so that the bounds hold
// after more bytes are added per class. It removes the pages that are too old. Then it brings each
// class within its bound; see removal.shrink. If all pages together still have too many bytes, the
// oldest of pageUsual follow. Hence neither a class with a bound of its own nor one owner in it
// takes the room of another: pageUsual has at least the bytes that the bounds of the other classes
// leave. A class is bounded before the total, because a class may exceed its bound by far: entries
// of changes are written by the changes, which remove nothing.
func (j *journal) excess(b bounds, more classBytes, now time.Time, most int) []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	r := removal{most: most, have: j.bytesOf, held: maps.Clone(j.held), gone: map[*page]bool{}}
	for c, n := range more {
		r.have[c] += n
	}
	oldest := now.Add(-b.age)
	for _, n := range j.pages {
		if n.page != nil && !n.page.at.Before(oldest) || r.full() {
			break
		}
		r.remove(n.page)
	}
	for c := range pageClasses {
		if b.of[c] != 0 && r.have[c] > b.of[c] {
			r.shrink(j.pages, c, b.of[c])
		}
	}
	// all: the bounds of classes may exceed the journal's bound
	for _, all := range []bool{false, true} {
		for _, n := range j.pages {
			if r.have.sum() <= b.bytes || r.full() {
				break
			}
			if n.page != nil && (all || n.page.class == pageUsual) {
				r.remove(n.page)
			}
		}
	}
	return r.keys
}

// removal collects the pages that excess removes.
type removal struct {
	most int
	keys []string
	gone map[*page]bool
	// have and held are bytesOf and held of the journal without the pages in gone.
	have classBytes
	held map[pageShare]int64
}

func (r *removal) full() bool { return len(r.keys) >= r.most }

// remove adds a page, unless it is nil or already in gone.
func (r *removal) remove(p *page) {
	if p == nil || r.gone[p] {
		return
	}
	r.gone[p] = true
	r.keys = append(r.keys, p.key)
	r.have[p.class] -= p.size
	for _, part := range p.parts {
		r.held[pageShare{p.class, part.owner}] -= part.bytes
	}
}

// shrink removes pages of a class until it has at most bound bytes. Each step removes the oldest
// page with entries of the largest owner only. If no owner with such a page has more than one of
// ownerShares, it removes the oldest page of the class. Pages of several owners hold at most one
// share of each, so that an owner takes at most that much room from others.
func (r *removal) shrink(pages []numbered, c pageClass, bound int64) {
	var all []*page
	own := map[string][]*page{}
	for _, n := range pages {
		if p := n.page; p != nil && p.class == c && !r.gone[p] {
			all = append(all, p)
			if len(p.parts) == 1 {
				own[p.parts[0].owner] = append(own[p.parts[0].owner], p)
			}
		}
	}
	for r.have[c] > bound && !r.full() {
		for len(all) > 0 && r.gone[all[0]] {
			all = all[1:]
		}
		if len(all) == 0 {
			return
		}
		oldest, largest, bytes := all[0], "", bound/ownerShares
		for owner, of := range own {
			for len(of) > 0 && r.gone[of[0]] {
				of = of[1:]
			}
			if own[owner] = of; len(of) == 0 {
				delete(own, owner)
				continue
			}
			n := r.held[pageShare{c, owner}]
			if n > bytes || n == bytes && bytes > bound/ownerShares && owner < largest {
				oldest, largest, bytes = of[0], owner, n
			}
		}
		r.remove(oldest)
	}
}
