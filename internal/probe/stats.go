package probe

import (
	"slices"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

// Bounds are the upper ends of a Histogram's buckets but the last, which has none.
var Bounds = [...]time.Duration{
	100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond, time.Millisecond, 2 * time.Millisecond, 3 * time.Millisecond,
	5 * time.Millisecond, 10 * time.Millisecond, 15 * time.Millisecond, 20 * time.Millisecond, 30 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second,
}

// Histogram counts durations.
type Histogram struct {
	// Counts are those up to each of Bounds, without those of the bucket before, and last those above all.
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

// Quantile is a bound that the share q of what was counted does not pass; the largest there is for what lies above all.
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

// Stats is what an Engine has done since it was made.
type Stats struct {
	// Targets are probed; of these Queued wait to be asked and Out for their answer.
	Targets, Queued, Out int
	// Unaskable are wanted beside these, and never asked: no means takes them. Why is what kept the latest of them from it.
	Unaskable int
	Why       string
	// Crowded are those that packets had no room for (ErrCrowded): sockets ask them, or nobody.
	Crowded int
	// Direct are those with a tunnel that sockets ask without it.
	Direct int
	// Met is what the means met.
	Met
	// Good, Bad and Void are results. Unsure are answers of a means after which another was asked.
	Good, Bad, Void, Unsure uint64
	// Late are probes that began more than an interval late, or were left out for being so.
	Late uint64
	// Start is how late planned probes began, Took how long good ones took.
	Start, Took Histogram
	// Kinds are the results by the kind of the check, in the order of lb.CheckKinds; last those of kinds that this version does not
	// know.
	Kinds []KindStats
	// Means are the ways to ask, in the order of Options.
	Means []MeansStats
}

// MeansStats is what one way to ask has to do.
type MeansStats struct {
	Name string
	// Targets it asks now; Out of these wait for their answer.
	Targets, Out int
	// Asked are probes.
	Asked uint64
}

// KindStats is what checks of one kind came to.
type KindStats struct {
	// Name is the kind as it is written: "https".
	Name string
	// Good, Bad and Void are results.
	Good, Bad, Void uint64
	// Took is how long good ones took.
	Took Histogram
}

// newKinds has no results yet.
func newKinds() []KindStats {
	out := make([]KindStats, len(lb.CheckKinds)+1)
	for i, kind := range lb.CheckKinds {
		out[i].Name = kind
	}
	out[len(lb.CheckKinds)].Name = "other"
	return out
}

// kindPlace is the place of a check's kind in Stats.Kinds.
func kindPlace(c *lb.Check) int {
	if at := slices.Index(lb.CheckKinds, c.KindText()); at >= 0 {
		return at
	}
	return len(lb.CheckKinds)
}

// sumKinds makes the totals those of all kinds.
func (s *Stats) sumKinds() {
	for i := range s.Kinds {
		k := &s.Kinds[i]
		s.Good, s.Bad, s.Void = s.Good+k.Good, s.Bad+k.Bad, s.Void+k.Void
		s.Took.add(&k.Took)
	}
}

// add counts what another histogram counted.
func (h *Histogram) add(other *Histogram) {
	for i, n := range other.Counts {
		h.Counts[i] += n
	}
	h.Sum += other.Sum
}
