package lab

import (
	"sort"
	"time"
)

// Request is the result of one request of the load generator.
type Request struct {
	Start, End time.Time
	// Server is the name in the response. Empty if the request failed.
	Server string
	// Fault is why it failed. Empty if it did not.
	Fault string
}

// Window holds the requests between two marks. A request belongs to the window in which it was
// started.
type Window struct {
	Label    string
	requests []Request
}

// Add puts a finished request into the window.
func (w *Window) Add(r Request) { w.requests = append(w.requests, r) }

// Report summarizes a window.
type Report struct {
	Label  string `json:"label"`
	Sent   int    `json:"sent"`
	Failed int    `json:"failed"`
	// Gap is the longest time without service: the longest time between two responses, or, when
	// requests failed, the time from the start of the first that failed to the start of the first
	// after which none failed, if that is longer. It counts single failures as one outage, so it
	// never underestimates.
	Gap     time.Duration  `json:"gap_ns"`
	Servers map[string]int `json:"servers"`
	Faults  map[string]int `json:"faults"`
}

// Report summarizes the window.
func (w *Window) Report() Report {
	r := Report{Label: w.Label, Sent: len(w.requests), Servers: map[string]int{}, Faults: map[string]int{}}
	for _, q := range w.requests {
		if q.Fault != "" {
			r.Failed++
			r.Faults[q.Fault]++
		} else {
			r.Servers[q.Server]++
		}
	}
	r.Gap = max(silence(w.requests), outage(w.requests))
	return r
}

// silence returns the longest time between two responses.
func silence(requests []Request) time.Duration {
	var ends []time.Time
	for _, q := range requests {
		if q.Fault == "" {
			ends = append(ends, q.End)
		}
	}
	sort.Slice(ends, func(i, j int) bool { return ends[i].Before(ends[j]) })
	var longest time.Duration
	for i := 1; i < len(ends); i++ {
		longest = max(longest, ends[i].Sub(ends[i-1]))
	}
	return longest
}

// outage returns the time from the start of the first failed request to the start of the first
// after which none failed, or to the end of the last failed one if none came after it. It returns 0
// if none failed.
func outage(requests []Request) time.Duration {
	sorted := append([]Request(nil), requests...)
	sort.SliceStable(sorted, func(i, j int) bool { return sorted[i].Start.Before(sorted[j].Start) })
	first, last := -1, -1
	for i, q := range sorted {
		if q.Fault == "" {
			continue
		}
		if first < 0 {
			first = i
		}
		last = i
	}
	switch {
	case first < 0:
		return 0
	case last == len(sorted)-1:
		return sorted[last].End.Sub(sorted[first].Start)
	}
	return sorted[last+1].Start.Sub(sorted[first].Start)
}
