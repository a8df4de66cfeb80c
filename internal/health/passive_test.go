package health

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestPassiveAgainstNaive: the member is held dead exactly when an evaluation of all samples gives
// that.
func TestPassiveAgainstNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rule := PassiveRule{
			Failures: rapid.Uint64Range(1, 5).Draw(t, "failures"), Within: time.Duration(rapid.IntRange(1, 8).Draw(t, "within")) * 500 * time.Millisecond,
			Hold: time.Duration(rapid.IntRange(1, 6).Draw(t, "hold")) * time.Second,
		}
		var p Passive
		var seen []sample
		var until time.Time
		now, total := time.Unix(1000, 0), Handshakes{}
		for range rapid.IntRange(1, 60).Draw(t, "polls") {
			now = now.Add(time.Duration(rapid.IntRange(1, 5).Draw(t, "wait")) * 250 * time.Millisecond)
			if rapid.IntRange(0, 15).Draw(t, "count anew") == 0 {
				total = Handshakes{}
			}
			total.Asked += rapid.Uint64Range(0, 2).Draw(t, "asked")
			if rapid.IntRange(0, 3).Draw(t, "answer") == 0 {
				total.Accepted += rapid.Uint64Range(0, 1).Draw(t, "accepted")
				total.Refused += rapid.Uint64Range(0, 2).Draw(t, "refused")
			}
			seen = append(seen, sample{now, total})
			want := now.Before(until)
			if !want {
				if n := naiveFailures(seen, until, rule.Within); n >= rule.Failures {
					want, until = true, now.Add(rule.Hold)
					seen = seen[len(seen)-1:]
				}
			}
			if got := p.Observe(now, total, rule); got != want {
				t.Fatalf("at %v: dead %v, want %v", now, got, want)
			}
			if len(p.samples) > int(rule.Failures)+6 {
				t.Fatalf("%d samples are kept", len(p.samples))
			}
		}
	})
}

// naiveFailures counts over all samples: those after the last acceptance, after the end of the last
// hold, and within the time.
func naiveFailures(all []sample, until time.Time, within time.Duration) uint64 {
	last := len(all) - 1
	now := all[last].at
	from := last
	for i := last; i >= 0; i-- {
		s := all[i]
		if s.at.Before(until) {
			break
		}
		if i < last {
			next := all[i+1]
			if next.Accepted != s.Accepted || next.Asked < s.Asked || next.Refused < s.Refused {
				break
			}
		}
		if from = i; !s.at.After(now.Add(-within)) {
			break
		}
	}
	first, old := all[from], uint64(0)
	for _, s := range all[from:] {
		if !s.at.After(now.Add(-Silence)) {
			old = s.Asked - first.Asked
		}
	}
	return max(all[last].Refused-first.Refused, old)
}

// TestPassiveStories: examples from operation.
func TestPassiveStories(t *testing.T) {
	rule := PassiveRule{Failures: 3, Within: 10 * time.Second, Hold: 30 * time.Second}
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	cases := map[string]struct {
		polls []Handshakes // one a second
		dead  int          // the first second at which it is held dead; -1: never
	}{
		"a server that refuses":              {[]Handshakes{{}, {1, 0, 1}, {2, 0, 2}, {3, 0, 3}}, 3},
		"a server that is silent":            {[]Handshakes{{}, {1, 0, 0}, {2, 0, 0}, {3, 0, 0}, {3, 0, 0}}, 4},
		"one that accepts now and then":      {[]Handshakes{{}, {2, 0, 2}, {3, 1, 2}, {5, 1, 4}, {6, 2, 4}}, -1},
		"one that nobody asks":               {[]Handshakes{{}, {}, {}, {}}, -1},
		"refusals that are rare":             {[]Handshakes{{}, {1, 0, 1}, {1, 0, 1}, {1, 0, 1}, {1, 0, 1}, {1, 0, 1}, {1, 0, 1}, {2, 0, 2}, {2, 0, 2}, {2, 0, 2}, {2, 0, 2}, {2, 0, 2}, {3, 0, 3}}, -1},
		"failures from before anyone looked": {[]Handshakes{{100, 0, 100}, {100, 0, 100}}, -1},
	}
	for name, c := range cases {
		var p Passive
		got := -1
		for s, h := range c.polls {
			if p.Observe(at(s), h, rule) && got < 0 {
				got = s
			}
		}
		if got != c.dead {
			t.Errorf("%s: dead at %d, want %d", name, got, c.dead)
		}
	}
}
