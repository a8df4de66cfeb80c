package mux

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// step is the plan delta from the applied plan to another. Its cost depends on the size of the
// change.
type step struct {
	before, after plan.Plan
	changes       []plan.EndpointChange
	// rules are the VIP rules before the step; turned are those that change.
	rules, turned vipRules
	// also are further VIPs to update in the tables.
	also []netip.Addr
	// whole: the tables are given the entire plan.
	whole bool
}

// stepTo returns the step to a plan. The caller holds applying. whole: give the tables the entire
// plan.
func (a *Agent) stepTo(after plan.Plan, changes []plan.EndpointChange, whole bool) step {
	before := a.plan
	s := step{before: before, after: after, changes: changes, rules: a.rules}
	s.whole = whole || after.MTU != before.MTU || !slices.Equal(after.TunnelSources, before.TunnelSources) ||
		!slices.Equal(after.RingKeys, before.RingKeys)
	s.turned = a.rules.turned(a.sources, before, after)
	s.also = append(plan.OtherCIDs(before.CIDs, after.CIDs), plan.OtherCookies(before.Cookies, after.Cookies, func(vip netip.Addr) bool { return stampsOf(after, vip) })...)
	return s
}

// touched returns, each sorted, the VIPs to update in the tables, with their rules, and all of
// their endpoints.
func (s *step) touched() (vips []dataplane.MuxVIP, endpoints []plan.Endpoint) {
	keys := map[lb.EndpointKey]bool{}
	for _, c := range s.changes {
		keys[vipOf(c.Key())] = true
	}
	for _, vip := range slices.AppendSeq(slices.Clone(s.also), maps.Keys(s.turned)) {
		outbound := s.rules[vip].Outbound || s.turned[vip].Outbound
		if key := (lb.EndpointKey{VIP: vip}); outbound || len(plan.OfVIP(s.after.Endpoints, key)) > 0 {
			keys[key] = true
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(keys), plan.CompareKeys) {
		v, turned := s.turned[key.VIP]
		if !turned {
			v = s.rules[key.VIP]
		}
		v.VNI, v.VIP = key.VNI, key.VIP
		vips = append(vips, v)
		endpoints = append(endpoints, plan.OfVIP(s.after.Endpoints, key)...)
	}
	return vips, endpoints
}

// vipOf returns the key of an endpoint's VIP.
func vipOf(key lb.EndpointKey) lb.EndpointKey { return lb.EndpointKey{VNI: key.VNI, VIP: key.VIP} }

// keys returns the keys of the endpoints that the step changes.
func (s *step) keys() []lb.EndpointKey {
	out := make([]lb.EndpointKey, 0, len(s.changes))
	for _, c := range s.changes {
		out = append(out, c.Key())
	}
	return out
}
