package mux

import (
	"net/netip"
	"slices"
	"time"

	"github.com/shuntlb/shunt/internal/dataplane"
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

// roster is the health of all members. It has no lock and no clock: its owner serialises.
type roster struct {
	// results counts what was observed.
	results uint64
	// members of the plan, and of the plan before until prune.
	members map[backend]*member
	// byTarget are the members of the plan by what is probed for them.
	byTarget map[probe.Target][]backend
	// groups are the endpoints of the plan.
	groups map[lb.EndpointKey]*group
	heard  heard
	// found remembers membersOf of some endpoints until members come or go.
	found struct {
		of      []plan.Endpoint
		members [][]*member
	}
	// decided is what an agent before this one decided; nil once a plan was obeyed.
	decided func(lb.EndpointKey) mark
	// adopted tells what tables of an agent before this one say of a member; nil once a plan was obeyed.
	adopted func(e lb.EndpointKey, id uint16) (alive, known bool)
}

func newRoster(adopted func(lb.EndpointKey, uint16) (alive, known bool), decided func(lb.EndpointKey) mark) *roster {
	return &roster{
		members: map[backend]*member{}, byTarget: map[probe.Target][]backend{}, groups: map[lb.EndpointKey]*group{},
		heard: heard{said: map[lb.EndpointKey]map[uint16]verdict{}}, adopted: adopted, decided: decided,
	}
}

// apply takes over the plan's members. Those that stay keep their health; new ones take the health of an equal target
// that is already probed, else what adopted tables say, else they begin anew. Members that are gone stay until prune, so that a
// plan which could not be obeyed can be taken back by applying the old one again.
func (r *roster) apply(endpoints []plan.Endpoint, now time.Time) {
	before, groups := r.byTarget, r.groups
	r.found.of = nil
	r.byTarget, r.groups = map[probe.Target][]backend{}, make(map[lb.EndpointKey]*group, len(endpoints))
	for _, e := range endpoints {
		g := &group{Endpoint: e, members: make([]*member, 0, len(e.Members))}
		r.groups[e.Key] = g
		for _, pm := range e.Members {
			key := backend{e.Key, lb.BackendKey{DIP: pm.DIP, Port: pm.Port}}
			target := probe.Of(e.Check, pm.DIP, pm.Port)
			m, have := r.members[key]
			if !have {
				m = &member{state: r.begin(e.Key, pm.ID, before[target])}
				m.once, m.asked = !m.state.Fresh(), !m.state.Fresh()
				r.members[key] = m
			} else if m.target != target {
				m.state = health.Adopt(m.state.Alive())
			}
			m.Member, m.service, m.target = pm, e.Service, target
			m.rise, m.fall = e.Check.Rise, e.Check.Fall
			r.follow(m, e, now)
			g.members = append(g.members, m)
			r.byTarget[target] = append(r.byTarget[target], key)
			g.tally.Add(m.standing())
		}
		switch was := groups[e.Key]; {
		case was != nil:
			g.decide(was.decision)
		case r.decided != nil:
			g.decide(r.decided(e.Key).Decision)
		default:
			g.decide(health.Decision{})
		}
	}
}

// takeBack applies the endpoints of a plan again, of which groups are the decisions, instead of one that could not be
// obeyed.
func (r *roster) takeBack(endpoints []plan.Endpoint, groups map[lb.EndpointKey]*group, now time.Time) {
	r.groups = groups
	r.apply(endpoints, now)
}

func (r *roster) begin(e lb.EndpointKey, id uint16, equals []backend) health.Member {
	for _, equal := range equals {
		if m := r.members[equal]; m != nil && m.alive() {
			return health.Adopt(true)
		}
	}
	if r.adopted != nil {
		if alive, known := r.adopted(e, id); known {
			// Tables that failed open call all alive.
			d := r.decided(e)
			return health.Adopt(alive && (!d.FailOpen || slices.Contains(d.alive, id)))
		}
	}
	return health.New()
}

// prune forgets what is not in the plan that was applied last.
func (r *roster) prune() {
	r.found.of = nil
	keep := map[backend]bool{}
	for _, keys := range r.byTarget {
		for _, k := range keys {
			keep[k] = true
		}
	}
	for k := range r.members {
		if !keep[k] {
			delete(r.members, k)
		}
	}
	r.adopted, r.decided = nil, nil
}

// targets is everything that has to be probed.
func (r *roster) targets() []probe.Target {
	out := make([]probe.Target, 0, len(r.byTarget))
	for t, keys := range r.byTarget {
		if slices.ContainsFunc(keys, func(k backend) bool { return r.members[k].probed() }) {
			out = append(out, t)
		}
	}
	return out
}

// change is what became of the tables by what was observed.
type change struct {
	// flips are the members that came up or went down.
	flips []dataplane.MemberAlive
	// bits are what the tables are to be told: the flips, or all members of an endpoint that fails open or stops to.
	bits []dataplane.MemberAlive
	// decisions are those that changed, and those of endpoints that fail open whose members did.
	decisions map[lb.EndpointKey]health.Decision
	// asked: it is the first result of a member.
	asked bool
}

func (c *change) empty() bool { return len(c.flips) == 0 && len(c.decisions) == 0 }

// observe folds a probe's result in.
func (r *roster) observe(result probe.Result) change {
	c := change{decisions: map[lb.EndpointKey]health.Decision{}}
	r.results++
	for _, key := range r.byTarget[result.Target] {
		m, g := r.members[key], r.groups[key.Endpoint]
		if !m.probed() {
			continue // its host has spoken since
		}
		from := len(c.flips)
		r.turn(&c, g, m, result.Good, result.Words, func() { m.state.Observe(result.Good, m.rise, m.fall) })
		r.settle(&c, g, from)
	}
	return c
}

// turn does something to a member of an endpoint, because of what was found good or bad, and counts it anew.
func (r *roster) turn(c *change, g *group, m *member, good bool, words string, do func()) {
	m.words, m.seen = words, r.results
	switch {
	case !good:
		m.good = 0
	case m.good == 0:
		m.good = r.results
	}
	before := m.standing()
	m.asked, c.asked = true, c.asked || !before.Asked
	do()
	alive := m.alive()
	if alive != before.Alive {
		if alive && m.once {
			m.back = m.good
		}
		m.once = true
		m.flips++
		c.flips = append(c.flips, dataplane.MemberAlive{Endpoint: g.Key, Member: m.ID, Alive: alive})
	} else if before.Asked {
		return
	}
	g.tally.Remove(before)
	g.tally.Add(m.standing())
}

// settle decides what it means for an endpoint that members of it turned; flips from `from` on are its own.
func (r *roster) settle(c *change, g *group, from int) {
	before, flips := g.decision, c.flips[from:]
	if g.decide(before); g.decision != before || len(flips) > 0 && before.FailOpen {
		c.decisions[g.Key] = g.decision
	}
	if g.decision.FailOpen != before.FailOpen {
		c.bits = append(c.bits, r.bits(g)...)
		return
	}
	for _, f := range flips {
		f.Alive = f.Alive || g.decision.FailOpen
		c.bits = append(c.bits, f)
	}
}

// bits are the alive bits of an endpoint's members as the tables should have them.
func (r *roster) bits(g *group) []dataplane.MemberAlive {
	out := make([]dataplane.MemberAlive, 0, len(g.Members))
	for _, m := range g.members {
		out = append(out, dataplane.MemberAlive{Endpoint: g.Key, Member: m.ID, Alive: g.decision.FailOpen || m.alive()})
	}
	return out
}

// bit is the alive bit of a member as the tables should have it.
func (r *roster) bit(e lb.EndpointKey, pm plan.Member) bool {
	return r.decision(e).FailOpen || r.alive(e, pm)
}

// aliveIn are the members of an endpoint of the plan that are alive.
func (r *roster) aliveIn(e lb.EndpointKey) (ids []uint16) {
	if g := r.groups[e]; g != nil {
		for _, m := range g.members {
			if m.alive() {
				ids = append(ids, m.ID)
			}
		}
	}
	return ids
}

// decision is what health means for an endpoint of the plan.
func (r *roster) decision(e lb.EndpointKey) health.Decision {
	if g := r.groups[e]; g != nil {
		return g.decision
	}
	return health.Decision{}
}

// note keeps the words of a result that is no evidence.
func (r *roster) note(result probe.Result) {
	for _, key := range r.byTarget[result.Target] {
		r.members[key].words = result.Words + " (does not count)"
	}
}

// alive tells the health of one member; unknown ones are dead.
func (r *roster) alive(e lb.EndpointKey, pm plan.Member) bool {
	m := r.members[backend{e, lb.BackendKey{DIP: pm.DIP, Port: pm.Port}}]
	return m != nil && m.alive()
}

// served are the VIPs of the endpoints that have a member which is alive, or treated so, takes new flows and can be reached.
func (r *roster) served(endpoints []plan.Endpoint, reachable func(netip.Addr) bool) map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for i, members := range r.membersOf(endpoints) {
		e := endpoints[i]
		if out[e.Key.VIP] {
			continue
		}
		open := r.decision(e.Key).FailOpen
		for j, m := range members {
			pm := e.Members[j]
			if pm.Weight > 0 && (open || m != nil && m.alive()) && reachable(pm.Outer) {
				out[e.Key.VIP] = true
				break
			}
		}
	}
	return out
}

