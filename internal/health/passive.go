package health

import "time"

// Silence is how long a server has to answer a SYN before that counts as a failure: a client sends it again then (RFC 6298).
const Silence = time.Second

// PassiveRule says when what clients' own connections came to declares a member dead: at least Failures, all within Within and
// with none accepted since, for Hold, which is above 0.
type PassiveRule struct {
	Failures     uint64
	Within, Hold time.Duration
}

// Handshakes are totals of what clients tried: SYNs, and what was answered to them.
type Handshakes struct {
	Asked, Accepted, Refused uint64
}

// Passive is what is known of one member by connections that others made. The zero value knows nothing.
type Passive struct {
	// samples are totals at the times when they changed: those within Within, and the last one before.
	samples []sample
	// until is how long the member is held dead; zero: it is not.
	until time.Time
}

type sample struct {
	at time.Time
	Handshakes
}

// Observe takes the totals at a time, which never goes back, and tells whether the member is held dead. Totals that fell are of
// another count, which begins then.
func (p *Passive) Observe(now time.Time, h Handshakes, rule PassiveRule) (dead bool) {
	last := len(p.samples) - 1
	switch {
	case last < 0:
	case h.Asked < p.samples[last].Asked || h.Accepted != p.samples[last].Accepted || h.Refused < p.samples[last].Refused:
		// Whatever failed before the server accepted one says nothing now.
		p.samples = p.samples[:0]
	}
	if !p.until.IsZero() {
		// What is tried meanwhile was sent before the member was taken out.
		p.samples = append(p.samples[:0], sample{now, h})
		if now.Before(p.until) {
			return true
		}
		p.until = time.Time{}
	}
	if last := len(p.samples) - 1; last < 0 || p.samples[last].Handshakes != h {
		p.samples = append(p.samples, sample{now, h})
	}
	p.forget(now.Add(-rule.Within))
	if p.failures(now) < max(rule.Failures, 1) {
		return false
	}
	p.until = now.Add(rule.Hold)
	p.samples = append(p.samples[:0], sample{now, h})
	return true
}

// forget drops samples before the last one that is not after a time.
func (p *Passive) forget(before time.Time) {
	first := 0
	for first < len(p.samples)-1 && !p.samples[first+1].at.After(before) {
		first++
	}
	p.samples = p.samples[:copy(p.samples, p.samples[first:])]
}

// failures are the refusals since the first sample, and the SYNs since then that were not answered in time.
func (p *Passive) failures(now time.Time) uint64 {
	first, last := p.samples[0], p.samples[len(p.samples)-1]
	refused, old := last.Refused-first.Refused, uint64(0)
	for _, s := range p.samples {
		if s.at.After(now.Add(-Silence)) {
			break
		}
		old = s.Asked - first.Asked
	}
	return max(refused, old)
}
