package mux

import "github.com/shuntlb/shunt/internal/dataplane"

// Flips returns the number of health transitions since the agent started, by member of the plan.
func (a *Agent) Flips() map[dataplane.MemberKey]uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make(map[dataplane.MemberKey]uint64, len(a.roster.members))
	for k, m := range a.roster.members {
		out[dataplane.MemberKey{Endpoint: k.Endpoint, Member: m.ID}] = m.flips
	}
	return out
}
