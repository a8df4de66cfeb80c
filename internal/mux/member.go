package mux

import (
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
	service    string
	rise, fall uint32
	target     probe.Target
	state      health.Member
	// words of the last probe.
	words string
	// seen is the number of the last result, good that of the first in the latest run of good ones; 0: none.
	seen, good uint64
	// back is the number of the first good result of those that made it alive again; 0: it was not dead before.
	back uint64
	// once: it was alive at some time.
	once bool
	// flips are the changes of its health that were observed.
	flips uint64
	// asked: a probe's result or a host's verdict counted, or its health was taken over.
	asked bool
	// group is its endpoint in the plan that was applied last, nil when it is in none. at is its place among those of its target
	// + 1, 0 when it is not there.
	group *group
	at    int
	hearsay
}

// alive is the member's health; what an endpoint decides for all is not in it.
func (m *member) alive() bool { return m.state.Alive() && !m.denied() }

func (m *member) standing() health.Standing {
	return health.Standing{Weight: m.Weight, Backup: m.Backup, Alive: m.alive(), Asked: m.asked}
}

// group is an endpoint of the plan with what health means for all of it.
type group struct {
	plan.Endpoint
	// members are those of Endpoint.Members, in their order.
	members  []*member
	tally    health.Tally
	decision health.Decision
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
	g.decision = health.Decide(before, g.tally, health.Policy{BackupBelow: g.BackupBelow, FailOpen: g.FailOpen})
}
