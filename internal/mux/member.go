package mux

import (
	"net/netip"
	"slices"

	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/probe"
)

// backend names a member by what it is, not by its id: an id may come to stand for another backend.
type backend struct {
	Endpoint lb.EndpointKey
	Backend  lb.BackendKey
}

// member is a member of an endpoint with its health.
type member struct {
	plan.Member
	service string
	// checks are those of its endpoint, in their order. A single one is in only.
	checks []check
	only   [1]check
	// up is what its checks come to, by this mux or as its host said last.
	up bool
	// damped: it stays down because it flapped.
	damped bool
	damper *health.Damper // nil: it is not damped by its endpoint, or never came up or went down
	// contact is whether this mux reaches it.
	contact health.Contact
	// words of the last probe that explains the verdict, or of what else it comes from.
	words string
	// spoke is the number of the check that words are of + 1; 0: they are of none.
	spoke   uint8
	history health.History
	// seen is the number of the last result, good that of the first in the latest run of results that could bring it up; 0: none.
	seen, good uint64
	// back is the number of the first good result of those that made it alive again; 0: it was not dead before.
	back uint64
	// once: it was alive at some time.
	once bool
	// flips are the changes of its health that were observed.
	flips uint64
	// asked: enough of its checks have results, or a host's verdict counted, or its health was taken over.
	asked bool
	// group is its endpoint in the plan that was applied last, nil when it is in none.
	group *group
	// before and was are its standing and what its checks came to at the beginning of a pass that it turns in.
	before       health.Standing
	was, turning bool
	hearsay
}

// check is one check of a member.
type check struct {
	of    *member
	state health.Member
	// rise and fall are the check's.
	rise, fall uint32
	// at is its place among those of its target + 1, 0 when it is not there.
	at int32
	// number is its place among those of the endpoint.
	number uint8
	// had: there was a result. good: the last one was. silent: nothing came back. fell: its state went down because of silence, and
	// there was only silence since. held: it counts as alive nevertheless, because the mux suspects itself.
	had, good, silent, fell, held bool
	// unaskable: this mux cannot make it, and there was no result since that was known.
	unaskable bool
	target    probe.Target
	// words of the last result.
	words string
}

// newChecks makes room for n checks.
func (m *member) newChecks(n int) []check {
	if n == 1 {
		return m.only[:]
	}
	return make([]check, n)
}

// alive is what a check counts as.
func (c *check) alive() bool { return c.state.Alive() || c.held }

// alive is the member's health; what an endpoint decides for all is not in it.
func (m *member) alive() bool { return m.up && !m.damped && !m.denied() }

// held tells whether one of its checks is.
func (m *member) held() bool {
	return slices.ContainsFunc(m.checks, func(c check) bool { return c.held })
}

// fresh tells that nothing is known of it and it was never alive.
func (m *member) fresh() bool {
	return !slices.ContainsFunc(m.checks, func(c check) bool { return !c.state.Fresh() })
}

// combine is what its checks come to now, and whether those that were not asked cannot change it.
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

// couldRise tells whether the last results of its checks are such as bring it up.
func (m *member) couldRise(needed int) bool {
	good := 0
	for i := range m.checks {
		if m.checks[i].good {
			good++
		}
	}
	return good >= needed
}

// isSilent tells whether nothing came back from it: the last results of all checks that had one are silence.
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

// adopt makes it alive or dead whatever its checks said.
func (m *member) adopt(alive bool) {
	for i := range m.checks {
		c := &m.checks[i]
		c.state, c.fell, c.held = health.Adopt(alive), false, false
	}
	m.up = alive
}

// address is the backend's.
func (m *member) address() netip.AddrPort { return netip.AddrPortFrom(m.DIP, m.Port) }

// explain says why it is what it is.
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

// named are its words, with the check that they are of when it has several, and with those of its host when they are about these.
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

// settled tells that there is nothing to wait for before it is known how it is: it was asked, or this mux cannot ask what it was not.
func (m *member) settled() bool {
	return m.asked || !slices.ContainsFunc(m.checks, func(c check) bool { return !c.unaskable && !c.state.Asked() })
}

func (m *member) standing() health.Standing {
	return health.Standing{Weight: m.Weight, Backup: m.Backup, Alive: m.alive(), Asked: m.settled()}
}

// group is an endpoint of the plan with what health means for all of it.
type group struct {
	plan.Endpoint
	// members are those of Endpoint.Members, in their order.
	members  []*member
	tally    health.Tally
	decision health.Decision
	// needed is how many of its checks must be good.
	needed int
	// reach is what the mux reaches of its service.
	reach *health.Reach
	// turned are the members that turned in the present pass.
	turned []*member
}

// find is the member with an id, nil when there is none. at is where it is, and a hint where to look: ids come in order.
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

// takes tells whether a member gets new flows, by its weight, its health and what the endpoint decides.
func (g *group) takes(m *member) bool {
	return m.Weight > 0 && (m.alive() || g.decision.Open()) && (!m.Backup || g.decision.Backup)
}