// membersOf are the members of endpoints, in the order of their lists; nil: not known. It is asked twice a second, of 20,000
// endpoints too.
func (r *roster) membersOf(endpoints []plan.Endpoint) [][]*member {
	if have := r.found.of; len(have) > 0 && len(have) == len(endpoints) && &have[0] == &endpoints[0] {
		return r.found.members
	}
	out := make([][]*member, len(endpoints))
	for i, e := range endpoints {
		out[i] = make([]*member, len(e.Members))
		for j, pm := range e.Members {
			out[i][j] = r.members[backend{e.Key, lb.BackendKey{DIP: pm.DIP, Port: pm.Port}}]
		}
	}
	r.found.of, r.found.members = endpoints, out
	return out
}

// unsettled are the VIPs with a member that was never asked, or a dead one that was alive once and may be alive again: its last
// probe was good, or it was not asked since the VIP's other members came back.
func (r *roster) unsettled(endpoints []plan.Endpoint) map[netip.Addr]bool {
	first := map[netip.Addr]uint64{}
	var dead []int // endpoints with members that were alive once
	found := r.membersOf(endpoints)
	for i, members := range found {
		vip, lost := endpoints[i].Key.VIP, false
		back, known := uint64(0), false
		for j, m := range members {
			switch {
			case m == nil || endpoints[i].Members[j].Weight == 0:
			case !m.alive():
				lost = lost || m.once || !m.asked
			case !known || m.back < back:
				back, known = m.back, true
			}
		}
		if lost {
			dead = append(dead, i)
		}
		if before, have := first[vip]; known && (!have || back < before) {
			first[vip] = back
		}
	}
	out := map[netip.Addr]bool{}
	for _, i := range dead {
		vip := endpoints[i].Key.VIP
		for j, m := range found[i] {
			if m == nil || endpoints[i].Members[j].Weight == 0 || m.alive() {
				continue
			}
			if !m.asked || m.once && (m.good > 0 || m.seen < first[vip]) {
				out[vip] = true
			}
		}
	}
	return out
}
