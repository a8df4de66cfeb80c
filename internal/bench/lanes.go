package bench

import (
	"slices"
	"time"
)

// lanes keeps book of probes from a fixed set of source ports. A router with layer-4 ECMP sends all packets of one lane
// through one mux, so that what a mux does not forward shows as a lane without answers.
type lanes struct {
	first, last []time.Time // zero: no answer yet
	gap         []time.Duration
	answers     uint64
}

func newLanes(n int) *lanes {
	return &lanes{first: make([]time.Time, n), last: make([]time.Time, n), gap: make([]time.Duration, n)}
}

// answer books an answer. Times of one lane must not go backwards.
func (l *lanes) answer(lane int, at time.Time) {
	l.answers++
	if l.first[lane].IsZero() {
		l.first[lane] = at
	} else {
		l.gap[lane] = max(l.gap[lane], at.Sub(l.last[lane]))
	}
	l.last[lane] = at
}

// all returns when the last of the lanes got its first answer; false while one has none.
func (l *lanes) all() (time.Time, bool) {
	at := slices.MaxFunc(l.first, time.Time.Compare)
	return at, !slices.ContainsFunc(l.first, time.Time.IsZero)
}

// longest returns the longest time any lane was without an answer, the stretch up to now included. Lanes that were
// never answered count from since.
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
