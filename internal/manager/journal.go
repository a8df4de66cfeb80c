package manager

import (
	"fmt"
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
	// value is kept of events only.
	value []byte
	// objects are the hashes of what its events are about.
	objects map[uint32]bool
	// refused: it holds nothing but refusals.
	refused bool
}

// journal is what the store holds under one directory of entries that only time removes: events, or the audit log. It
// is part of the view; its lock is an inner one of the view's.
type journal struct {
	dir string
	// read fills in what is to be remembered of a page's value.
	read func(p *page, value []byte) error

	mu    sync.Mutex
	pages []*page // by number; those that were removed are nil
	byKey map[string]*page
	first uint64 // number of pages[0]
	bytes int64
	// refusedBytes are those of pages with nothing but refusals.
	refusedBytes int64
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
	p := &page{key: ev.KV.Key, at: at, size: int64(len(ev.KV.Key) + len(ev.KV.Value)), number: j.first + uint64(len(j.pages))}
	if err := j.read(p, ev.KV.Value); err != nil {
		return err
	}
	j.pages = append(j.pages, p)
	j.byKey[p.key] = p
	j.bytes += p.size
	if p.refused {
		j.refusedBytes += p.size
	}
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
	j.pages[p.number-j.first] = nil
	j.bytes -= p.size
	if p.refused {
		j.refusedBytes -= p.size
	}
	for len(j.pages) > 0 && j.pages[0] == nil {
		j.pages, j.first = j.pages[1:], j.first+1
	}
}

// since returns the pages from a number on that are not older than a time, the number after the last one, and the
// channel that closes when there is another.
func (j *journal) since(number uint64, at time.Time) (out []*page, next uint64, grown <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	from := max(number, j.first) - j.first
	for _, p := range j.pages[min(from, uint64(len(j.pages))):] {
		if p != nil && !p.at.Before(at) {
			out = append(out, p)
		}
	}
	return out, j.first + uint64(len(j.pages)), j.grown
}

// bounds are how much of a journal is kept.
type bounds struct {
	bytes int64
	age   time.Duration
	// refused bounds pages of refusals; 0: they count as others do.
	refused int64
}

// excess are the oldest pages that must go so that there is room for more bytes, moreRefused of them of refusals; at most
// most of them.
func (j *journal) excess(b bounds, more, moreRefused int64, now time.Time, most int) (keys []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	bytes, refused := j.bytes+more, j.refusedBytes+moreRefused
	oldest := now.Add(-b.age)
	for _, p := range j.pages {
		if len(keys) >= most || p != nil && bytes <= b.bytes && (b.refused == 0 || refused <= b.refused) && !p.at.Before(oldest) {
			break
		}
		if p == nil || bytes <= b.bytes && !p.at.Before(oldest) && !p.refused {
			continue
		}
		keys = append(keys, p.key)
		bytes -= p.size
		if p.refused {
			refused -= p.size
		}
	}
	return keys
}
