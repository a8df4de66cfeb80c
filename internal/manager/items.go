package manager

import (
	"maps"
	"net/netip"
	"slices"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// items are the plan items of every node, kept up to date endpoint by endpoint, so that a change costs what it
// changes. They always equal what plan.ForNode computes from scratch. Items are never modified.
type items struct {
	ringKeys map[string]*apiv1.PlanItem
	services map[string]*apiv1.PlanItem
	// told is what the items of services were made of.
	told      map[string]plan.Service
	endpoints map[string]*apiv1.PlanItem
	bindings  map[string]hostItem
	// byEndpoint are the keys of an endpoint's bindings.
	byEndpoint map[lb.EndpointKey][]string
}

func newItems() items {
	return items{
		ringKeys: map[string]*apiv1.PlanItem{}, services: map[string]*apiv1.PlanItem{}, told: map[string]plan.Service{}, endpoints: map[string]*apiv1.PlanItem{},
		bindings: map[string]hostItem{}, byEndpoint: map[lb.EndpointKey][]string{},
	}
}

// rebuildLocked makes the items of one endpoint afresh and returns the keys of those that came, went or changed.
func (v *view) rebuildLocked(key lb.EndpointKey) []string {
	changed := append([]string{plan.EndpointItem(key)}, v.items.byEndpoint[key]...)
	delete(v.items.endpoints, plan.EndpointItem(key))
	for _, k := range v.items.byEndpoint[key] {
		delete(v.items.bindings, k)
	}
	delete(v.items.byEndpoint, key)
	own, owned := v.owners[key]
	st, ok := v.state.Endpoints[key]
	if !owned || !ok {
		return changed
	}
	encap := v.state.Encap()
	ep := plan.MakeEndpoint(own.svc, own.ep, &st, encap)
	v.items.endpoints[plan.EndpointItem(key)] = convert.EndpointItem(&ep)
	for _, hb := range plan.MakeBindings(own.svc, own.ep, &st, encap) {
		item := convert.BindingItem(&hb.Binding)
		v.items.bindings[item.Key] = hostItem{host: hb.Host, item: item}
		v.items.byEndpoint[key] = append(v.items.byEndpoint[key], item.Key)
	}
	return append(changed, v.items.byEndpoint[key]...)
}

// retellLocked makes the service's item afresh where it differs and returns its key if so. Lists of sources are long: an
// equal item is not made again.
func (v *view) retellLocked(name string) []string {
	key := plan.ServiceItem(name)
	had, told := v.items.told[name]
	svc := v.state.Services[name]
	if svc == nil {
		if !told {
			return nil
		}
		delete(v.items.told, name)
		delete(v.items.services, key)
		return []string{key}
	}
	now := plan.MakeService(svc, v.state.Policies)
	if told && sameService(&had, &now) {
		return nil
	}
	v.items.told[name], v.items.services[key] = now, convert.ServiceItem(&now)
	return []string{key}
}

// sameService tells whether two services share the same among their endpoints.
func sameService(a, b *plan.Service) bool {
	return slices.Equal(a.VIPs, b.VIPs) && a.Limits == b.Limits &&
		slices.Equal(a.Sources.Allow, b.Sources.Allow) && slices.Equal(a.Sources.Deny, b.Sources.Deny)
}

// itemLocked is the item with the key as the node has it; nil when the node must not have it.
func (v *view) itemLocked(node *lb.Node, key string) *apiv1.PlanItem {
	switch node.Role {
	case lb.RoleMux:
		if item := v.items.endpoints[key]; item != nil {
			return item
		}
		if item := v.items.services[key]; item != nil {
			return item
		}
		return v.items.ringKeys[key]
	case lb.RoleHost:
		if hi := v.items.bindings[key]; hi.item != nil && owns(node, hi.host) {
			return hi.item
		}
	}
	return nil
}

// allLocked is the node's whole plan.
func (v *view) allLocked(node *lb.Node) map[string]*apiv1.PlanItem {
	out := map[string]*apiv1.PlanItem{}
	switch node.Role {
	case lb.RoleMux:
		maps.Copy(out, v.items.endpoints)
		maps.Copy(out, v.items.services)
		maps.Copy(out, v.items.ringKeys)
	case lb.RoleHost:
		for key, hi := range v.items.bindings {
			if owns(node, hi.host) {
				out[key] = hi.item
			}
		}
	}
	p := plan.Plan{Node: *node}
	p.MTU, p.TunnelSources = v.state.Surroundings(node)
	out[plan.NodeItem] = convert.NodeItem(&p)
	return out
}

func owns(node *lb.Node, host netip.Addr) bool { return slices.Contains(node.Addresses, host) }
