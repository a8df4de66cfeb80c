package mux

import (
	"slices"
	"time"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/probe"
)

// roster is the member table: the health of all members. It has no lock and no clock; its owner
// serializes the calls. The cost of applying a plan depends on the size of the change.
type roster struct {
	// results counts the results observed.
	results uint64
	// members are those of the plan, and until prune those of the previous plan.
	members map[backend]*member
	// byTarget are the checks of the plan's members by their probe target.
	byTarget map[probe.Target][]*check
	// groups are the endpoints of the plan.
	groups map[lb.EndpointKey]*group
	heard  heard
	doubt  doubt
	// machines are the hosts whose verdicts count here.
	machines machines
	// flips and bitsRoom are the lists of the last pass. The next pass reuses their space.
	flips    []flip
	bitsRoom []dataplane.MemberAlive
	// damped are the members that stay down because they flapped. dampedDue is no later than the
	// end of the first one's damping.
	damped    map[*member]bool
	dampedDue time.Time
	// left are members that were removed since the last prune or takeBack, and may have come back.
	// applied are the endpoints that changed since the last prune.
	left    []backend
	applied []lb.EndpointKey
	// moved: the targets may differ from those set last. turned are targets that may differ, with
	// whether the prober had them.
	moved  bool
	turned map[probe.Target]bool
	vips   vipIndex
	// known are targets that serve according to tables of a previous agent; nil after they were
	// passed to the prober.
	known map[probe.Target]bool
	// decided returns a previous agent's decision; nil after a plan was applied.
	decided func(lb.EndpointKey) mark
	// adopted returns a member's alive bit in tables of a previous agent; nil after a plan was
	// applied.
	adopted func(e lb.EndpointKey, id uint16) (alive, known bool)
}

func newRoster(adopted func(lb.EndpointKey, uint16) (alive, known bool), decided func(lb.EndpointKey) mark) *roster {
	return &roster{
		members: map[backend]*member{}, byTarget: map[probe.Target][]*check{}, groups: map[lb.EndpointKey]*group{},
		known: map[probe.Target]bool{}, damped: map[*member]bool{}, doubt: newDoubt(), machines: newMachines(),
		heard: heard{said: map[lb.EndpointKey]map[uint16]saying{}}, moved: true, turned: map[probe.Target]bool{}, vips: newVIPIndex(),
		adopted: adopted, decided: decided,
	}
}

// apply applies changes of the plan. Existing members keep their health. A new member takes the
// health of an equal target that is already probed, else that in adopted tables, else it starts
// anew. Removed members stay until prune, which follows if the tables take the plan, or takeBack
// otherwise. It returns the previous decisions of the changed endpoints.
func (r *roster) apply(changes []plan.EndpointChange, now time.Time) (before map[lb.EndpointKey]health.Decision) {
	before = map[lb.EndpointKey]health.Decision{}
	for _, c := range changes {
		if g := r.groups[c.Key()]; g != nil {
			before[c.Key()] = g.decision
		}
	}
	r.follows(changes, before, now)
	return before
}

// takeBack undoes the last changes, of a plan that the tables refused, and restores the previous
// decisions.
func (r *roster) takeBack(changes []plan.EndpointChange, before map[lb.EndpointKey]health.Decision, now time.Time) {
	back := make([]plan.EndpointChange, 0, len(changes))
	for _, c := range changes {
		back = append(back, c.Back())
	}
	r.follows(back, before, now)
	r.forgetLeft()
}

// follows applies changes to members and groups. decisions are the previous decisions of the
// endpoints.
func (r *roster) follows(changes []plan.EndpointChange, decisions map[lb.EndpointKey]health.Decision, now time.Time) {
	// All new members compare with the same set: the targets that are probed already.
	for _, c := range changes {
		if c.After != nil {
			r.welcome(c.After)
		}
	}
	probed := r.probedFor(changes)
	for _, c := range changes {
		key, old := c.Key(), r.groups[c.Key()]
		if c.After != nil {
			r.doubt.enter(c.After.Service)
		}
		r.applied = append(r.applied, key)
		r.vips.touch(key.VIP)
		if old != nil {
			for _, m := range old.members {
				m.group = nil
			}
			delete(r.groups, key)
		}
		if c.After != nil {
			r.group(c.After, decisions, now)
		}
		if old != nil {
			for _, pm := range old.Members {
				r.moved = r.machines.leave(pm.Host) || r.moved
			}
			r.leave(old)
			r.doubt.leave(old.Service)
		}
	}
	for target, was := range probed {
		if _, noted := r.turned[target]; !noted && was != r.isProbed(target) {
			r.turned[target] = was
		}
	}
}

// welcome creates the members of an endpoint that do not exist yet.
func (r *roster) welcome(e *plan.Endpoint) {
	wanted := prepare(e)
	for _, pm := range e.Members {
		key := backend{e.Key, lb.BackendKey{DIP: pm.DIP, Port: pm.Port}}
		if r.members[key] != nil {
			continue
		}
		m := &member{}
		m.checks = m.newChecks(len(e.Health.Checks))
		for i := range m.checks {
			target := wanted.target(i, pm)
			m.checks[i] = check{of: m, number: uint8(i), target: target, state: r.begin(e, i, pm.ID, target)}
		}
		m.up, m.asked = m.combine(health.Needed(&e.Health))
		m.once = m.asked
		r.members[key] = m
	}
}

