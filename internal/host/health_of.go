package host

import (
	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/probe"
)

// MemberHealth is the health of a member that this host checks.
type MemberHealth struct {
	// Alive is the verdict; Known: there is one.
	Alive, Known bool
	// Shunned: clients' own connections hold it dead, despite its checks.
	Shunned bool
	// Words is the text of the last check, or of the clients' connections.
	Words  string
	Checks []CheckHealth
	// Results are the last results of its checks, Turns the last changes of its verdict, both
	// oldest first.
	Results []health.Past
	Turns   []health.Turn
}

// CheckHealth is the state of one check of a member.
type CheckHealth struct {
	Target probe.Target
	// Check is the whole check, with the fields that Target leaves out.
	Check        lb.Check
	Alive, Asked bool
}

// HealthOf returns the health of the member with an id of an endpoint; false: this host does not
// check it.
func (a *Agent) HealthOf(e lb.EndpointKey, id uint16) (MemberHealth, bool) {
	c := a.checks
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.members[memberRef{e, id}]
	if m == nil {
		return MemberHealth{}, false
	}
	out := MemberHealth{
		Alive: m.said == saidAlive, Known: m.said != unsaid, Shunned: m.shunned, Words: m.words, Results: m.past.Results(), Turns: m.past.Turns(),
	}
	for at, ask := range m.asks {
		out.Checks = append(out.Checks, CheckHealth{Target: ask.target, Check: ask.check, Alive: m.states[at].Alive(), Asked: m.states[at].Asked()})
	}
	return out, true
}
