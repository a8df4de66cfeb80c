package bench

import (
	"slices"
	"time"
)

// lanes tracks probes from a fixed set of source ports. A router with layer-4 ECMP sends all
// packets of one lane through one mux, so a mux that does not forward shows as a lane without
// replies.
type lanes struct {
	first, last []time.Time // zero: no reply yet
	gap         []time.Duration
	answers     uint64
}

func newLanes(n int) *lanes {
	return &lanes{first: make([]time.Time, n), last: make([]time.Time, n), gap: make([]time.Duration, n)}
}

// answer records a reply. Times of one lane must not decrease.
func (l *lanes) answer(lane int, at time.Time) {
	l.answers++
	if l.first[lane].IsZero() {
		l.first[lane] = at
	} else {
		l.gap[lane] = max(l.gap[lane], at.Sub(l.last[lane]))
	}
	l.last[lane] = at
}

// all returns when the last of the lanes got its first reply, or false while one has none.
func (l *lanes) all() (time.Time, bool) {
	at := slices.MaxFunc(l.first, time.Time.Compare)
	return at, !slices.ContainsFunc(l.first, time.Time.IsZero)
}

// longest returns the longest time that any lane was without a reply, up to now. Lanes without any
// reply count from since.
func (l *lanes) longest(since, now time.Time) time.Duration {
	var longest time.Duration
	for i := range l.gap {
		last := l.last[i]
		if last.IsZero() {
			last = since
		}
		longest = max(longest, l.gap[i], now.Sub(last))
	}
	return longest
}
