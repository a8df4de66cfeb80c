package agent

import (
	"strings"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// patch is the plan after a change: what the change does not touch is not read again. It equals the plan made of all
// items. p is not modified.
func patch(p plan.Plan, up *apiv1.PlanUpdate) (plan.Plan, error) {
	fresh, err := convert.FromItems(up.GetUpsert())
	if err != nil {
		return plan.Plan{}, err
	}
	gone := map[string]bool{}
	for _, item := range up.GetUpsert() {
		gone[item.GetKey()] = true
	}
	for _, key := range up.GetDelete() {
		gone[key] = true
	}
	endpoints := map[lb.EndpointKey]bool{}
	bindings, services, sources := 0, 0, 0
	for key := range gone {
		if rest, ok := strings.CutPrefix(key, "endpoint/"); ok {
			k, err := plan.ParseKey(rest)
			if err != nil {
				return plan.Plan{}, err
			}
			endpoints[k] = true
		} else if strings.HasPrefix(key, "binding/") {
			bindings++
		} else if strings.HasPrefix(key, plan.ServiceItem("")) {
			services++
		} else if strings.HasPrefix(key, plan.SourcesItem("")) {
			sources++
		}
	}
	if gone[plan.NodeItem] {
		p.Node, p.MTU, p.TunnelSources = fresh.Node, fresh.MTU, fresh.TunnelSources
	}
	p.RingKeys = merge(p.RingKeys, fresh.RingKeys, func(k plan.Key) bool { return gone[plan.KeyItem(k.ID)] }, func(a, b plan.Key) int { return int(a.ID) - int(b.ID) })
	if services > 0 {
		p.Services = merge(p.Services, fresh.Services, func(s plan.Service) bool { return gone[plan.ServiceItem(s.Name)] }, plan.CompareServices)
	}
	if sources > 0 {
		p.Sources = merge(p.Sources, fresh.Sources, func(s plan.Sources) bool { return gone[plan.SourcesItem(s.Policy)] }, plan.CompareSources)
	}
	if len(endpoints) > 0 {
		p.Endpoints = merge(p.Endpoints, fresh.Endpoints, func(ep plan.Endpoint) bool { return endpoints[ep.Key] },
			func(a, b plan.Endpoint) int { return plan.CompareKeys(a.Key, b.Key) })
	}
	if bindings > 0 {
		p.Bindings = merge(p.Bindings, fresh.Bindings, func(b plan.Binding) bool { return gone[plan.BindingItem(b.Key, b.Outer, b.Member)] }, plan.CompareBindings)
	}
	return p, nil
}

// merge joins two ordered lists into a new one, without those of old that are gone. It is nil when empty.
func merge[T any](old, fresh []T, gone func(T) bool, compare func(a, b T) int) []T {
	var out []T
	if n := len(old) + len(fresh); n > 0 {
		out = make([]T, 0, n)
	}
	for _, o := range old {
		if gone(o) {
			continue
		}
		for len(fresh) > 0 && compare(fresh[0], o) < 0 {
			out, fresh = append(out, fresh[0]), fresh[1:]
		}
		out = append(out, o)
	}
	out = append(out, fresh...)
	if len(out) == 0 {
		return nil
	}
	return out
}
