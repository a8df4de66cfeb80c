package probe

import "time"

// hungerLasts is how long a machine counts as starved after it lacked a resource for a probe.
const hungerLasts = time.Minute

// Hunger detects resource starvation of this machine from Stats.Starved. The zero value has seen
// none.
type Hunger struct {
	seen  uint64
	until time.Time
}

// Felt takes the counter at a time and reports whether it rose within the last minute.
func (h *Hunger) Felt(starved uint64, now time.Time) bool {
	if starved > h.seen {
		h.until = now.Add(hungerLasts)
	}
	h.seen = starved
	return now.Before(h.until)
}
