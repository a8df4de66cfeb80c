package manager

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/place"
	"github.com/shuntlb/shunt/internal/plan"
)

// items holds the plan items of every node. It is updated endpoint by endpoint, so that the cost of
// a change depends on its size. The items always equal those that plan.ForNode computes from
// scratch. Items are never modified.
type items struct {
	ringKeys map[string]*apiv1.PlanItem
	services map[string]*apiv1.PlanItem
	// sources has the source list of each policy, one for all services that use it. lists has the
	// values that the lists were built from. takers has the services that use a list, by policy.
	sources map[string]*apiv1.PlanItem // by policy
	lists   map[string]plan.Sources
	takers  map[string]map[string]bool
	// told has the values that the items of services were built from.
	told      map[string]plan.Service
	endpoints map[string]muxItem
	keys      keyItems
	// where has the muxes of VIPs that are not on every mux.
	where map[place.Key][]string
	// serves is the number of those VIPs on each mux.
	serves   map[string]int
	bindings map[string]hostItem
	// repairs has the items from which the hosts of endpoints' bindings find previous owners.
	repairs map[lb.EndpointKey]*apiv1.PlanItem
	// byHost has the same bindings by host address, and the repairs of their endpoints.
	byHost map[netip.Addr]map[string]*apiv1.PlanItem
	// byEndpoint has the keys of an endpoint's bindings.
	byEndpoint map[lb.EndpointKey][]string
}

// muxItem is an endpoint's item and the VIP whose placement decides which muxes get it.
type muxItem struct {
	vip  place.Key
	item *apiv1.PlanItem
}

func newItems() items {
	return items{
		ringKeys: map[string]*apiv1.PlanItem{}, services: map[string]*apiv1.PlanItem{}, told: map[string]plan.Service{}, endpoints: map[string]muxItem{},
		sources: map[string]*apiv1.PlanItem{}, lists: map[string]plan.Sources{}, takers: map[string]map[string]bool{}, where: map[place.Key][]string{},
		serves: map[string]int{}, keys: newKeyItems(),
		bindings: map[string]hostItem{}, repairs: map[lb.EndpointKey]*apiv1.PlanItem{}, byHost: map[netip.Addr]map[string]*apiv1.PlanItem{}, byEndpoint: map[lb.EndpointKey][]string{},
	}
}

// retouchLocked updates the items that a fold touched, and records the nodes that get them in c.
func (v *view) retouchLocked(touched touched, c *change) {
	shared := map[string][]place.Key{} // VIPs that services have or had
	for name := range touched.services {
		for _, s := range [][]netip.Addr{v.items.told[name].VIPs, v.vipsLocked(name)} {
			for _, vip := range s {
				shared[name] = append(shared[name], plan.VIPKey(vip))
				touched.vips[plan.VIPKey(vip)] = true
			}
		}
	}
	reached := make(map[place.Key]reach, len(touched.vips))
	for vip := range touched.vips {
		var moved bool
		if reached[vip], moved = v.relocateLocked(vip); moved {
			v.noteMoveLocked(vip, reached[vip], c)
			v.snatMovedLocked(vip, c)
		}
	}
	for _, vip := range v.keyedVIPsLocked(touched.keys) {
		if _, known := reached[vip]; !known {
			reached[vip] = v.whereLocked(vip)
		}
	}
	for vip, to := range reached {
		v.rekeyLocked(vip, to, c)
	}
	lists := map[string]bool{} // policies
	for name := range touched.services {
		of := v.items.told[name].SourcesOf
		if v.retellLocked(name, lists) {
			for _, vip := range shared[name] {
				c.tellService(reached[vip], name, of, v.items.told[name].SourcesOf)
			}
		}
	}
	for policy := range lists {
		if v.relistLocked(policy) {
			c.items = append(c.items, plan.SourcesItem(policy))
		}
	}
	for key := range touched.endpoints {
		r, ok := reached[plan.VIPOf(key)]
		if !ok {
			r = v.whereLocked(plan.VIPOf(key))
		}
		v.rebuildLocked(key, r, c)
		c.endpoints = append(c.endpoints, key)
	}
}

