package manager

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/plan"
)

// hostTable is a table of hosts whose use is determined by the objects.
type hostTable struct {
	name, unit, field string // name is the name in the hosts' reports
}

var hostTables = []hostTable{
	{"bindings", "bindings", "endpoints"},
	{"binding_parts", "parts of port ranges", "endpoints"},
	{"cookie_keys", "VIPs with cookies", "endpoints"},
	{"handshakes", "endpoints with cookie.form co", "endpoints"},
	{"snat_servers", "servers with snat", "snat"},
}

// hostUse is the use of hosts' tables by services, by host address and table.
type hostUse map[netip.Addr]map[string]int

func (u hostUse) add(host netip.Addr, table string, n int) {
	if u[host] == nil {
		u[host] = map[string]int{}
	}
	u[host][table] += n
}

// addService adds the use by a service, or subtracts it if sign is -1.
func (u hostUse) addService(s *lb.Service, sign int) {
	type stamped struct{ host, vip netip.Addr }
	cookies := map[stamped]bool{}
	plan.EachEndpoint(s, func(key lb.EndpointKey, ep *lb.Endpoint) {
		if ep.Translated() {
			return
		}
		parts := 0
		if key.PortEnd != 0 && key.Protocol != lb.AnyProtocol {
			parts = lb.PortBlocks(key.Port, key.PortEnd)
		}
		made := map[netip.Addr]bool{}
		for i := range ep.Backends {
			host := ep.Backends[i].Host
			if _, ok := ep.Backends[i].DIP(key.VIP); !ok {
				continue
			}
			u.add(host, "bindings", sign)
			u.add(host, "binding_parts", sign*parts)
			if ep.Cookie.Form != "" && !cookies[stamped{host, key.VIP}] {
				cookies[stamped{host, key.VIP}] = true
				u.add(host, "cookie_keys", sign)
			}
			if ep.Cookie.Form == lb.CookieCO && !made[host] {
				made[host] = true
				u.add(host, "handshakes", sign)
			}
		}
	})
	for _, host := range s.SNATHosts() {
		u.add(host, "snat_servers", sign)
	}
}

// of returns the use of a table of a node with these addresses.
func (u hostUse) of(addresses []netip.Addr, table string) (n int) {
	for _, a := range addresses {
		n += u[a][table]
	}
	return n
}

// nodesLocked returns the Nodes that have the addresses of the hosts, by name.
func (u hostUse) nodesLocked(v *view) []string {
	names := map[string]bool{}
	for addr := range u {
		for _, name := range v.wanted.NodesAt(addr) {
			if v.state.Nodes[name] != nil {
				names[name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// hostGrowth returns the change of hosts' use by the write.
func (w *write) hostGrowth() hostUse {
	grown := hostUse{}
	for r, o := range w.edited {
		if old := w.base.record(r); old != nil {
			if svc, ok := old.obj.(*lb.Service); ok {
				grown.addService(svc, -1)
			}
		}
		if svc, ok := o.(*lb.Service); ok {
			grown.addService(svc, 1)
		}
	}
	return grown
}

// crowdedHosts returns violations for tables of hosts without room for the write.
func (w *write) crowdedHosts(c conditions) (faults []lb.Violation) {
	if c.hosts == nil {
		return nil
	}
	grown := w.hostGrowth()
	if len(grown) == 0 {
		return nil
	}
	v := w.base.v
	v.mu.RLock()
	defer v.mu.RUnlock()
	for _, name := range grown.nodesLocked(v) {
		node, tables := v.state.Nodes[name], c.hosts(name)
		for _, t := range hostTables {
			use, reported := tables[t.name]
			more, used := grown.of(node.Addresses, t.name), int(use.used)
			if t.name == "bindings" { // exact, including bindings that the host has not applied yet
				used = 0
				for _, a := range node.Addresses {
					used += len(v.items.byHost[a])
				}
			}
			if reported && more > 0 && used+more > int(use.capacity) {
				faults = append(faults, lb.Violation{
					Field: w.servicesWith("*", t.field), Value: fmt.Sprintf("%d more %s", more, t.unit),
					Allowed: fmt.Sprintf("must be at most %d more: table %s of %s has room for %d, and %d are in use", max(0, int(use.capacity)-used), t.name, lb.Ref(lb.KindNode, name), use.capacity, used),
				})
			}
		}
	}
	return faults
}

// overHostShares returns violations for tables of hosts of which a write of role tenant would fill
// more than a tenant's share. As with tables of muxes, the share does not apply to a Tenant with
// quotas.endpoints.
func (w *write) overHostShares(hosts func(node string) map[string]tableUse) (faults []lb.Violation) {
	if w.by.role != pki.RoleTenant || w.base.quotas(w.by.tenant).Endpoints != 0 {
		return nil
	}
	grown := w.hostGrowth()
	if len(grown) == 0 {
		return nil
	}
	v := w.base.v
	v.mu.RLock()
	defer v.mu.RUnlock()
	used := hostUse{}
	for _, svc := range v.state.Services {
		if svc.Tenant == w.by.tenant {
			used.addService(svc, 1)
		}
	}
	for _, name := range grown.nodesLocked(v) {
		node, tables := v.state.Nodes[name], hosts(name)
		for _, t := range hostTables {
			use, reported := tables[t.name]
			more, most := grown.of(node.Addresses, t.name), int(use.capacity)/tenantShare
			if now := used.of(node.Addresses, t.name) + more; reported && more > 0 && now > most {
				faults = append(faults, lb.Violation{
					Field: w.servicesWith(w.by.tenant, t.field), Value: fmt.Sprintf("%d %s", now, t.unit),
					Allowed: fmt.Sprintf("must be at most %d, a tenant's share of table %s of a host, unless its Tenant has quotas.endpoints", most, t.name),
				})
			}
		}
	}
	return faults
}
