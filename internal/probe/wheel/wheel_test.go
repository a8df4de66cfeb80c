package wheel

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// naive is the same as a list that is sorted when it is read.
type naive struct {
	now  uint64
	held map[uint32]uint64
}

func (n *naive) due(to uint64) (out [][2]uint64) {
	for id, at := range n.held {
		if at <= to {
			out = append(out, [2]uint64{at, uint64(id)})
			delete(n.held, id)
		}
	}
	slices.SortFunc(out, func(a, b [2]uint64) int { return slices.Compare(a[:], b[:]) })
	n.now = to
	return out
}

// TestWheelIsASortedList checks that every number added and not removed fires once, at its tick, in
// order.
func TestWheelIsASortedList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		start := rapid.SampledFrom([]uint64{0, 1, 255, 256, 65_535, 1<<24 - 1, 1<<32 - 3, 1 << 40}).Draw(t, "start")
		w, n := New(start), &naive{start, map[uint32]uint64{}}
		distance := rapid.OneOf(rapid.Uint64Range(0, 3), rapid.Uint64Range(0, 600), rapid.Uint64Range(0, 200_000),
			rapid.Uint64Range(0, 1<<26), rapid.SampledFrom([]uint64{255, 256, 257, 65_535, 65_536, 1 << 24, Horizon - 1, Horizon, Horizon + 1, 1 << 36}))
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				id, at := rapid.Uint32Range(0, 40).Draw(t, "id"), n.now+distance.Draw(t, "ahead")
				if _, held := n.held[id]; held {
					t.Skip("held")
				}
				w.Add(id, at)
				n.held[id] = max(at, n.now+1)
			},
			"remove": func(t *rapid.T) {
				id := rapid.Uint32Range(0, 41).Draw(t, "id")
				w.Remove(id)
				delete(n.held, id)
			},
			"advance": func(t *rapid.T) {
				to := n.now + distance.Draw(t, "by")
				if next, some := w.Next(); some && rapid.Bool().Draw(t, "to the next") {
					to = next
				}
				want := n.due(to)
				var got [][2]uint64
				w.Advance(to, func(id uint32, at uint64) { got = append(got, [2]uint64{at, uint64(id)}) })
				if !slices.IsSortedFunc(got, func(a, b [2]uint64) int { return int(a[0]) - int(b[0]) }) {
					t.Fatalf("not in order: %v", got)
				}
				slices.SortFunc(got, func(a, b [2]uint64) int { return slices.Compare(a[:], b[:]) })
				if !slices.Equal(got, want) {
					t.Fatalf("due up to %d: got %v, want %v", to, got, want)
				}
			},
			"": func(t *rapid.T) {
				if w.Len() != len(n.held) || w.Now() != n.now {
					t.Fatalf("%d held at %d, want %d at %d", w.Len(), w.Now(), len(n.held), n.now)
				}
				next, some := w.Next()
				if some != (len(n.held) > 0) {
					t.Fatalf("next: %v with %d held", some, len(n.held))
				}
				for id, at := range n.held {
					if !w.Holds(id) || next > at || next <= n.now {
						t.Fatalf("next is %d at %d, but %d is due at %d", next, n.now, id, at)
					}
				}
			},
		})
	})
}

// TestDueMayAddAndRemove checks that due may add its number again and remove one due at the same
// tick.
func TestDueMayAddAndRemove(t *testing.T) {
	w := New(0)
	for id := range uint32(3) {
		w.Add(id, 5)
	}
	var got []string
	w.Advance(20, func(id uint32, at uint64) {
		got = append(got, fmt.Sprint(id, "@", at))
		w.Remove((id + 1) % 3)
		if at < 15 {
			w.Add(id, at+5)
		}
	})
	if want := []string{"0@5", "2@5", "2@10", "2@15"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestFarAheadCostsNoWalk checks that a long time without due numbers takes few steps.
func TestFarAheadCostsNoWalk(t *testing.T) {
	w := New(0)
	w.Add(0, 1<<40)
	steps := 0
	for {
		next, some := w.Next()
		if !some {
			break
		}
		if steps++; steps > 2*levelSlots+levels {
			t.Fatalf("still at %d after %d steps", w.Now(), steps)
		}
		w.Advance(next, func(uint32, uint64) {})
	}
}

func BenchmarkWheel(b *testing.B) {
	const rules, interval = 140_000, 2500
	w := New(0)
	for id := range uint32(rules) {
		w.Add(id, uint64(id)%interval+1)
	}
	fired := 0
	for b.Loop() {
		w.Advance(w.Now()+1, func(id uint32, at uint64) { w.Add(id, at+interval); fired++ })
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(fired), "ns/fired")
}
