package mux

import (
	"net/netip"
	"slices"

	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/probe"
)

// backend identifies a member by address, not by id, because an id may be reused for another
// backend.
type backend struct {
	Endpoint lb.EndpointKey
	Backend  lb.BackendKey
}

// member is a member of an endpoint with its health.
type member struct {
	plan.Member
	service string
	// checks are those of its endpoint, in their order. A single check is stored in only.
	checks []check
	only   [1]check
	// up is the combined state of its checks, or the last verdict of its host.
	up bool
	// damped: it stays down because it flapped.
	damped bool
	damper *health.Damper // nil: its endpoint has no damping, or it never changed state
	// contact is whether this mux reaches it.
	contact health.Contact
	// words is the result of the last probe that explains the verdict, or another reason for it.
	words string
	// spoke is the number of the check that words is about + 1; 0: none.
	spoke   uint8
	history health.History
	// seen is the number of the last result. good is that of the first in the latest run of results
	// that could bring it up; 0: none.
	seen, good uint64
	// back is the number of the first good result of those that made it alive again; 0: it was not
	// dead before.
	back uint64
	// once: it was alive at some time.
	once bool
	// flips counts its health transitions.
	flips uint64
	// asked: enough of its checks have results, or a host's verdict was applied, or its health was
	// taken over.
	asked bool
	// group is its endpoint in the plan applied last; nil: it is in none.
	group *group
	// before and was are its standing and up at the beginning of a pass that changes it (turning).
	before       health.Standing
	was, turning bool
	hearsay
}

// check is one check of a member.
type check struct {
	of    *member
	state health.Member
	// rise and fall are the check's thresholds.
	rise, fall uint32
	// at is its index among the checks of its target + 1; 0: it is not listed.
	at int32
	// number is its index among the checks of the endpoint.
	number uint8
	// had: there was a result. good: the last result was good. silent: the last probe got no reply.
	// fell: its state went down because of silence, and there was only silence since. held: it
	// counts as alive nevertheless, because the mux considers itself isolated.
	had, good, silent, fell, held bool
	// unaskable: this mux cannot make the check, and there was no result since that was known.
	unaskable bool
	target    probe.Target
	// words is the last result.
	words string
}

// newChecks returns a slice of n checks.
func (m *member) newChecks(n int) []check {
	if n == 1 {
		return m.only[:]
	}
	return make([]check, n)
}

// alive returns the state in force for a check.
func (c *check) alive() bool { return c.state.Alive() || c.held }

// alive returns the member's own health, without the endpoint's decisions for all members.
func (m *member) alive() bool { return m.up && !m.damped && !m.denied() }

// held reports whether one of its checks is held.
func (m *member) held() bool {
	return slices.ContainsFunc(m.checks, func(c check) bool { return c.held })
}

// fresh reports whether nothing is known of it and it was never alive.
func (m *member) fresh() bool {
	return !slices.ContainsFunc(m.checks, func(c check) bool { return !c.state.Fresh() })
}

// combine returns the combined state of its checks, and whether checks without a result cannot
// change it.
func (m *member) combine(needed int) (up, known bool) {
	var room [lb.MaxChecks]health.Member
	states := room[:0]
	for i := range m.checks {
		if c := &m.checks[i]; c.held {
			states = append(states, health.Adopt(true))
		} else {
			states = append(states, c.state)
		}
	}
	return health.Combine(states, needed)
}

// couldRise reports whether enough of its checks' last results are good.
func (m *member) couldRise(needed int) bool {
	good := 0
	for i := range m.checks {
		if m.checks[i].good {
			good++
		}
	}
	return good >= needed
}

// isSilent reports whether the last result of every check that had one is silence.
func (m *member) isSilent() bool {
	any := false
	for i := range m.checks {
		c := &m.checks[i]
		if c.had && !c.silent {
			return false
		}
		any = any || c.silent
	}
	return any
}

// adopt sets the state of all its checks.
func (m *member) adopt(alive bool) {
	for i := range m.checks {
		c := &m.checks[i]
		c.state, c.fell, c.held = health.Adopt(alive), false, false
	}
	m.up = alive
}

// address returns the backend's address and port.
func (m *member) address() netip.AddrPort { return netip.AddrPortFrom(m.DIP, m.Port) }

// explain returns the reason for the verdict.
func (m *member) explain() string {
	switch {
	case m.denied():
		return m.hearsay.told(wordsDead)
	case m.words == "":
		return "not checked yet"
	case m.damped:
		return m.named() + " (stays down: it came and went too often)"
	case m.held():
		return m.named() + " (is held: this mux suspects itself)"
	}
	return m.named()
}

// named returns words, preceded by their check if the member has several, or followed by the host's
// reason if they report a host's verdict.
func (m *member) named() string {
	if m.words == wordsAlive || m.words == wordsDead {
		return m.hearsay.told(m.words)
	}
	if len(m.checks) < 2 || m.spoke == 0 {
		return m.words
	}
	check := m.checks[m.spoke-1].target.Check.Value()
	return health.SaidBy(int(m.spoke-1), &check, m.words)
}

// settled reports whether its health is as known as it can be: it has a verdict, or this mux cannot
// make the checks without a result.
func (m *member) settled() bool {
	return m.asked || !slices.ContainsFunc(m.checks, func(c check) bool { return !c.unaskable && !c.state.Asked() })
}

func (m *member) standing() health.Standing {
	return health.Standing{Weight: m.Weight, Backup: m.Backup, Alive: m.alive(), Asked: m.settled()}
}

// group is an endpoint of the plan with its health decision.
type group struct {
	plan.Endpoint
	// members are those of Endpoint.Members, in their order.
	members  []*member
	tally    health.Tally
	decision health.Decision
	// needed is how many of its checks must be good.
	needed int
	// reach counts the members of its service that the mux reaches.
	reach *health.Reach
	// turned are the members that changed in this pass.
	turned []*member
}

// find returns the member with an id and its index; nil: there is none. at is the previous index,
// because ids often come in order.
func (g *group) find(id uint16, at int) (*member, int) {
	if at++; at < len(g.Members) && g.Members[at].ID == id {
		return g.members[at], at
	}
	at, found := slices.BinarySearchFunc(g.Members, id, func(m plan.Member, id uint16) int { return int(m.ID) - int(id) })
	if !found {
		return nil, at
	}
	return g.members[at], at
}

func (g *group) decide(before health.Decision) {
	g.decision = health.Decide(before, g.tally, health.Policy{
		BackupBelow: g.BackupBelow, FailOpen: g.FailOpen, PanicBelow: g.Health.PanicBelow,
	})
}

// takes reports whether a member receives new flows, by its weight, its health and the endpoint's
// decision.
func (g *group) takes(m *member) bool {
	return m.Weight > 0 && (m.alive() || g.decision.Open()) && (!m.Backup || g.decision.Backup)
}
