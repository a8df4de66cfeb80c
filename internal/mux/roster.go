package mux

import (
	"net/netip"

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
}

// roster is the health of all members. It has no lock and no clock: its owner serialises.
type roster struct {
	// results counts what was observed.
	results uint64
	// members of the plan, and of the plan before until prune.
	members map[backend]*member
	// byTarget are the members of the plan by what is probed for them.
	byTarget map[probe.Target][]backend
	// adopted tells what tables of an agent before this one say of a member; nil once a plan was obeyed.
	adopted func(e lb.EndpointKey, id uint16) (alive, known bool)
}

func newRoster(adopted func(lb.EndpointKey, uint16) (alive, known bool)) *roster {
	return &roster{members: map[backend]*member{}, byTarget: map[probe.Target][]backend{}, adopted: adopted}
}

// apply takes over the plan's members. Those that stay keep their health; new ones take the health of an equal target
// that is already probed, else what adopted tables say, else they begin anew. Members that are gone stay until prune, so that a
// plan which could not be obeyed can be taken back by applying the old one again.
func (r *roster) apply(endpoints []plan.Endpoint) {
	before := r.byTarget
	r.byTarget = map[probe.Target][]backend{}
	for _, e := range endpoints {
		for _, pm := range e.Members {
			key := backend{e.Key, lb.BackendKey{DIP: pm.DIP, Port: pm.Port}}
			target := targetOf(pm, e.Check)
			m, have := r.members[key]
			if !have {
				m = &member{state: r.begin(e.Key, pm.ID, before[target])}
				m.once = !m.state.Fresh()
				r.members[key] = m
			} else if m.target != target {
				m.state = health.Adopt(m.state.Alive())
			}
			m.Member, m.service, m.target = pm, e.Service, target
			m.rise, m.fall = e.Check.Rise, e.Check.Fall
			r.byTarget[target] = append(r.byTarget[target], key)
		}
	}
}

func (r *roster) begin(e lb.EndpointKey, id uint16, equals []backend) health.Member {
	for _, equal := range equals {
		if m := r.members[equal]; m != nil && m.state.Alive() {
			return health.Adopt(true)
		}
	}
	if r.adopted != nil {
		if alive, known := r.adopted(e, id); known {
			return health.Adopt(alive)
		}
	}
	return health.New()
}

// prune forgets what is not in the plan that was applied last.
func (r *roster) prune() {
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
	r.adopted = nil
}

// targets is everything that has to be probed.
func (r *roster) targets() []probe.Target {
	out := make([]probe.Target, 0, len(r.byTarget))
	for t := range r.byTarget {
		out = append(out, t)
	}
	return out
}

// observe folds a probe's result in and returns the flips.
func (r *roster) observe(result probe.Result) []dataplane.MemberAlive {
	var flips []dataplane.MemberAlive
	r.results++
	for _, key := range r.byTarget[result.Target] {
		m := r.members[key]
		m.words, m.seen = result.Words, r.results
		switch {
		case !result.Good:
			m.good = 0
		case m.good == 0:
			m.good = r.results
		}
		if m.state.Observe(result.Good, m.rise, m.fall) {
			if m.state.Alive() && m.once {
				m.back = m.good
			}
			m.once = true
			flips = append(flips, dataplane.MemberAlive{Endpoint: key.Endpoint, Member: m.ID, Alive: m.state.Alive()})
		}
	}
	return flips
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
	return m != nil && m.state.Alive()
}

// served are the VIPs of the endpoints that have a member which is alive, takes new flows and can be reached.
func (r *roster) served(endpoints []plan.Endpoint, reachable func(netip.Addr) bool) map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for _, e := range endpoints {
		if out[e.Key.VIP] {
			continue
		}
		for _, pm := range e.Members {
			if pm.Weight > 0 && r.alive(e.Key, pm) && reachable(pm.Outer) {
				out[e.Key.VIP] = true
				break
			}
		}
	}
	return out
}

// unsettled are the VIPs with a dead member that was alive once, and that may be alive again: its last probe was good, or
// it was not asked since the VIP's other members came back.
func (r *roster) unsettled(endpoints []plan.Endpoint) map[netip.Addr]bool {
	first := map[netip.Addr]uint64{}
	each := func(f func(vip netip.Addr, m *member)) {
		for _, e := range endpoints {
			for _, pm := range e.Members {
				m := r.members[backend{e.Key, lb.BackendKey{DIP: pm.DIP, Port: pm.Port}}]
				if m != nil && pm.Weight > 0 {
					f(e.Key.VIP, m)
				}
			}
		}
	}
	each(func(vip netip.Addr, m *member) {
		if before, known := first[vip]; m.state.Alive() && (!known || m.back < before) {
			first[vip] = m.back
		}
	})
	out := map[netip.Addr]bool{}
	each(func(vip netip.Addr, m *member) {
		if m.once && !m.state.Alive() && (m.good > 0 || m.seen < first[vip]) {
			out[vip] = true
		}
	})
	return out
}

// targetOf is what a member's check probes.
func targetOf(m plan.Member, check lb.Health) probe.Target {
	port := check.Port
	if port == 0 {
		port = m.Port
	}
	t := probe.Target{
		Address: netip.AddrPortFrom(m.DIP, port), Kind: probe.Kind(check.Kind),
		Interval: check.Interval, Timeout: check.Timeout,
	}
	if t.Kind == probe.HTTP {
		t.Path, t.Host = check.Path, check.Host
	}
	return t
}
