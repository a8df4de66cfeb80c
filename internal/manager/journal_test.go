package manager

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/store"
)

// TestJournalBounds: what excess names makes the journal keep its bounds, is the oldest there is, and no more than has
// to go; those of a class beyond its bound push out no others.
func TestJournalBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := newJournal("/a/", func(p *page, value []byte) error {
			p.class = pageClass(value[0])
			return nil
		})
		type entry struct {
			key   string
			at    time.Time
			size  int64
			class pageClass
		}
		var model []entry
		start := time.Unix(1_700_000_000, 0)
		now := start
		for i := range rapid.IntRange(0, 30).Draw(t, "pages") {
			now = now.Add(time.Duration(rapid.IntRange(0, 100).Draw(t, "later")) * time.Second)
			class := pageClass(rapid.IntRange(0, int(pageClasses)-1).Draw(t, "class"))
			value := make([]byte, rapid.IntRange(1, 50).Draw(t, "size"))
			value[0] = byte(class)
			key := pageKey("/a/", now, 3, uint64(i))
			if err := j.fold(store.Event{KV: store.KV{Key: key, Value: value}}); err != nil {
				t.Fatal(err)
			}
			model = append(model, entry{key, now, int64(len(key) + len(value)), class})
		}
		for _, i := range rapid.SliceOfDistinct(rapid.IntRange(0, 29), rapid.ID).Draw(t, "gone") {
			if i < len(model) && model[i].key != "" {
				if err := j.fold(store.Event{KV: store.KV{Key: model[i].key}, Deleted: true}); err != nil {
					t.Fatal(err)
				}
				model[i].key = ""
			}
		}
		model = slices.DeleteFunc(model, func(e entry) bool { return e.key == "" })
		b := bounds{
			bytes: int64(rapid.IntRange(0, 2000).Draw(t, "bytes")),
			of:    classBytes{pageTenants: int64(rapid.IntRange(1, 1000).Draw(t, "tenants' bytes")), pageRefused: int64(rapid.IntRange(1, 1000).Draw(t, "refused bytes"))},
			age:   time.Duration(rapid.IntRange(0, 2000).Draw(t, "age")) * time.Second,
		}
		var more classBytes
		bytes := int64(0)
		for c := range more {
			more[c] = int64(rapid.IntRange(0, 100).Draw(t, "more"))
			bytes += more[c]
		}
		own, have := bytes, more

		// The model: by age first, then those of a class beyond its bound, then the oldest until the rest fits; in the order of one pass.
		for _, e := range model {
			bytes += e.size
			have[e.class] += e.size
		}
		over := func(c pageClass) bool { return c != pageUsual && have[c] > b.of[c] }
		var want []string
		for _, e := range model {
			if bytes > b.bytes || e.at.Before(now.Add(-b.age)) || over(e.class) {
				want = append(want, e.key)
				bytes -= e.size
				have[e.class] -= e.size
			}
		}
		if got := j.excess(b, more, now, 1000); !slices.Equal(got, want) {
			t.Fatalf("got %q, want %q", got, want)
		}
		for _, key := range want {
			if err := j.fold(store.Event{KV: store.KV{Key: key}, Deleted: true}); err != nil {
				t.Fatal(err)
			}
		}
		if j.bytes > max(0, b.bytes-own) || j.bytes != bytes-own || len(j.excess(b, more, now, 1000)) != 0 {
			t.Fatalf("after it: %d bytes; bounds %+v", j.bytes, b)
		}
		for c, n := range j.bytesOf {
			if n != have[c]-more[c] || over(pageClass(c)) && n > 0 {
				t.Fatalf("after it: %d bytes of class %d, want %d; bounds %+v", n, c, have[c]-more[c], b)
			}
		}
		pages, next, _ := j.since(0, time.Time{})
		if len(pages)+len(want) != len(model) {
			t.Fatalf("%d pages are left of %d", len(pages), len(model))
		}
		if again, _, _ := j.since(next, time.Time{}); len(again) != 0 {
			t.Fatalf("after the last one: %v", again)
		}
	})
}

// TestJournalForgetsTheMiddle: one old page that stays keeps no room for those behind it that went.
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
