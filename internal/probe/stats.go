package probe

import (
	"slices"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

// Bounds are the upper ends of a Histogram's buckets except the last, which has none.
var Bounds = [...]time.Duration{
	100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond, time.Millisecond, 2 * time.Millisecond, 3 * time.Millisecond,
	5 * time.Millisecond, 10 * time.Millisecond, 15 * time.Millisecond, 20 * time.Millisecond, 30 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second,
}

// Histogram counts durations.
type Histogram struct {
	// Counts has the count of each bucket of Bounds, not cumulative, then that of the durations
	// above all.
	Counts [len(Bounds) + 1]uint64
	Sum    time.Duration
}

func (h *Histogram) observe(d time.Duration) {
	low, high := 0, len(Bounds)
	for low < high {
		if middle := (low + high) / 2; d <= Bounds[middle] {
			high = middle
		} else {
			low = middle + 1
		}
	}
	h.Counts[low]++
	h.Sum += max(d, 0)
}

// Quantile returns the smallest of Bounds that at least the share q of the durations does not
// exceed, or the largest bound if none is enough.
func (h *Histogram) Quantile(q float64) time.Duration {
	var all, seen uint64
	for _, n := range h.Counts {
		all += n
	}
	for i, bound := range Bounds {
		if seen += h.Counts[i]; float64(seen) >= q*float64(all) {
			return bound
		}
	}
	return Bounds[len(Bounds)-1]
}

// Stats holds the counters of an Engine since it was made.
type Stats struct {
	// Targets is the number of probed targets; Queued of them wait for a probe and Out for an
	// answer.
	Targets, Queued, Out int
	// Unaskable counts wanted targets that are not in Targets, because no prober accepts them. Why
	// is the reason for the latest of them.
	Unaskable int
	Why       string
	// Crowded counts targets for which packets had no room (ErrCrowded). Sockets probe them, or no
	// prober does.
	Crowded int
	// Direct counts targets with a tunnel that sockets probe without it.
	Direct int
	// Met is the sum of the probers' counters.
	Met
	// Good, Bad and Void count results. Unsure counts answers after which another prober had to
	// probe.
	Good, Bad, Void, Unsure uint64
	// Late counts probes that began more than an interval late, or were skipped for that.
	Late uint64
	// Start is how late planned probes began, Took how long good ones took.
	Start, Took Histogram
	// Kinds are the results by the kind of the check, in the order of lb.CheckKinds, then those of
	// kinds that this version does not have.
	Kinds []KindStats
	// Means are the probers, in the order of Options.
	Means []MeansStats
}

// MeansStats holds the counters of one prober.
type MeansStats struct {
	Name string
	// Targets is the number it probes now; Out of these wait for their answer.
	Targets, Out int
	// Asked counts probes.
	Asked uint64
}

// KindStats holds the results of checks of one kind.
type KindStats struct {
	// Name is the kind as in the configuration: "https".
	Name string
	// Good, Bad and Void count results.
	Good, Bad, Void uint64
	// Took is how long good ones took.
	Took Histogram
}

// newKinds returns the kinds without results.
func newKinds() []KindStats {
	out := make([]KindStats, len(lb.CheckKinds)+1)
	for i, kind := range lb.CheckKinds {
		out[i].Name = kind
	}
	out[len(lb.CheckKinds)].Name = "other"
	return out
}

// kindPlace returns the index of a check's kind in Stats.Kinds.
func kindPlace(c *lb.Check) int {
	if at := slices.Index(lb.CheckKinds, c.KindText()); at >= 0 {
		return at
	}
	return len(lb.CheckKinds)
}

// sumKinds adds the results of all kinds to the totals.
func (s *Stats) sumKinds() {
	for i := range s.Kinds {
		k := &s.Kinds[i]
		s.Good, s.Bad, s.Void = s.Good+k.Good, s.Bad+k.Bad, s.Void+k.Void
		s.Took.add(&k.Took)
	}
}

// add adds the counts of another histogram.
func (h *Histogram) add(other *Histogram) {
	for i, n := range other.Counts {
		h.Counts[i] += n
	}
	h.Sum += other.Sum
}
