package probe

import "time"

// hungerLasts is for how long a machine counts as starved after it lacked something for a probe.
const hungerLasts = time.Minute

// Hunger tells whether this machine lacks what probes need, by Stats.Starved. The zero value saw none.
type Hunger struct {
	seen  uint64
	until time.Time
}

// Felt takes the count at a time and tells whether it rose within the last minute.
func (h *Hunger) Felt(starved uint64, now time.Time) bool {
	if starved > h.seen {
		h.until = now.Add(hungerLasts)
	}
	h.seen = starved
	return now.Before(h.until)
}
