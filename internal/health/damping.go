package health

import (
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

// Damper keeps a flapping member down, by the policy lb.Damping: a member that came up more than
// Flips times within Within stays down for Hold after it last went down. Transitions here are those
// of the member's checks, whether it is held down or not. The zero value is a member without
// transitions.
type Damper struct {
	// ups are the times of the latest rises, oldest first: those within Within, at most Flips+1.
	ups []time.Time
	// down is when it last fell, until is when it may be up again. Zero: it never fell, or it is
	// not held.
	down, until time.Time
}

// Rose records that a member came up.
func (d *Damper) Rose(now time.Time, p lb.Damping) {
	for len(d.ups) > 0 && (now.Sub(d.ups[0]) >= p.Within || len(d.ups) > int(p.Flips)) {
		d.ups = append(d.ups[:0], d.ups[1:]...)
	}
	d.ups = append(d.ups, now)
	if until := d.down.Add(p.Hold); len(d.ups) > int(p.Flips) && !d.down.IsZero() && until.After(now) {
		d.until = until
	}
}

// Fell records that a member went down.
func (d *Damper) Fell(now time.Time, p lb.Damping) {
	d.down = now
	if d.Holds(now) {
		d.until = now.Add(p.Hold)
	}
}

// Holds reports whether a member stays down regardless of its checks.
func (d *Damper) Holds(now time.Time) bool { return now.Before(d.until) }

// Due returns when Holds ends, unless the member falls again before; zero: it was never held.
func (d *Damper) Due() time.Time { return d.until }
