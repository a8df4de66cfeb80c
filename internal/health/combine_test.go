package health

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/lb"
)

// combinations returns whether some, and whether all, outcomes of the checks without a result make
// the member alive.
func combinations(checks []Member, needed int) (some, all bool) {
	for i, c := range checks {
		if c.Asked() {
			continue
		}
		for _, alive := range []bool{false, true} {
			with := append([]Member(nil), checks...)
			with[i] = Adopt(alive)
			s, a := combinations(with, needed)
			if alive {
				return some || s, all && a
			}
			some, all = s, a
		}
	}
	good := 0
	for _, c := range checks {
		if c.Alive() {
			good++
		}
	}
	return good >= needed, good >= needed
}

// TestCombineIsKnownWhenNothingCanChangeIt tries all outcomes of the checks without a result.
func TestCombineIsKnownWhenNothingCanChangeIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := lb.Health{
			Combine: rapid.SampledFrom([]string{lb.CombineAll, lb.CombineAny, lb.CombineAtLeast}).Draw(t, "combine"),
			Checks:  make([]lb.Check, rapid.IntRange(1, lb.MaxChecks).Draw(t, "checks")),
		}
		h.AtLeast = uint8(rapid.IntRange(1, len(h.Checks)).Draw(t, "at least"))
		needed := map[string]int{lb.CombineAll: len(h.Checks), lb.CombineAny: 1, lb.CombineAtLeast: int(h.AtLeast)}[h.Combine]
		if Needed(&h) != needed {
			t.Fatalf("%s of %d needs %d", h.Combine, len(h.Checks), Needed(&h))
		}
		checks, up := make([]Member, len(h.Checks)), 0
		for i := range checks {
			checks[i] = Begin(rapid.Bool().Draw(t, "initially up"))
			for range rapid.IntRange(0, 3).Draw(t, "results") {
				checks[i].Observe(rapid.Bool().Draw(t, "good"), 2, 2)
			}
			if checks[i].Alive() {
				up++
			}
		}
		alive, known := Combine(checks, needed)
		if alive != (up >= needed) {
			t.Fatalf("alive %v with %d of %d good", alive, up, needed)
		}
		if some, all := combinations(checks, needed); known != (some == all) || known && alive != all {
			t.Fatalf("known %v, alive %v, but it may come to %v or %v", known, alive, some, all)
		}
	})
}
