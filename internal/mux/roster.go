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

// roster is the health of all members. It has no lock and no clock: its owner serialises. What it costs to apply a plan is by
// what changed.
type roster struct {
	// results counts what was observed.
	results uint64
	// members of the plan, and of the plan before until prune.
	members map[backend]*member
	// byTarget are the checks of the plan's members by what is probed for them.
	byTarget map[probe.Target][]*check
	// groups are the endpoints of the plan.
	groups map[lb.EndpointKey]*group
	heard  heard
	doubt  doubt
	// machines are the hosts whose verdicts count here.
	machines machines
	// flips and bitsRoom are the lists of the last pass, whose room the next one takes.
	flips    []flip
	bitsRoom []dataplane.MemberAlive
	// damped are the members that stay down because they flapped; dampedDue is when the first of them may come back, or earlier.
	damped    map[*member]bool
	dampedDue time.Time
	// left are members that went since the last prune or takeBack, and may have come back; applied the endpoints that changed
	// since the last prune.
	left    []backend
	applied []lb.EndpointKey
	// moved: the targets may not be those that were told last. turned are such ones, with whether they were among those told.
	moved  bool
	turned map[probe.Target]bool
	vips   vipIndex
	// known are targets of which adopted tables said that they serve; nil once the prober was told.
	known map[probe.Target]bool
	// decided is what an agent before this one decided; nil once a plan was obeyed.
	decided func(lb.EndpointKey) mark
	// adopted tells what tables of an agent before this one say of a member; nil once a plan was obeyed.
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

// apply takes over what changed in the plan. Members that stay keep their health; new ones take the health of an equal target
// that is already probed, else what adopted tables say, else they begin anew. Members that are gone stay until prune, which follows
// when the plan is obeyed, else takeBack does. It returns the decisions that held for the endpoints that were there.
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

// takeBack undoes the changes applied last, of a plan that could not be obeyed, with the decisions that held before.
func (r *roster) takeBack(changes []plan.EndpointChange, before map[lb.EndpointKey]health.Decision, now time.Time) {
	back := make([]plan.EndpointChange, 0, len(changes))
	for _, c := range changes {
		back = append(back, c.Back())
	}
	r.follows(back, before, now)
	r.forgetLeft()
}

// follows makes members and groups follow changes; decisions are those that held for the endpoints before.
func (r *roster) follows(changes []plan.EndpointChange, decisions map[lb.EndpointKey]health.Decision, now time.Time) {
	// Newcomers look at those that are probed already, which are the same for all of them.
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

// welcome makes the members of an endpoint that nobody knows yet.
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

// group makes the group of an endpoint whose members are all known.
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

// recheck makes a member have the checks of its endpoint. Those of a target that it had keep what they came to; others take over
// what it is, when that is known.
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

// leave lets the members of a former group go that are in no other.
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

// begin is what a check of a new member begins with.
func (r *roster) begin(e *plan.Endpoint, number int, id uint16, target probe.Target) health.Member {
	if slices.ContainsFunc(r.byTarget[target], (*check).alive) {
		return health.Adopt(true)
	}
	if r.adopted != nil {
		if alive, known := r.adopted(e.Key, id); known {
			// Tables of an endpoint that was open call all alive.
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

// prune forgets what is not in the plan that was applied last, which is obeyed.
func (r *roster) prune() {
	r.forgetLeft()
	for _, key := range r.applied {
		r.vips.set(key, r.groups[key])
	}
	r.applied, r.adopted, r.decided = nil, nil, nil
}

// forgetLeft forgets the members that went and did not come back.
func (r *roster) forgetLeft() {
	for _, key := range r.left {
		if m := r.members[key]; m != nil && m.group == nil {
			delete(r.members, key)
		}
	}
	r.left = nil
}

// bits are the alive bits of an endpoint's members as the tables should have them.
func (r *roster) bits(g *group) []dataplane.MemberAlive {
	out := make([]dataplane.MemberAlive, 0, len(g.Members))
	for _, m := range g.members {
		out = append(out, dataplane.MemberAlive{Endpoint: g.Key, Member: m.ID, Alive: g.decision.Open() || m.alive()})
	}
	return out
}

// bit is the alive bit of a member as the tables should have it.
func (r *roster) bit(e lb.EndpointKey, pm plan.Member) bool {
	return r.decision(e).Open() || r.alive(e, pm)
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

// alive tells the health of one member; unknown ones are dead.
func (r *roster) alive(e lb.EndpointKey, pm plan.Member) bool {
	m := r.members[backend{e, lb.BackendKey{DIP: pm.DIP, Port: pm.Port}}]
	return m != nil && m.alive()
}
