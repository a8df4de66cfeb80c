package health

import "github.com/shuntlb/shunt/internal/lb"

// Needed returns how many of an endpoint's checks must be good for a member to be healthy.
func Needed(h *lb.Health) int {
	switch h.Combine {
	case lb.CombineAny:
		return 1
	case lb.CombineAtLeast:
		return min(max(int(h.AtLeast), 1), len(h.Checks))
	}
	return len(h.Checks)
}

// Combine returns the combined state of several checks of a member, of which needed must be good.
// known: checks without a result cannot change it.
func Combine(checks []Member, needed int) (alive, known bool) {
	good, bad := 0, 0
	for _, c := range checks {
		switch {
		case c.alive:
			good++
		case c.asked:
			bad++
		}
	}
	return good >= needed, good >= needed || len(checks)-bad < needed
}
