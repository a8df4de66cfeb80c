package manager

import (
	"net/netip"

	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// repairItem holds the data with which hosts of an endpoint find previous owners, and the hosts
// that have it.
type repairItem struct {
	item  *apiv1.PlanItem
	hosts map[netip.Addr]bool
}

// unrepair removes the endpoint's repair from the hosts of its bindings and returns it; the item is
// nil if there is none.
func (i *items) unrepair(key lb.EndpointKey, bindings map[string]hostItem) repairItem {
	out := repairItem{item: i.repairs[key]}
	if out.item == nil {
		return out
	}
	delete(i.repairs, key)
	out.hosts = map[netip.Addr]bool{}
	for _, b := range bindings {
		out.hosts[b.host] = true
	}
	for host := range out.hosts {
		if delete(i.byHost[host], out.item.Key); len(i.byHost[host]) == 0 {
			delete(i.byHost, host)
		}
	}
	return out
}

// repairLocked creates an endpoint's repair for the hosts of its bindings, and records the hosts
// for which it changed.
func (v *view) repairLocked(key lb.EndpointKey, was repairItem, c *change) {
	item := v.makeRepairLocked(key)
	if item != nil && was.item != nil && proto.Equal(item, was.item) {
		item = was.item
	}
	name, hosts := plan.EndpointItem(key), map[netip.Addr]bool{}
	if item != nil {
		for _, k := range v.items.byEndpoint[key] {
			hosts[v.items.bindings[k].host] = true
		}
	}
	for host := range was.hosts {
		if item == nil || !hosts[host] {
			c.bindingOf(host, name, was.item.Key)
		}
	}
	if item == nil {
		return
	}
	v.items.repairs[key] = item
	for host := range hosts {
		if v.items.byHost[host] == nil {
			v.items.byHost[host] = map[string]*apiv1.PlanItem{}
		}
		v.items.byHost[host][item.Key] = item
		if item != was.item || !was.hosts[host] {
			c.bindingOf(host, name, item.Key)
		}
	}
}

// makeRepairLocked returns the repair of an endpoint, or nil if it needs none.
func (v *view) makeRepairLocked(key lb.EndpointKey) *apiv1.PlanItem {
	own, owned := v.owners[key]
	st, ok := v.state.Endpoints[key]
	if !owned || !ok {
		return nil
	}
	r, ok := plan.MakeRepair(own.ep, &st, v.state.RingKeys, v.networks.Encap(key.VIP))
	if !ok {
		return nil
	}
	return convert.RepairItem(r)
}
