package manager

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/store"
)

// TestJournalBounds: what excess names makes the journal keep its bounds, is the oldest there is, and no more than has
// to go; refusals push out only refusals.
func TestJournalBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := newJournal("/a/", func(p *page, value []byte) error {
			p.refused = value[0] == 'r'
			return nil
		})
		type entry struct {
			key     string
			at      time.Time
			size    int64
			refused bool
		}
		var model []entry
		start := time.Unix(1_700_000_000, 0)
		now := start
		for i := range rapid.IntRange(0, 30).Draw(t, "pages") {
			now = now.Add(time.Duration(rapid.IntRange(0, 100).Draw(t, "later")) * time.Second)
			refused := rapid.Bool().Draw(t, "refused")
			value := make([]byte, rapid.IntRange(1, 50).Draw(t, "size"))
			if refused {
				value[0] = 'r'
			}
			key := pageKey("/a/", now, 3, uint64(i))
			if err := j.fold(store.Event{KV: store.KV{Key: key, Value: value}}); err != nil {
				t.Fatal(err)
			}
			model = append(model, entry{key, now, int64(len(key) + len(value)), refused})
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
			bytes: int64(rapid.IntRange(0, 2000).Draw(t, "bytes")), refused: int64(rapid.IntRange(1, 1000).Draw(t, "refused bytes")),
			age: time.Duration(rapid.IntRange(0, 2000).Draw(t, "age")) * time.Second,
		}
		more := int64(rapid.IntRange(0, 100).Draw(t, "more"))

		// The model: by age first, then refusals beyond theirs, then the oldest until the rest fits; in the order of one pass.
		bytes, refused := more, int64(0)
		for _, e := range model {
			bytes += e.size
			if e.refused {
				refused += e.size
			}
		}
		var want []string
		for _, e := range model {
			if bytes > b.bytes || e.at.Before(now.Add(-b.age)) || e.refused && refused > b.refused {
				want = append(want, e.key)
				bytes -= e.size
				if e.refused {
					refused -= e.size
				}
			}
		}
		if got := j.excess(b, more, 0, now, 1000); !slices.Equal(got, want) {
			t.Fatalf("got %q, want %q", got, want)
		}
		for _, key := range want {
			if err := j.fold(store.Event{KV: store.KV{Key: key}, Deleted: true}); err != nil {
				t.Fatal(err)
			}
		}
		if j.bytes > max(0, b.bytes-more) || j.refusedBytes > b.refused || j.bytes != bytes-more || len(j.excess(b, more, 0, now, 1000)) != 0 {
			t.Fatalf("after it: %d bytes, %d of refusals; bounds %+v", j.bytes, j.refusedBytes, b)
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
