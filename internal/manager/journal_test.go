package manager

import (
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/store"
)

// TestJournalBounds compares excess with a model that searches for one page after the other.
// Without the pages of excess the journal keeps its bounds.
func TestJournalBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := newJournal("/a/", func(p *page, value []byte) error {
			if p.class = pageClass(value[0]); p.class != pageUsual {
				for _, owner := range value[2 : 2+value[1]] {
					p.parts = append(p.parts, pagePart{string(owner), 1})
				}
			}
			return nil
		})
		now := time.Unix(1_700_000_000, 0)
		for i := range rapid.IntRange(0, 30).Draw(t, "pages") {
			now = now.Add(time.Duration(rapid.IntRange(0, 100).Draw(t, "later")) * time.Second)
			owners := rapid.SliceOfNDistinct(rapid.SampledFrom([]byte("abcd")), 1, 3, rapid.ID).Draw(t, "owners")
			value := append([]byte{byte(rapid.IntRange(0, int(pageClasses)-1).Draw(t, "class")), byte(len(owners))}, owners...)
			value = append(value, make([]byte, rapid.IntRange(0, 50).Draw(t, "size"))...)
			key := pageKey("/a/", now, 3, uint64(i))
			if err := j.fold(store.Event{KV: store.KV{Key: key, Value: value}}); err != nil {
				t.Fatal(err)
			}
			if i > 0 && rapid.IntRange(0, 5).Draw(t, "gone") == 0 {
				if err := j.fold(store.Event{KV: store.KV{Key: key}, Deleted: true}); err != nil {
					t.Fatal(err)
				}
			}
		}
		b := bounds{
			bytes: int64(rapid.IntRange(0, 4000).Draw(t, "bytes")),
			of: classBytes{
				pageTenants: int64(rapid.IntRange(1, 8000).Draw(t, "tenants' bytes")),
				pageRefused: int64(rapid.IntRange(1, 8000).Draw(t, "refused bytes")),
			},
			age: time.Duration(rapid.IntRange(0, 4000).Draw(t, "age")) * time.Second,
		}
		var more classBytes
		for c := range more {
			more[c] = int64(rapid.IntRange(0, 8000).Draw(t, "more"))
		}

		left, _, _ := j.since(0, time.Time{})
		checkHeld(t, j, left)
		var want []string
		remove := func(p *page) {
			want = append(want, p.key)
			left = slices.DeleteFunc(slices.Clone(left), func(o *page) bool { return o == p })
		}
		size := func(of func(pageClass) bool) (n int64) {
			for _, p := range left {
				if of(p.class) {
					n += p.size
				}
			}
			for c, m := range more {
				if of(pageClass(c)) {
					n += m
				}
			}
			return n
		}
		first := func(of func(*page) bool) *page {
			if i := slices.IndexFunc(left, of); i >= 0 {
				return left[i]
			}
			return nil
		}
		for p := first(func(p *page) bool { return p.at.Before(now.Add(-b.age)) }); p != nil; p = first(func(p *page) bool { return p.at.Before(now.Add(-b.age)) }) {
			remove(p)
		}
		for c := pageTenants; c < pageClasses; c++ {
			for size(func(o pageClass) bool { return o == c }) > b.of[c] {
				p, largest := first(func(p *page) bool { return p.class == c }), b.of[c]/ownerShares
				for _, owner := range []string{"a", "b", "c", "d"} {
					held := int64(0)
					for _, p := range left {
						for _, part := range p.parts {
							if p.class == c && part.owner == owner {
								held += part.bytes
							}
						}
					}
					own := first(func(p *page) bool { return p.class == c && len(p.parts) == 1 && p.parts[0].owner == owner })
					if own != nil && held > largest {
						p, largest = own, held
					}
				}
				if p == nil {
					break
				}
				remove(p)
			}
		}
		for size(func(pageClass) bool { return true }) > b.bytes && len(left) > 0 {
			p := first(func(p *page) bool { return p.class == pageUsual })
			if p == nil {
				p = left[0]
			}
			remove(p)
		}
		got := j.excess(b, more, now, 1000)
		if !slices.Equal(got, want) {
			t.Fatalf("got %q, want %q", got, want)
		}
		if n := len(want) / 2; !slices.Equal(j.excess(b, more, now, n), want[:n]) {
			t.Fatalf("at most %d: got %q, want %q", n, j.excess(b, more, now, n), want[:n])
		}
		for _, key := range want {
			if err := j.fold(store.Event{KV: store.KV{Key: key}, Deleted: true}); err != nil {
				t.Fatal(err)
			}
		}
		checkHeld(t, j, left)
		if again := j.excess(b, more, now, 1000); len(again) != 0 {
			t.Fatalf("after it: %q", again)
		}
		pages, next, _ := j.since(0, time.Time{})
		if !slices.Equal(pages, left) {
			t.Fatalf("%d pages are left, want %d", len(pages), len(left))
		}
		if again, _, _ := j.since(next, time.Time{}); len(again) != 0 {
			t.Fatalf("after the last one: %v", again)
		}
	})
}

// checkHeld compares the byte counts of a journal with its pages.
func checkHeld(t *rapid.T, j *journal, pages []*page) {
	held, bytesOf := map[pageShare]int64{}, classBytes{}
	for _, p := range pages {
		bytesOf[p.class] += p.size
		bytes := int64(0)
		for _, part := range p.parts {
			held[pageShare{p.class, part.owner}] += part.bytes
			bytes += part.bytes
		}
		if len(p.parts) > 0 && bytes != p.size {
			t.Fatalf("the parts of a page of %d bytes have %d", p.size, bytes)
		}
	}
	if !maps.Equal(held, j.held) || bytesOf != j.bytesOf {
		t.Fatalf("held %v, %v, want %v, %v", j.held, j.bytesOf, held, bytesOf)
	}
}

// TestJournalForgetsTheMiddle: one old page that stays does not keep memory for the removed pages
// after it.
func TestJournalForgetsTheMiddle(t *testing.T) {
	j := newJournal("/a/", func(*page, []byte) error { return nil })
	put := func(n uint64) string {
		key := pageKey("/a/", time.Unix(int64(n), 0), 1, n)
		if err := j.fold(store.Event{KV: store.KV{Key: key, Value: []byte{1}}}); err != nil {
			t.Fatal(err)
		}
		return key
	}
	put(0)
	for n := range uint64(1000) {
		key := put(n + 1)
		if err := j.fold(store.Event{KV: store.KV{Key: key}, Deleted: true}); err != nil {
			t.Fatal(err)
		}
		if len(j.pages) > 4 {
			t.Fatalf("room for %d pages, one is left", len(j.pages))
		}
	}
	_, seen, _ := j.since(0, time.Time{})
	last := put(1001)
	if pages, _, _ := j.since(seen, time.Time{}); len(pages) != 1 || pages[0].key != last {
		t.Errorf("after the %d that were seen: %v, want %s", seen, pages, last)
	}
}

func TestPageKeysAreOrdered(t *testing.T) {
	before := pageKey(dirEvents, time.Unix(1, 0), 9, 9)
	after := pageKey(dirEvents, time.Unix(1_800_000_000, 5), 1, 1)
	if before >= after {
		t.Errorf("%s must be before %s", before, after)
	}
	if at, err := pageTime(dirEvents, after); err != nil || !at.Equal(time.Unix(1_800_000_000, 5)) {
		t.Errorf("%s: %v, %v", after, at, err)
	}
	if _, err := pageTime(dirEvents, dirEvents+"x-1-1"); err == nil {
		t.Error("a key without a time was read")
	}
}
