package mux

import (
	"net/netip"
	"slices"

	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// vipIndex holds the health of the VIPs of the applied plan. Only touched VIPs are evaluated again,
// because the result is needed at every change, with 20,000 VIPs, too.
type vipIndex struct {
	all     map[netip.Addr]*vipHealth
	touched map[netip.Addr]bool
}

// vipHealth is the health of a VIP of the applied plan.
type vipHealth struct {
	// groups are its endpoints as applied, sorted by key. Those of a plan that is being applied may
	// differ.
	groups []*group
	// served: one of its endpoints has at least its minimum of usable members. Such members are
	// alive, or treated so, take new flows and can be reached.
	served bool
	// unsettled: it has a member that was never probed, or a dead one that was alive once and may
	// be alive again, because its last probe was good, or because it was not probed since the VIP's
	// other members came back. Damped members are not waited for.
	unsettled bool
	// outbound: servers hold ports of it (SNAT), and the tables forward replies to them.
	outbound bool
}

func newVIPIndex() vipIndex {
	return vipIndex{all: map[netip.Addr]*vipHealth{}, touched: map[netip.Addr]bool{}}
}

// touch marks a VIP for evaluation.
func (s *vipIndex) touch(vip netip.Addr) { s.touched[vip] = true }

// touchAll marks all VIPs.
func (s *vipIndex) touchAll() {
	for vip := range s.all {
		s.touched[vip] = true
	}
}

// get returns the last evaluation; the zero value if there is none.
func (s *vipIndex) get(vip netip.Addr) vipHealth {
	if v := s.all[vip]; v != nil {
		return *v
	}
	return vipHealth{}
}

// set makes g the applied group of an endpoint; nil: the endpoint was removed.
func (s *vipIndex) set(key lb.EndpointKey, g *group) {
	s.touch(key.VIP)
	v := s.all[key.VIP]
	if v == nil {
		if g == nil {
			return
		}
		v = &vipHealth{}
		s.all[key.VIP] = v
	}
	at, there := slices.BinarySearchFunc(v.groups, key, func(g *group, key lb.EndpointKey) int { return plan.CompareKeys(g.Key, key) })
	switch {
	case there && g != nil:
		v.groups[at] = g
	case there:
		v.groups = slices.Delete(v.groups, at, at+1)
	case g != nil:
		v.groups = slices.Insert(v.groups, at, g)
	}
	if len(v.groups) == 0 {
		delete(s.all, key.VIP)
	}
}

// look evaluates the touched VIPs and calls f for each, with the zero value for a VIP that is not
// in the index.
func (r *roster) look(reachable func(netip.Addr) bool, f func(netip.Addr, vipHealth)) {
	for vip := range r.vips.touched {
		v := r.vips.all[vip]
		if v == nil {
			f(vip, vipHealth{})
			continue
		}
		v.served = slices.ContainsFunc(v.groups, func(g *group) bool { return r.serves(g, reachable) })
		v.unsettled = unsettled(v.groups)
		f(vip, *v)
	}
	clear(r.vips.touched)
}

// serves reports whether an endpoint has enough members for new flows.
func (r *roster) serves(g *group, reachable func(netip.Addr) bool) bool {
	open, minimum, n := r.decision(g.Key).Open(), g.Health.MinimumHealthy, 0
	for i, m := range g.members {
		if pm := &g.Members[i]; pm.Weight > 0 && (open || m.alive()) && reachable(pm.Outer) {
			if n++; health.Serves(n, minimum) {
				return true
			}
		}
	}
	return false
}

// unsettled reports whether the endpoints of a VIP have a member that must be probed before the VIP
// is announced.
func unsettled(groups []*group) bool {
	first, known, lost := uint64(0), false, false
	for _, g := range groups {
		for i, m := range g.members {
			switch {
			case g.Members[i].Weight == 0, m.damped:
			case !m.alive():
				lost = lost || m.once || !m.settled()
			case !known || m.back < first:
				first, known = m.back, true
			}
		}
	}
	for _, g := range groups {
		for i, m := range g.members {
			if lost && g.Members[i].Weight > 0 && !m.alive() && !m.damped && (!m.settled() || m.once && (m.good > 0 || m.seen < first)) {
				return true
			}
		}
	}
	return false
}
