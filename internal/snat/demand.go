package snat

import "time"

// Demand predicts how many ranges a DIP needs: one that asks again soon after it asked gets twice as many (Ananta section 3.5.1).
type Demand struct {
	last time.Time
	size int
}

// DemandWindow is the time within which another ask doubles what is given.
const DemandWindow = 60 * time.Second

// Ask is how many ranges to give to an ask at a time: first to one that comes after a long time, at most max.
func (d *Demand) Ask(now time.Time, first, max int) int {
	if d.size > 0 && now.Sub(d.last) <= DemandWindow {
		d.size *= 2
	} else {
		d.size = first
	}
	d.last, d.size = now, min(d.size, max)
	return d.size
}
