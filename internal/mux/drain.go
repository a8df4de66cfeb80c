package mux

import "time"

// phase is how a mux stands to its traffic.
type phase int

const (
	// serving: routes are announced.
	serving phase = iota
	// leaving: routes carry GRACEFUL_SHUTDOWN, routers move the traffic away (RFC 8326).
	leaving
	// gone: no routes.
	gone
)

// drain is a mux's way out. The zero value serves.
type drain struct {
	// plan: the Node object asks for it. local: an operator on this machine does. last: the mux stops for good.
	plan, local, last bool
	since             time.Time
}

func (d drain) wanted() bool { return d.plan || d.local || d.last }

// set changes who asks; the way out begins with the first and ends when nobody asks any more.
func (d *drain) set(now time.Time, change func(*drain)) {
	before := d.wanted()
	change(d)
	if d.wanted() && !before {
		d.since = now
	}
}

// phase at a time, when routers get wait to move the traffic away.
func (d drain) phase(now time.Time, wait time.Duration) phase {
	switch {
	case !d.wanted():
		return serving
	case now.Sub(d.since) < wait:
		return leaving
	}
	return gone
}