// rebuildLocked rebuilds the items of one endpoint and records those that were added, removed or
// changed. reach is the muxes that have the endpoint or had it.
func (v *view) rebuildLocked(key lb.EndpointKey, reach reach, c *change) {
	name := plan.EndpointItem(key)
	c.tellMuxes(reach, name)
	delete(v.items.endpoints, name)
	former := make(map[string]hostItem, len(v.items.byEndpoint[key]))
	for _, k := range v.items.byEndpoint[key] {
		former[k] = v.items.bindings[k]
	}
	hosts := hostsOf(former)
	had := v.items.keys.stampersOf(plan.VIPOf(key), hosts)
	for k := range former {
		v.items.unbind(k)
	}
	delete(v.items.byEndpoint, key)
	repair := v.items.unrepair(key, former)
	defer func() {
		v.noteStampersLocked(plan.VIPOf(key), hosts, had, c)
		v.repairLocked(key, repair, c)
		for k, was := range former {
			c.bindingOf(was.host, name, k)
		}
	}()
	own, owned := v.owners[key]
	st, ok := v.state.Endpoints[key]
	if !owned || !ok {
		return
	}
	encap := v.networks.Encap(key.VIP)
	ep := plan.MakeEndpoint(own.svc, own.ep, &st, v.state.RingKeys, encap)
	v.items.endpoints[name] = muxItem{vip: plan.VIPOf(key), item: convert.EndpointItem(&ep)}
	switches := v.networks.Switches()
	made := plan.MakeBindings(own.svc, own.ep, &st, encap)
	for _, hb := range made {
		if !hosts[hb.Host] { // it had nothing of this endpoint, and may stamp for others of the VIP
			hosts[hb.Host], had[hb.Host] = true, v.items.keys.stamps[hb.Host][plan.VIPOf(key)] > 0
		}
	}
	for _, hb := range made {
		hb.Binding.ShareWith(switches)
		hb.Binding.Created = v.state.Created[own.svc.Name]
		item := convert.BindingItem(&hb.Binding)
		if was := former[item.Key]; was.host == hb.Host && proto.Equal(was.item, item) {
			item = was.item // most changes of an endpoint do not concern its hosts
			delete(former, item.Key)
		} else {
			c.bindingOf(hb.Host, name, item.Key)
		}
		v.items.bind(hostItem{host: hb.Host, item: item, stamps: hb.Binding.Cookie, vip: plan.VIPOf(key)})
		v.items.byEndpoint[key] = append(v.items.byEndpoint[key], item.Key)
	}
}

func (i *items) bind(hi hostItem) {
	i.bindings[hi.item.Key] = hi
	if i.byHost[hi.host] == nil {
		i.byHost[hi.host] = map[string]*apiv1.PlanItem{}
	}
	i.byHost[hi.host][hi.item.Key] = hi.item
	i.keys.stamp(hi, 1)
}

func (i *items) unbind(key string) {
	host := i.bindings[key].host
	i.keys.stamp(i.bindings[key], -1)
	delete(i.bindings, key)
	if delete(i.byHost[host], key); len(i.byHost[host]) == 0 {
		delete(i.byHost, host)
	}
}

// itemLocked returns the item with the key as the node has it, or nil if the node must not have it.
func (v *view) itemLocked(node *lb.Node, key string) *apiv1.PlanItem {
	switch node.Role {
	case lb.RoleMux:
		if mi := v.items.endpoints[key]; mi.item != nil {
			if !v.servesLocked(node.Name, mi.vip) {
				return nil
			}
			return mi.item
		}
		if mi := v.items.keys.muxes[key]; mi.item != nil {
			if !v.servesLocked(node.Name, mi.vip) {
				return nil
			}
			return mi.item
		}
		if item := v.items.services[key]; item != nil {
			if !v.servesAnyLocked(node.Name, item.GetService().GetName()) {
				return nil
			}
			return item
		}
		if policy, ok := strings.CutPrefix(key, plan.SourcesItem("")); ok {
			if !v.takesLocked(node.Name, policy) {
				return nil
			}
			return v.items.sources[policy]
		}
		return v.items.ringKeys[key]
	case lb.RoleHost:
		if item := v.items.keys.ofHost(key, node.Addresses); item != nil {
			return item
		}
		for _, a := range node.Addresses {
			if item := v.items.byHost[a][key]; item != nil {
				return item
			}
		}
	}
	return nil
}

// allLocked returns the node's whole plan.
func (v *view) allLocked(node *lb.Node) map[string]*apiv1.PlanItem {
	out := map[string]*apiv1.PlanItem{}
	switch node.Role {
	case lb.RoleMux:
		for key, mi := range v.items.endpoints {
			if v.servesLocked(node.Name, mi.vip) {
				out[key] = mi.item
			}
		}
		for key, mi := range v.items.keys.muxes {
			if v.servesLocked(node.Name, mi.vip) {
				out[key] = mi.item
			}
		}
		for key, item := range v.items.services {
			if v.servesAnyLocked(node.Name, item.GetService().GetName()) {
				out[key] = item
			}
		}
		for policy, item := range v.items.sources {
			if v.takesLocked(node.Name, policy) {
				out[plan.SourcesItem(policy)] = item
			}
		}
		maps.Copy(out, v.items.ringKeys)
	case lb.RoleHost:
		for _, a := range node.Addresses {
			maps.Copy(out, v.items.byHost[a])
		}
		v.items.keys.addTo(out, node.Addresses)
	}
	p := plan.Plan{Node: *node}
	v.state.Surround(&p)
	item := convert.NodeItem(&p)
	for _, m := range v.managers {
		item.GetNode().Managers = append(item.GetNode().Managers, m.GetAddress())
	}
	if node.Role == lb.RoleHost {
		item.GetNode().Inside = withManagers(item.GetNode().GetInside(), item.GetNode().GetManagers())
	}
	slices.Sort(item.GetNode().Managers)
	item.GetNode().Cas = v.caChange.cas()
	out[plan.NodeItem] = item
	return out
}

// withManagers adds managers to the prefixes that servers reach without SNAT, because a host whose
// own address has SNAT requests its ports from them.
func withManagers(inside, managers []string) []string {
	for _, m := range managers {
		at, err := netip.ParseAddrPort(m)
		if err != nil || !at.Addr().Unmap().Is4() {
			continue // by name, or by IPv6, which has no SNAT
		}
		if p := netip.PrefixFrom(at.Addr().Unmap(), 32).String(); !slices.Contains(inside, p) {
			inside = append(inside, p)
		}
	}
	return inside
}
