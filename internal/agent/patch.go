package agent

import (
	"slices"
	"strings"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/plan"
)

// patch returns the plan after a change. Parts that the change does not touch are not parsed again.
// It equals the plan made of all items. p is not modified.
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
	var endpoints []plan.Endpoint
	var services []plan.Service
	var sources []plan.Sources
	bindings, repairs, keys := 0, 0, 0
	for key := range gone {
		if rest, ok := strings.CutPrefix(key, "endpoint/"); ok {
			k, err := plan.ParseKey(rest)
			if err != nil {
				return plan.Plan{}, err
			}
			endpoints = append(endpoints, plan.Endpoint{Key: k})
		} else if strings.HasPrefix(key, "binding/") {
			bindings++
		} else if strings.HasPrefix(key, "repair/") {
			repairs++
		} else if strings.HasPrefix(key, "cookies/") || strings.HasPrefix(key, "cids/") {
			keys++
		} else if name, ok := strings.CutPrefix(key, plan.ServiceItem("")); ok {
			services = append(services, plan.Service{Name: name})
		} else if policy, ok := strings.CutPrefix(key, plan.SourcesItem("")); ok {
			sources = append(sources, plan.Sources{Policy: policy})
		}
	}
	if gone[plan.NodeItem] {
		p.Node, p.MTU, p.TunnelSources, p.VIPs, p.Underlay = fresh.Node, fresh.MTU, fresh.TunnelSources, fresh.VIPs, fresh.Underlay
		p.Inside, p.Switches = fresh.Inside, fresh.Switches
	}
	p.RingKeys = merge(p.RingKeys, fresh.RingKeys, func(k plan.Key) bool { return gone[plan.KeyItem(k.ID)] }, func(a, b plan.Key) int { return int(a.ID) - int(b.ID) })
	p.Services = replace(p.Services, fresh.Services, services, plan.CompareServices)
	p.Sources = replace(p.Sources, fresh.Sources, sources, plan.CompareSources)
	p.Endpoints = replace(p.Endpoints, fresh.Endpoints, endpoints, func(a, b plan.Endpoint) int { return plan.CompareKeys(a.Key, b.Key) })
	if bindings > 0 {
		p.Bindings = merge(p.Bindings, fresh.Bindings, func(b plan.Binding) bool { return gone[plan.BindingItem(b.Key, b.Outer, b.Member)] }, plan.CompareBindings)
	}
	if repairs > 0 {
		p.Repairs = merge(p.Repairs, fresh.Repairs, func(r plan.Repair) bool { return gone[plan.RepairItem(r.Key)] }, plan.CompareRepairs)
	}
	if keys > 0 {
		p.Cookies = merge(p.Cookies, fresh.Cookies, func(k plan.CookieKeys) bool { return gone[plan.CookiesItem(k.VNI, k.VIP)] }, plan.CompareCookies)
		p.CIDs = merge(p.CIDs, fresh.CIDs, func(k plan.CIDKeys) bool { return gone[plan.CIDsItem(k.VNI, k.VIP)] }, plan.CompareCIDs)
	}
	return p, nil
}

// replace returns a sorted list in which fresh entries replace those that compare equal to one of
// gone, which all fresh ones do. It returns old itself if gone is empty, else a new list, nil when
// empty. Entries between those are copied only.
func replace[T any](old, fresh, gone []T, compare func(a, b T) int) []T {
	if len(gone) == 0 {
		return old
	}
	slices.SortFunc(gone, compare)
	out := make([]T, 0, len(old)+len(fresh))
	for _, key := range gone {
		at, found := slices.BinarySearchFunc(old, key, compare)
		out = append(out, old[:at]...)
		if old = old[at:]; found {
			old = old[1:]
		}
		for len(fresh) > 0 && compare(fresh[0], key) == 0 {
			out, fresh = append(out, fresh[0]), fresh[1:]
		}
	}
	if out = append(out, old...); len(out) == 0 {
		return nil
	}
	return out
}

// merge joins two sorted lists into a new one, without those of old that are gone. It returns nil
// when empty.
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
