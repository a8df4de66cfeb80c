package mux

import "time"

// phase is a mux's drain phase.
type phase int

const (
	// serving: routes are announced.
	serving phase = iota
	// leaving: routes carry GRACEFUL_SHUTDOWN, so that routers move traffic away (RFC 8326).
	leaving
	// gone: no routes.
	gone
)

// drain holds the reasons to drain a mux. The zero value serves.
type drain struct {
	// plan: the Node object requests it. local: an operator on this machine does. last: the mux
	// stops for good.
	plan, local, last bool
	since             time.Time
}

func (d drain) wanted() bool { return d.plan || d.local || d.last }

// set changes the reasons. The drain begins with the first reason and ends with the last.
func (d *drain) set(now time.Time, change func(*drain)) {
	before := d.wanted()
	change(d)
	if d.wanted() && !before {
		d.since = now
	}
}

// phase returns the drain phase at now, if routers have the time wait to move traffic away.
func (d drain) phase(now time.Time, wait time.Duration) phase {
	switch {
	case !d.wanted():
		return serving
	case now.Sub(d.since) < wait:
		return leaving
	}
	return gone
}
