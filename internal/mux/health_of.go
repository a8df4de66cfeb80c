package mux

import (
	"time"

	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/probe"
)

// MemberHealth is the health of one member as the agent has it.
type MemberHealth struct {
	// Alive is the verdict of the member alone. Decisions of its endpoint for all members are not
	// included.
	Alive bool
	// Asked: a result is known.
	Asked bool
	// Held: it is silent but keeps its last verdict, because the mux considers itself isolated.
	Held bool
	// DampedUntil is when damping ends; zero: it is not damped.
	DampedUntil time.Time
	// Words is the reason for the verdict.
	Words string
	// Checks are those of its endpoint, in their order.
	Checks []CheckHealth
	// Results are the last results of its checks, Turns its last health transitions, both oldest
	// first.
	Results []health.Past
	Turns   []health.Turn
}

// CheckHealth is the state of one check of a member.
type CheckHealth struct {
	Target probe.Target
	// Alive is the verdict of this check. Asked: a result is known.
	Alive, Asked bool
	// Probed: this mux makes the check, else only the member's host does.
	Probed bool
	// Words describes the last result; empty: there was none.
	Words string
}

// HealthOf returns the health of member id of an endpoint of the plan, and false if there is none.
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
