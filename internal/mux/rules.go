package mux

import (
	"net/netip"
	"slices"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// vipRules are what services say of VIPs, also of those that are on other muxes.
type vipRules map[netip.Addr]dataplane.MuxVIP

// turned is what becomes of the rules of one plan by the step to another: the zero value where nothing is said any more. What it
// costs is by the services that change, but for plans with something that lingers, whose services are in no order.
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

// obey takes over what turned.
func (r vipRules) obey(turned vipRules) {
	for vip, rule := range turned {
		if rule.VIP.IsValid() {
			r[vip] = rule
		} else {
			delete(r, vip)
		}
	}
}

// orderedServices tells whether services are ordered by name, each once.
func orderedServices(of []plan.Service) bool {
	for i := 1; i < len(of); i++ {
		if of[i-1].Name >= of[i].Name {
			return false
		}
	}
	return true
}

// otherSources are the services that take their sources from a policy whose list is another.
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

// each calls f with what applies to each VIP of a plan's services, also to those that are on other muxes.
func (l sourceLists) each(p plan.Plan, f func(dataplane.MuxVIP)) {
	policies := l.policies(p)
	for i := range p.Services {
		l.rule(&p.Services[i], policies, f)
	}
}

// policies are the lists of a plan's policies.
func (l sourceLists) policies(p plan.Plan) map[string]*dataplane.SourceList {
	out := make(map[string]*dataplane.SourceList, len(p.Sources))
	for _, s := range p.Sources {
		out[s.Policy] = l.get(plan.SourcesItem(s.Policy), s.Sources)
	}
	return out
}

// rule calls f with what applies to each VIP of a service.
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
