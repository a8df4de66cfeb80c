package manager

import (
	"cmp"
	"fmt"
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
	// at is when it was written, as the key says.
	at   time.Time
	size int64
	// number orders pages by when they were folded.
	number uint64
	// rev is the revision of the store that wrote it.
	rev int64
	// value is kept of events only.
	value []byte
	// objects are the hashes of what its events are about.
	objects map[uint32]bool
	class   pageClass
}

// pageClass is a class of pages that has a bound of its own. A page with entries of several classes is pageUsual.
type pageClass uint8

const (
	pageUsual pageClass = iota
	// pageTenants: all entries are calls of role tenant.
	pageTenants
	// pageRefused: all entries are refusals.
	pageRefused
	pageClasses
)

// classBytes is a number of bytes by class.
type classBytes [pageClasses]int64

// numbered is a page's place in the order of a journal.
type numbered struct {
	number uint64
	page   *page // nil: it was removed
}

// journal is what the store holds under one directory of entries that only time removes: events, or the audit log. It
// is part of the view; its lock is an inner one of the view's.
type journal struct {
	dir string
	// read fills in what is to be remembered of a page's value.
	read func(p *page, value []byte) error

	mu    sync.Mutex
	pages []numbered // by number; removed ones stay as nil pages until they outnumber the others
	byKey map[string]*page
	next  uint64 // number of the next page
	bytes int64
	// bytesOf are those of each class.
	bytesOf classBytes
	// grown is closed and replaced when there is a new page.
	grown chan struct{}
}

func newJournal(dir string, read func(*page, []byte) error) *journal {
	return &journal{dir: dir, read: read, byKey: map[string]*page{}, grown: make(chan struct{})}
}

// pageKey names a page: keys are ordered by time, and no two terms make the same.
func pageKey(dir string, at time.Time, epoch int64, n uint64) string {
	return fmt.Sprintf("%s%019d-%d-%06d", dir, at.UnixNano(), epoch, n)
}

// pageTime reads the time of a page's key.
func pageTime(dir, key string) (time.Time, error) {
	nanos, _, _ := strings.Cut(strings.TrimPrefix(key, dir), "-")
	n, err := strconv.ParseInt(nanos, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("must be NANOSECONDS-EPOCH-NUMBER: %w", err)
	}
	return time.Unix(0, n), nil
}

// fold takes in one change of the store.
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
	j.pages = append(j.pages, numbered{p.number, p})
	j.next++
	j.byKey[p.key] = p
	j.bytes += p.size
	j.bytesOf[p.class] += p.size
	close(j.grown)
	j.grown = make(chan struct{})
	return nil
}

func (j *journal) removeLocked(key string) {
	p := j.byKey[key]
	if p == nil {
		return
	}
	delete(j.byKey, key)
	at, _ := j.placeLocked(p.number)
	j.pages[at].page = nil
	j.bytes -= p.size
	j.bytesOf[p.class] -= p.size
	if len(j.pages) > 2*len(j.byKey)+1 {
		j.pages = slices.DeleteFunc(j.pages, func(p numbered) bool { return p.page == nil })
	}
}

// placeLocked returns where the page with this number is, or the first one after it.
func (j *journal) placeLocked(number uint64) (int, bool) {
	return slices.BinarySearchFunc(j.pages, number, func(p numbered, number uint64) int { return cmp.Compare(p.number, number) })
}

// since returns the pages from a number on that are not older than a time, the number after the last one, and the
// channel that closes when there is another.
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

// bounds are how much of a journal is kept.
type bounds struct {
	bytes int64
	age   time.Duration
	// of bounds the pages of each class beside that; 0: no bound.
	of classBytes
}

// over reports whether pages of a class have more bytes than they may.
func (b *bounds) over(c pageClass, have *classBytes) bool { return b.of[c] != 0 && have[c] > b.of[c] }

// overAny reports that of any class.
func (b *bounds) overAny(have *classBytes) bool {
	for c := range pageClasses {
		if b.over(c, have) {
			return true
		}
	}
	return false
}

// excess are the oldest pages that must go so that there is room for more bytes, by class; at most most of them.
func (j *journal) excess(b bounds, more classBytes, now time.Time, most int) (keys []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	bytes, have := j.bytes, j.bytesOf
	for c, n := range more {
		bytes += n
		have[c] += n
	}
	oldest := now.Add(-b.age)
	for _, n := range j.pages {
		p := n.page
		if len(keys) >= most || p != nil && bytes <= b.bytes && !b.overAny(&have) && !p.at.Before(oldest) {
			break
		}
		if p == nil || bytes <= b.bytes && !p.at.Before(oldest) && !b.over(p.class, &have) {
			continue
		}
		keys = append(keys, p.key)
		bytes -= p.size
		have[p.class] -= p.size
	}
	return keys
}
