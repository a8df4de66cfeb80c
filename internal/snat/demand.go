package snat

import "time"

// Demand predicts the number of ranges that a DIP needs: a repeated request within DemandWindow
// doubles the grant (Ananta section 3.5.1).
type Demand struct {
	last time.Time
	size int
}

// DemandWindow is the time within which another request doubles the grant.
const DemandWindow = 60 * time.Second

// Ask returns the size of a grant at a time: first after a pause, at most max.
func (d *Demand) Ask(now time.Time, first, max int) int {
	if d.size > 0 && now.Sub(d.last) <= DemandWindow {
		d.size *= 2
	} else {
		d.size = first
	}
	d.last, d.size = now, min(d.size, max)
	return d.size
}
