package load

import (
	"cmp"
	"time"
)

// Pace is how often the fastest of the hosts that were heard lately looks at its servers. The zero Pace has heard nothing.
type Pace struct {
	every time.Duration
	at    time.Time
}

// Heard takes in loads that came at a time.
func (p *Pace) Heard(members []Member, now time.Time) {
	for _, m := range members {
		if i := m.Interval(); i <= p.Every(now) {
			p.every, p.at = i, now
		}
	}
}

// Every is the time between two looks of that host: never longer than SampleEvery.
func (p *Pace) Every(now time.Time) time.Duration {
	if now.Sub(p.at) >= StaleAfter {
		return SampleEvery
	}
	return min(cmp.Or(p.every, SampleEvery), SampleEvery)
}
