package mux

import (
	"time"

	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/probe"
)

// MemberHealth is what the agent knows of the health of one member.
type MemberHealth struct {
	// Alive is the verdict; what its endpoint decides for all of its members is not in it.
	Alive bool
	// Asked: something is known of it.
	Asked bool
	// Held: it is silent, but keeps its last verdict, because the mux suspects itself.
	Held bool
	// DampedUntil is until when it stays down because it flapped; zero: it does not.
	DampedUntil time.Time
	// Words are why it is what it is.
	Words string
	// Checks are those of its endpoint, in their order.
	Checks []CheckHealth
	// Results are the last results of its checks, Turns the last changes of its health, both oldest first.
	Results []health.Past
	Turns   []health.Turn
}

// CheckHealth is what one check of a member came to.
type CheckHealth struct {
	Target probe.Target
	// Alive is the verdict of this check, Asked that something is known.
	Alive, Asked bool
	// Probed: this mux makes the check; else the member's host does alone.
	Probed bool
	// Words of its last result; empty: there was none.
	Words string
}

// HealthOf is what is known of the member with an id of an endpoint of the plan; false: there is none.
func (a *Agent) HealthOf(e lb.EndpointKey, id uint16) (MemberHealth, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	g := a.roster.groups[e]
	if g == nil {
		return MemberHealth{}, false
	}
	m, _ := g.find(id, -1)
	if m == nil {
		return MemberHealth{}, false
	}
	out := MemberHealth{
		Alive: m.alive(), Asked: m.asked, Held: m.held(), Words: m.explain(),
		Checks: make([]CheckHealth, 0, len(m.checks)), Results: m.history.Results(), Turns: m.history.Turns(),
	}
	if m.damped {
		out.DampedUntil = m.damper.Due()
	}
	for i := range m.checks {
		k := &m.checks[i]
		out.Checks = append(out.Checks, CheckHealth{
			Target: k.target, Alive: k.alive(), Asked: k.state.Asked(), Probed: m.probed(), Words: k.words,
		})
	}
	return out, true
}
