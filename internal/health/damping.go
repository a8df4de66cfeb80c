package health

import (
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

// Damper keeps a member down that flaps, as lb.Damping says: one that came up more than Flips times within Within stays down for
// Hold after it last went down. What comes up and goes down here is the member by its checks, held down or not. The zero value is a
// member that never did.
type Damper struct {
	// ups are the times of the latest rises, oldest first: those within Within, at most Flips+1.
	ups []time.Time
	// down is when it last fell, until is when it may be up again; zero: it never fell, it is not held.
	down, until time.Time
}

// Rose notes that a member came up.
func (d *Damper) Rose(now time.Time, p lb.Damping) {
	for len(d.ups) > 0 && (now.Sub(d.ups[0]) >= p.Within || len(d.ups) > int(p.Flips)) {
		d.ups = append(d.ups[:0], d.ups[1:]...)
	}
	d.ups = append(d.ups, now)
	if until := d.down.Add(p.Hold); len(d.ups) > int(p.Flips) && !d.down.IsZero() && until.After(now) {
		d.until = until
	}
}

// Fell notes that a member went down.
func (d *Damper) Fell(now time.Time, p lb.Damping) {
	d.down = now
	if d.Holds(now) {
		d.until = now.Add(p.Hold)
	}
}

// Holds tells whether a member stays down whatever its checks say.
func (d *Damper) Holds(now time.Time) bool { return now.Before(d.until) }

// Due is when Holds ends, unless the member falls again before; zero when it was never held.
func (d *Damper) Due() time.Time { return d.until }
