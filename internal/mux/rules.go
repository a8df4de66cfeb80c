package mux

import (
	"net/netip"
	"slices"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// vipRules holds the limits and sources of services' VIPs, including VIPs on other muxes.
type vipRules map[netip.Addr]dataplane.MuxVIP

// turned returns the rules that differ between two plans: the zero value for a VIP that has no rule
// any more. The cost depends on the services that change, except for plans with retired VIPs, whose
// services are not sorted.
func (r vipRules) turned(lists sourceLists, before, after plan.Plan) vipRules {
	if plan.SameSlice(before.Services, after.Services) && plan.SameSlice(before.Sources, after.Sources) {
		return nil
	}
	out := vipRules{}
	if !orderedServices(before.Services) || !orderedServices(after.Services) {
		for vip := range r {
			out[vip] = dataplane.MuxVIP{}
		}
		lists.each(after, func(v dataplane.MuxVIP) { out[v.VIP] = v })
		for vip, rule := range out {
			if r[vip] == rule {
				delete(out, vip)
			}
		}
		return out
	}
	changes := append(plan.ServiceDifferences(before.Services, after.Services), otherSources(before, after)...)
	for _, c := range changes {
		if c.Before != nil {
			for _, vip := range c.Before.VIPs {
				out[vip] = dataplane.MuxVIP{}
			}
		}
	}
	policies := lists.policies(after)
	for _, c := range changes {
		if c.After != nil {
			lists.rule(c.After, policies, func(v dataplane.MuxVIP) { out[v.VIP] = v })
		}
	}
	return out
}

// obey applies the rules that differ.
func (r vipRules) obey(turned vipRules) {
	for vip, rule := range turned {
		if rule.VIP.IsValid() {
			r[vip] = rule
		} else {
			delete(r, vip)
		}
	}
}

// orderedServices reports whether services are sorted by name, without duplicates.
func orderedServices(of []plan.Service) bool {
	for i := 1; i < len(of); i++ {
		if of[i-1].Name >= of[i].Name {
			return false
		}
	}
	return true
}

// otherSources returns the services whose source policy has a different list.
func otherSources(before, after plan.Plan) (out []plan.ServiceChange) {
	if plan.SameSlice(before.Sources, after.Sources) {
		return nil
	}
	same := func(list plan.Sources) bool {
		return slices.ContainsFunc(before.Sources, func(was plan.Sources) bool {
			return was.Policy == list.Policy && slices.Equal(was.Allow, list.Allow) && slices.Equal(was.Deny, list.Deny)
		})
	}
	other := map[string]bool{}
	for _, list := range after.Sources {
		if !same(list) {
			other[list.Policy] = true
		}
	}
	for i := range after.Services {
		if s := &after.Services[i]; s.SourcesOf != "" && other[s.SourcesOf] {
			out = append(out, plan.ServiceChange{After: s})
		}
	}
	return out
}

// each calls f with the rule of each VIP of a plan's services, including VIPs on other muxes.
func (l sourceLists) each(p plan.Plan, f func(dataplane.MuxVIP)) {
	policies := l.policies(p)
	for i := range p.Services {
		l.rule(&p.Services[i], policies, f)
	}
}

// policies returns the lists of a plan's policies.
func (l sourceLists) policies(p plan.Plan) map[string]*dataplane.SourceList {
	out := make(map[string]*dataplane.SourceList, len(p.Sources))
	for _, s := range p.Sources {
		out[s.Policy] = l.get(plan.SourcesItem(s.Policy), s.Sources)
	}
	return out
}

// rule calls f with the rule of each VIP of a service.
func (l sourceLists) rule(s *plan.Service, policies map[string]*dataplane.SourceList, f func(dataplane.MuxVIP)) {
	limits, sources := s.Limits, policies[s.SourcesOf]
	if s.SourcesOf == "" {
		sources = l.get(plan.ServiceItem(s.Name), s.Sources)
	}
	if limits.Ping == 0 {
		limits.Ping = lb.DefaultPing
	}
	for _, vip := range s.VIPs {
		f(dataplane.MuxVIP{VIP: vip, Limits: limits, Sources: sources, Outbound: s.Outbound})
	}
}
