package health

import "time"

// Silence is how long a server has to reply to a SYN before that counts as a failure, because a
// client retransmits it then (RFC 6298).
const Silence = time.Second

// PassiveRule sets when the handshakes of clients declare a member dead: at least Failures, all
// within Within and with none accepted since. It is dead for Hold, which is above 0.
type PassiveRule struct {
	Failures     uint64
	Within, Hold time.Duration
}

// Handshakes are total counts: SYNs of clients, and the replies to them.
type Handshakes struct {
	Asked, Accepted, Refused uint64
}

// Passive is the state of one member by the handshakes of clients. The zero value has none.
type Passive struct {
	// samples are totals at the times when they changed: those within Within, and the last one
	// before that.
	samples []sample
	// until is how long the member is held dead; zero: it is not.
	until time.Time
}

type sample struct {
	at time.Time
	Handshakes
}

// Observe records the totals at a time, which never goes back, and reports whether the member is
// held dead. Totals that decreased belong to a new count, which starts then.
func (p *Passive) Observe(now time.Time, h Handshakes, rule PassiveRule) (dead bool) {
	last := len(p.samples) - 1
	switch {
	case last < 0:
	case h.Asked < p.samples[last].Asked || h.Accepted != p.samples[last].Accepted || h.Refused < p.samples[last].Refused:
		// Failures before an accepted handshake no longer count.
		p.samples = p.samples[:0]
	}
	if !p.until.IsZero() {
		// SYNs that arrive during the hold were sent before the member was removed.
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

// forget drops the samples before the last one that is not after a time.
func (p *Passive) forget(before time.Time) {
	first := 0
	for first < len(p.samples)-1 && !p.samples[first+1].at.After(before) {
		first++
	}
	p.samples = p.samples[:copy(p.samples, p.samples[first:])]
}

// failures returns the number of refusals since the first sample, or of SYNs since then without a
// reply in time, whichever is larger.
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
