package health

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestHistoryRemembersTheLatest: a History returns the latest of all entries added.
func TestHistoryRemembersTheLatest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h History
		var results []Past
		var turns []Turn
		now := time.UnixMilli(1_700_000_000_000)
		// A few texts, or texts that never repeat.
		often := rapid.Bool().Draw(t, "few words")
		// Transitions in ten events: few, or so many that old ones are dropped, too.
		turning := rapid.SampledFrom([]int{1, 7}).Draw(t, "turns")
		for i := range rapid.IntRange(0, 70).Draw(t, "events") {
			// Clocks jump, and long checks are reported after shorter ones that began later.
			now = now.Add(time.Duration(rapid.IntRange(-5000, 3600_000).Draw(t, "after")) * time.Millisecond)
			words := fmt.Sprint("words ", i)
			if often {
				words = rapid.SampledFrom([]string{"connected", "connection refused", ""}).Draw(t, "words")
			}
			if rapid.IntRange(0, 9).Draw(t, "what") < turning {
				turn := Turn{now, rapid.Bool().Draw(t, "alive"), words}
				h.Turned(turn)
				turns = append(turns, turn)
				continue
			}
			p := Past{
				At: now, Took: time.Duration(rapid.IntRange(0, 1<<32-1).Draw(t, "took")) * time.Microsecond, Words: words,
				Check: uint8(rapid.IntRange(0, 7).Draw(t, "check")), Good: rapid.Bool().Draw(t, "good"), Void: rapid.Bool().Draw(t, "void"),
			}
			h.Add(p)
			results = append(results, p)
			if got, want := h.Results(), results[max(len(results)-KeptResults, 0):]; !slices.Equal(got, want) {
				t.Fatalf("remembers %v, expected %v", got, want)
			}
			if len(h.said) > KeptResults {
				t.Fatalf("%d words for %d results", len(h.said), len(h.results))
			}
		}
		if got, want := h.Turns(), turns[max(len(turns)-KeptTurns, 0):]; !slices.Equal(got, want) {
			t.Fatalf("remembers %v, expected %v", got, want)
		}
		if got, known := h.LastTurn(); known != (len(turns) > 0) || known && got != turns[len(turns)-1] {
			t.Fatalf("turned last %v, expected %v", got, turns)
		}
	})
}

// TestHistoryBoundsWhatItCannotHold: times that are too far apart, or durations that are too long,
// are clamped and affect no other entry.
func TestHistoryBoundsWhatItCannotHold(t *testing.T) {
	var h History
	now := time.UnixMilli(1_700_000_000_000)
	h.Add(Past{At: time.Time{}, Took: -time.Second, Words: "before clocks"})
	h.Add(Past{At: now, Took: 100 * time.Hour, Words: "long"})
	got := h.Results()
	if len(got) != 2 || got[0].Took != 0 || got[0].Words != "before clocks" || !got[1].At.Equal(now) ||
		got[1].Took != (1<<32-1)*time.Microsecond || now.Sub(got[0].At) != (1<<31-1)*time.Millisecond {
		t.Errorf("%v", got)
	}
}
