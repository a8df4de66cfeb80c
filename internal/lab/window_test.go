package lab

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// naiveGap examines every millisecond of a window.
func naiveGap(requests []Request, origin time.Time) time.Duration {
	const horizon = 3000
	at := func(t time.Time) int { return int(t.Sub(origin) / time.Millisecond) }
	var answered, failed, started [horizon]bool
	anyFailed, lastFailed, lastEnd := false, -1, 0
	for _, q := range requests {
		started[at(q.Start)] = true
		if q.Fault != "" {
			anyFailed, failed[at(q.Start)] = true, true
			if s := at(q.Start); s > lastFailed {
				lastFailed, lastEnd = s, at(q.End)
			}
			continue
		}
		answered[at(q.End)] = true
	}
	longest, before := 0, -1
	for ms := range horizon {
		if answered[ms] {
			if before >= 0 {
				longest = max(longest, ms-before)
			}
			before = ms
		}
	}
	if anyFailed {
		first := 0
		for !failed[first] {
			first++
		}
		end := lastEnd
		for ms := lastFailed + 1; ms < horizon; ms++ {
			if started[ms] {
				end = ms
				break
			}
		}
		longest = max(longest, end-first)
	}
	return time.Duration(longest) * time.Millisecond
}

func TestGapAgainstNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		origin := time.Unix(1e9, 0)
		var w Window
		sent, failed := 0, 0
		for _, ms := range rapid.SliceOfDistinct(rapid.IntRange(0, 2000), rapid.ID[int]).Draw(t, "starts") {
			start := origin.Add(time.Duration(ms) * time.Millisecond)
			r := Request{Start: start, End: start.Add(time.Duration(rapid.IntRange(0, 900).Draw(t, "took")) * time.Millisecond), Server: "vm"}
			if rapid.Bool().Draw(t, "failed") {
				r.Server, r.Fault = "", "timeout"
				failed++
			}
			sent++
			w.Add(r)
		}
		got := w.Report()
		if want := naiveGap(w.requests, origin); got.Gap != want {
			t.Fatalf("gap %s, want %s", got.Gap, want)
		}
		if got.Sent != sent || got.Failed != failed || got.Servers["vm"] != sent-failed || got.Faults["timeout"] != failed {
			t.Fatalf("report %+v, want %d sent and %d failed", got, sent, failed)
		}
	})
}