// group creates the group of an endpoint whose members all exist.
func (r *roster) group(e *plan.Endpoint, decisions map[lb.EndpointKey]health.Decision, now time.Time) {
	g := &group{
		Endpoint: *e, members: make([]*member, 0, len(e.Members)), needed: health.Needed(&e.Health), reach: r.doubt.reach(e.Service),
	}
	r.groups[e.Key] = g
	wanted := prepare(e)
	for _, pm := range e.Members {
		m := r.members[backend{e.Key, lb.BackendKey{DIP: pm.DIP, Port: pm.Port}}]
		r.recheck(m, e, pm, wanted)
		if m.service != e.Service {
			r.doubt.forget(m)
		}
		m.Member, m.service, m.group = pm, e.Service, g
		r.moved = r.machines.enter(pm.Host) || r.moved
		up, known := m.combine(g.needed)
		m.up, m.asked = up, m.asked || known
		if e.Health.Damping == nil {
			r.undamp(m)
			m.damper = nil
		}
		r.follow(m, e, now)
		for i := range m.checks {
			c := &m.checks[i]
			c.rise, c.fall = e.Health.Checks[i].Rise, e.Health.Checks[i].Fall
			r.list(c)
		}
		g.members = append(g.members, m)
		g.tally.Add(m.standing())
	}
	decision, known := decisions[e.Key]
	if !known && r.decided != nil {
		decision = r.decided(e.Key).Decision
	}
	g.decide(decision)
}

// recheck sets the checks of a member to those of its endpoint. A check with an unchanged target
// keeps its state; another one takes over the member's health if that is known.
func (r *roster) recheck(m *member, e *plan.Endpoint, pm plan.Member, wanted wanted) {
	same := len(m.checks) == len(e.Health.Checks)
	for i := 0; same && i < len(m.checks); i++ {
		same = m.checks[i].target == wanted.target(i, pm)
	}
	if same {
		return
	}
	for i := range m.checks {
		r.unlist(&m.checks[i])
	}
	old := slices.Clone(m.checks)
	spoke := m.spoke
	m.only, m.spoke = [1]check{}, 0
	m.checks = m.newChecks(len(e.Health.Checks))
	for i := range m.checks {
		target := wanted.target(i, pm)
		m.checks[i] = check{of: m, number: uint8(i), target: target, state: health.Begin(e.Health.Checks[i].Initial == lb.InitialUp)}
		c := &m.checks[i]
		if at := slices.IndexFunc(old, func(c check) bool { return c.target == target }); at >= 0 {
			*c = old[at]
			c.number = uint8(i)
			if at == int(spoke)-1 {
				m.spoke = c.number + 1
			}
		} else if m.asked {
			c.state = health.Adopt(m.up)
		}
	}
}

// leave removes the members of a replaced group that are in no other.
func (r *roster) leave(old *group) {
	for _, m := range old.members {
		if m.group == nil {
			for i := range m.checks {
				r.unlist(&m.checks[i])
			}
			r.undamp(m)
			r.doubt.forget(m)
			r.left = append(r.left, backend{old.Key, lb.BackendKey{DIP: m.DIP, Port: m.Port}})
		}
	}
}

// begin returns the first state of a check of a new member.
func (r *roster) begin(e *plan.Endpoint, number int, id uint16, target probe.Target) health.Member {
	if slices.ContainsFunc(r.byTarget[target], (*check).alive) {
		return health.Adopt(true)
	}
	if r.adopted != nil {
		if alive, known := r.adopted(e.Key, id); known {
			// In tables of an open endpoint all members count as alive.
			d := r.decided(e.Key)
			alive = alive && (!d.Open() || slices.Contains(d.alive, id))
			if alive && r.known != nil {
				r.known[target] = true
			}
			return health.Adopt(alive)
		}
	}
	return health.Begin(e.Health.Checks[number].Initial == lb.InitialUp)
}

// prune removes the state that is not in the last applied plan, after the tables took the plan.
func (r *roster) prune() {
	r.forgetLeft()
	for _, key := range r.applied {
		r.vips.set(key, r.groups[key])
	}
	r.applied, r.adopted, r.decided = nil, nil, nil
}

// forgetLeft deletes the members that were removed and did not come back.
func (r *roster) forgetLeft() {
	for _, key := range r.left {
		if m := r.members[key]; m != nil && m.group == nil {
			delete(r.members, key)
		}
	}
	r.left = nil
}

// bits returns the alive bits of an endpoint's members as the tables should have them.
func (r *roster) bits(g *group) []dataplane.MemberAlive {
	out := make([]dataplane.MemberAlive, 0, len(g.Members))
	for _, m := range g.members {
		out = append(out, dataplane.MemberAlive{Endpoint: g.Key, Member: m.ID, Alive: g.decision.Open() || m.alive()})
	}
	return out
}

// bit returns the alive bit of a member as the tables should have it.
func (r *roster) bit(e lb.EndpointKey, pm plan.Member) bool {
	return r.decision(e).Open() || r.alive(e, pm)
}

// aliveIn returns the members of an endpoint of the plan that are alive.
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

// decision returns the health decision of an endpoint of the plan.
func (r *roster) decision(e lb.EndpointKey) health.Decision {
	if g := r.groups[e]; g != nil {
		return g.decision
	}
	return health.Decision{}
}

// alive returns the health of one member; unknown ones are dead.
func (r *roster) alive(e lb.EndpointKey, pm plan.Member) bool {
	m := r.members[backend{e, lb.BackendKey{DIP: pm.DIP, Port: pm.Port}}]
	return m != nil && m.alive()
}
