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
	// byHost are the same bindings by host address.
	byHost map[netip.Addr]map[string]*apiv1.PlanItem
	// byEndpoint are the keys of an endpoint's bindings.
	byEndpoint map[lb.EndpointKey][]string
}

func newItems() items {
	return items{
		ringKeys: map[string]*apiv1.PlanItem{}, services: map[string]*apiv1.PlanItem{}, told: map[string]plan.Service{}, endpoints: map[string]*apiv1.PlanItem{},
		bindings: map[string]hostItem{}, byHost: map[netip.Addr]map[string]*apiv1.PlanItem{}, byEndpoint: map[lb.EndpointKey][]string{},
	}
}

// rebuildLocked makes the items of one endpoint afresh and notes those that came, went or changed.
func (v *view) rebuildLocked(key lb.EndpointKey, c *change) {
	c.items = append(c.items, plan.EndpointItem(key))
	delete(v.items.endpoints, plan.EndpointItem(key))
	for _, k := range v.items.byEndpoint[key] {
		c.bindingOf(v.items.bindings[k].host, k)
		v.items.unbind(k)
	}
	delete(v.items.byEndpoint, key)
	own, owned := v.owners[key]
	st, ok := v.state.Endpoints[key]
	if !owned || !ok {
		return
	}
	encap := v.networks.Encap(key.VIP)
	ep := plan.MakeEndpoint(own.svc, own.ep, &st, encap)
	v.items.endpoints[plan.EndpointItem(key)] = convert.EndpointItem(&ep)
	for _, hb := range plan.MakeBindings(own.svc, own.ep, &st, encap) {
		item := convert.BindingItem(&hb.Binding)
		c.bindingOf(hb.Host, item.Key)
		v.items.bind(hostItem{host: hb.Host, item: item})
		v.items.byEndpoint[key] = append(v.items.byEndpoint[key], item.Key)
	}
}

func (i *items) bind(hi hostItem) {
	i.bindings[hi.item.Key] = hi
	if i.byHost[hi.host] == nil {
		i.byHost[hi.host] = map[string]*apiv1.PlanItem{}
	}
	i.byHost[hi.host][hi.item.Key] = hi.item
}

func (i *items) unbind(key string) {
	host := i.bindings[key].host
	delete(i.bindings, key)
	if delete(i.byHost[host], key); len(i.byHost[host]) == 0 {
		delete(i.byHost, host)
	}
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
		for _, a := range node.Addresses {
			maps.Copy(out, v.items.byHost[a])
		}
	}
	p := plan.Plan{Node: *node}
	p.MTU, p.TunnelSources = v.state.Surroundings(node)
	item := convert.NodeItem(&p)
	for _, m := range v.managers {
		item.GetNode().Managers = append(item.GetNode().Managers, m.GetAddress())
	}
	slices.Sort(item.GetNode().Managers)
	out[plan.NodeItem] = item
	return out
}

func owns(node *lb.Node, host netip.Addr) bool { return slices.Contains(node.Addresses, host) }
