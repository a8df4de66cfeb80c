package health

import (
	"testing"

	"pgregory.net/rapid"
)

// oracle decides from the whole history: the state before each result and the results since the
// last transition.
func oracle(adopted *bool, results []bool, rise, fall uint32) bool {
	alive, fresh := false, true
	if adopted != nil {
		alive, fresh = *adopted, false
	}
	since := 0 // results[since:i+1] belong to the current state
	for i, good := range results {
		if fresh && good {
			alive, fresh, since = true, false, i+1
			continue
		}
		need := max(int(fall), 1)
		if !alive {
			need = max(int(rise), 1)
		}
		tail := results[since : i+1]
		if len(tail) < need {
			continue
		}
		against := true
		for _, r := range tail[len(tail)-need:] {
			against = against && r != alive
		}
		if against {
			alive, since = !alive, i+1
		}
	}
	return alive
}

func TestObserveAgreesWithHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rise := rapid.Uint32Range(0, 5).Draw(t, "rise")
		fall := rapid.Uint32Range(0, 5).Draw(t, "fall")
		var adopted *bool
		m := New()
		if rapid.Bool().Draw(t, "known") {
			a := rapid.Bool().Draw(t, "adopted")
			adopted, m = &a, Adopt(a)
		} else if rapid.Bool().Draw(t, "initially up") {
			up := true
			adopted, m = &up, Begin(true)
		}
		if m.Asked() != (adopted != nil) {
			t.Fatalf("asked %v before any result", m.Asked())
		}
		results := rapid.SliceOfN(rapid.Bool(), 0, 60).Draw(t, "results")
		for i, good := range results {
			before := m.Alive()
			flipped := m.Observe(good, rise, fall)
			want := oracle(adopted, results[:i+1], rise, fall)
			if !m.Asked() {
				t.Fatal("not asked after a result")
			}
			if m.Alive() != want {
				t.Fatalf("after %v: alive %v, want %v", results[:i+1], m.Alive(), want)
			}
			if flipped != (before != m.Alive()) {
				t.Fatalf("after %v: flipped %v, but alive went from %v to %v", results[:i+1], flipped, before, m.Alive())
			}
		}
	})
}

func TestFirstGoodProbeIsEnough(t *testing.T) {
	m := New()
	for range 7 {
		if m.Observe(false, 2, 3) {
			t.Fatal("a member that never lived cannot die")
		}
	}
	if !m.Observe(true, 2, 3) || !m.Alive() {
		t.Fatal("the first good probe must bring a new member up")
	}
	for i := range 3 {
		if flipped := m.Observe(false, 2, 3); flipped != (i == 2) {
			t.Fatalf("bad probe %d: flipped %v", i+1, flipped)
		}
	}
	if m.Observe(true, 2, 3) || !m.Observe(true, 2, 3) {
		t.Fatal("a member that died needs rise good probes")
	}
}
