package load

import (
	"cmp"
	"time"
)

// Pace is the sampling interval of the fastest host with a recent report. The zero Pace has
// received no report.
type Pace struct {
	every time.Duration
	at    time.Time
}

// Heard processes loads that arrived at a time.
func (p *Pace) Heard(members []Member, now time.Time) {
	for _, m := range members {
		if i := m.Interval(); i <= p.Every(now) {
			p.every, p.at = i, now
		}
	}
}

// Every returns the sampling interval of that host: never longer than SampleEvery.
func (p *Pace) Every(now time.Time) time.Duration {
	if now.Sub(p.at) >= StaleAfter {
		return SampleEvery
	}
	return min(cmp.Or(p.every, SampleEvery), SampleEvery)
}
