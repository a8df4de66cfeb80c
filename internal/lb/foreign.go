package lb

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// Claimant is the client that requests a change, and the addresses reserved for the load balancer.
type Claimant struct {
	// Tenant is the tenant of a client with role tenant; empty for others, which may use addresses
	// that no Tenant owns.
	Tenant string
	// Managers are the addresses of managers, with their names.
	Managers map[netip.Addr]string
}

// Foreign returns the faults of edits that take addresses of others: services that use another
// Tenant's DIPs or VIPs, or addresses of the load balancer's machines; Tenants that would own an
// address twice or one that another tenant's service uses; muxes at addresses that services use;
// and tenants whose health checks exceed quotas.probes. For a client with role tenant a service may
// only use addresses that the Tenant lists.
//
// Unlike Check it only considers changes: a service keeps the addresses that it used before in the
// same fields, so that a service from before a rule existed can still be drained and changed.
func (s *State) Foreign(by Claimant, edits ...Edit) []Violation {
	a := &foreign{after: s.after(edits), by: by}
	var out []Violation
	for _, i := range slices.SortedFunc(maps.Keys(a.edits), id.compare) {
		f := &faults{}
		switch o := a.edits[i].(type) {
		case *Service:
			a.service(f, o)
		case *Tenant:
			a.tenant(f, o)
		case *Node:
			a.node(f, o)
		}
		if len(f.found) > 0 {
			out = append(out, f.prefixed(Ref(i.kind, i.name))...)
		}
	}
	for _, tenant := range slices.Sorted(maps.Keys(a.taken)) {
		f := &faults{}
		a.probes(f, tenant)
		if t := a.tenantOf(tenant); t != nil && !slices.ContainsFunc(edits, func(e Edit) bool { return e.Kind == KindTenant && e.Name == tenant }) {
			out = append(out, f.prefixed(Ref(KindTenant, tenant))...)
		}
	}
	return out
}

// foreign is a state with the edits of one claimant.
type foreign struct {
	*after
	by Claimant
	// machines are the addresses of muxes and their routers; nil until needed.
	machines map[netip.Addr]string
}

// tenantOf returns the Tenant after the edits, or nil.
func (a *foreign) tenantOf(name string) *Tenant {
	t, _ := a.object(id{KindTenant, name}).(*Tenant)
	return t
}

// owner returns the Tenant that owns an address as DIP, or as VIP, after the edits; nil if none
// does.
func (a *foreign) owner(addr netip.Addr, vips bool) (out *Tenant) {
	table := &a.dipsOf
	if vips {
		table = &a.vipsOf
	}
	table.each(addr, func(t *Tenant) {
		if _, edited := a.edits[id{KindTenant, t.Name}]; !edited && (out == nil || t.Name < out.Name) {
			out = t
		}
	})
	for i, o := range a.edits {
		if t, ok := o.(*Tenant); ok && i.kind == KindTenant && holding(t.owned(vips), addr) >= 0 && (out == nil || t.Name < out.Name) {
			out = t
		}
	}
	return out
}

// machine returns the part of the load balancer that has an address; empty if none does.
func (a *foreign) machine(addr netip.Addr) string {
	if name, ok := a.by.Managers[addr]; ok {
		return "manager " + name
	}
	if a.machines == nil {
		a.machines = map[netip.Addr]string{}
		add := func(n *Node) {
			for addr, what := range machinesOf(n) {
				if old, there := a.machines[addr]; !there || what < old {
					a.machines[addr] = what
				}
			}
		}
		for name, n := range a.muxes {
			if _, edited := a.edits[id{KindNode, name}]; !edited {
				add(n)
			}
		}
		for _, o := range a.edits {
			add(muxOf(o))
		}
	}
	return a.machines[addr]
}

// machinesOf returns the addresses of a mux and of its routers, with their owner; none for nil.
func machinesOf(n *Node) map[netip.Addr]string {
	if n == nil {
		return nil
	}
	out := map[netip.Addr]string{}
	if n.BGP != nil {
		for _, p := range n.BGP.Peers {
			out[p.Address] = "a BGP peer of " + Ref(KindNode, n.Name)
		}
	}
	for _, addr := range slices.Concat(n.Addresses, natOf(n)) {
		out[addr] = Ref(KindNode, n.Name)
	}
	return out
}

// service checks the addresses that a service did not use before.
func (a *foreign) service(f *faults, s *Service) {
	old, _ := a.objects[idOf(s)].(*Service)
	if old != nil && old.Tenant != s.Tenant {
		old = nil
	}
	var before map[named]bool
	s.eachNamed(func(n named, at spot) bool {
		wrong := a.wrong(s, n, at)
		if wrong == "" {
			return true
		}
		if before == nil && old != nil {
			before = old.names()
		}
		if !before[n] {
			f.add(n.field(s, at), n.addr.String(), wrong)
		}
		return len(f.found) < maxFaults
	})
}

// wrong returns the reason why a service may not use an address; empty if it may.
func (a *foreign) wrong(s *Service, n named, at spot) string {
	if n.use == useVIP {
		return a.wrongOwner(s.Tenant, n, true)
	}
	if m := a.machine(n.addr); m != "" && (n.use != useSNAT || s.SNAT[at.item].Host.IsValid()) {
		if a.by.Tenant != "" {
			m = "the operator's"
		}
		return "must not be an address of the load balancer's own machines: it is of " + m
	}
	var dips []netip.Addr
	switch n.use {
	case useHost:
		dips = s.Endpoints[at.endpoint].Backends[at.backend].DIPs
	case useSNATHost:
		dips = []netip.Addr{s.SNAT[at.item].DIP}
	default:
		return a.wrongOwner(s.Tenant, n, false)
	}
	if a.by.Tenant == "" || slices.Contains(dips, n.addr) {
		return "" // a DIP is checked as a DIP
	}
	if t := a.tenantOf(s.Tenant); t == nil || holding(t.Hosts, n.addr) < 0 {
		return a.lists(s.Tenant, "hosts", func(t *Tenant) []netip.Prefix { return t.Hosts })
	}
	return ""
}

// wrongOwner returns the reason why services of a tenant may not use an address that has no owner
// or another one; empty if they may.
func (a *foreign) wrongOwner(tenant string, n named, vips bool) string {
	list := "dips"
	if vips {
		list = "vips"
	}
	t := a.owner(n.addr, vips)
	switch {
	case t == nil && a.by.Tenant == "":
		return ""
	case t != nil && t.Name == tenant && a.by.Tenant != "" && !vips && a.isHost(n.addr) && holding(t.Hosts, n.addr) < 0:
		// A prefix of servers may contain their machine.
		return "must not be the address of a host that the hosts of " + Ref(KindTenant, tenant) + " do not hold"
	case t != nil && (t.Name == tenant || n.use != useSNAT && t.shares(n.addr, vips, tenant)):
		return ""
	case a.by.Tenant != "":
		return a.lists(tenant, list, func(t *Tenant) []netip.Prefix { return t.owned(vips) })
	case n.use == useSNAT:
		return fmt.Sprintf("must not be inside the dips of another Tenant, and %s has it: dips are not shared for snat", Ref(KindTenant, t.Name))
	}
	return fmt.Sprintf("must not be inside the %s of another Tenant, and %s has it and does not share it with tenant %s", list, Ref(KindTenant, t.Name), tenant)
}

// isHost reports whether a Node of role host has an address.
func (a *foreign) isHost(addr netip.Addr) bool {
	n, _ := a.object(id{KindNode, a.addressOwner(addr)}).(*Node)
	return n != nil && n.Role == RoleHost
}

// lists describes where addresses of a tenant must be.
func (a *foreign) lists(tenant, name string, of func(*Tenant) []netip.Prefix) string {
	ref := Ref(KindTenant, tenant)
	if t := a.tenantOf(tenant); t != nil && len(of(t)) > 0 {
		return fmt.Sprintf("must be inside the %s of %s: %s", name, ref, list(of(t)))
	}
	return fmt.Sprintf("must be inside the %s of %s, which lists none: an admin sets them", name, ref)
}

// tenant checks that no other Tenant owns a Tenant's addresses and that no other tenant's service
// uses them.
func (a *foreign) tenant(f *faults, t *Tenant) {
	old, _ := a.objects[idOf(t)].(*Tenant)
	a.probes(f, t.Name)
	for _, vips := range [2]bool{false, true} {
		a.overlaps(f, t, vips)
	}
	if old == nil {
		old = &Tenant{}
	}
	if slices.Equal(old.DIPs, t.DIPs) && slices.Equal(old.VIPs, t.VIPs) && slices.EqualFunc(old.Shared, t.Shared, Share.equal) {
		return
	}
	var found []string
	conflicts := map[string]Violation{}
	a.eachService(func(s *Service) {
		if s.Tenant == t.Name {
			return
		}
		s.eachNamed(func(n named, _ spot) bool {
			vips := n.use == useVIP
			i := holding(t.owned(vips), n.addr)
			if n.use == useHost || n.use == useSNATHost || i < 0 || n.use != useSNAT && t.shares(n.addr, vips, s.Tenant) {
				return true
			}
			at, p, cure := fmt.Sprintf("dips[%d]", i), t.DIPs, ": share it, or change the service first"
			if n.use == useSNAT {
				cure = ": change the service first"
			}
			if vips {
				at, p = fmt.Sprintf("vips[%d]", i), t.VIPs
			}
			ref := Ref(KindService, s.Name)
			if _, there := conflicts[ref]; !there {
				found = append(found, ref)
				conflicts[ref] = Violation{Field: at, Value: p[i].String(), Allowed: fmt.Sprintf("must not hold %s, which %s of tenant %s names%s", n.addr, ref, s.Tenant, cure)}
			}
			return false
		})
	})
	slices.Sort(found)
	for _, ref := range found {
		f.add(conflicts[ref].Field, conflicts[ref].Value, conflicts[ref].Allowed)
	}
}

func (s Share) equal(o Share) bool {
	return slices.Equal(s.Tenants, o.Tenants) && slices.Equal(s.DIPs, o.DIPs) && slices.Equal(s.VIPs, o.VIPs)
}

// overlaps checks that an edited Tenant's prefixes do not overlap those of others. Of two edited
// ones the one with the later name is faulty.
func (a *foreign) overlaps(f *faults, t *Tenant, vips bool) {
	name := "dips"
	if vips {
		name = "vips"
	}
	mine := t.owned(vips)
	if len(mine) == 0 {
		return
	}
	var others []*Tenant
	for other, o := range a.tenants {
		if _, edited := a.edits[id{KindTenant, other}]; !edited {
			others = append(others, o)
		}
	}
	for _, o := range a.edits {
		if other, ok := o.(*Tenant); ok && other.Name < t.Name {
			others = append(others, other)
		}
	}
	slices.SortFunc(others, func(a, b *Tenant) int { return cmp.Compare(a.Name, b.Name) })
	for i, p := range mine {
		for _, other := range others {
			f.apart(fmt.Sprintf("%s[%d]", name, i), p, name, " of "+Ref(KindTenant, other.Name), other.owned(vips))
		}
	}
}

// node checks that a mux gets no address that a service uses as a server or its machine.
func (a *foreign) node(f *faults, n *Node) {
	mine := machinesOf(muxOf(n))
	if old, ok := a.objects[idOf(n)].(*Node); ok {
		for addr := range machinesOf(muxOf(old)) {
			delete(mine, addr)
		}
	}
	if len(mine) == 0 {
		return
	}
	users := map[netip.Addr]string{}
	a.eachService(func(s *Service) {
		s.eachNamed(func(n named, _ spot) bool {
			if _, ok := mine[n.addr]; ok && n.use != useVIP {
				if ref := Ref(KindService, s.Name); users[n.addr] == "" || ref < users[n.addr] {
					users[n.addr] = ref
				}
			}
			return true
		})
	})
	note := func(path string, addr netip.Addr) {
		if by := users[addr]; by != "" {
			f.add(path, addr.String(), "must not be an address that a service names as a server, and "+by+" does")
		}
	}
	for i, addr := range n.Addresses {
		note(fmt.Sprintf("address[%d]", i), addr)
	}
	if n.BGP != nil {
		for i, p := range n.BGP.Peers {
			note(fmt.Sprintf("bgp.peers[%d].address", i), p.Address)
		}
	}
}

// probes compares the probe rate of a tenant's health checks with its quota if an edit raises the
// rate or lowers the quota.
func (a *foreign) probes(f *faults, tenant string) {
	t := a.tenantOf(tenant)
	if t == nil {
		return
	}
	quota := cmp.Or(t.Quotas.Probes, DefaultProbes)
	old, _ := a.objects[id{KindTenant, tenant}].(*Tenant)
	lowered := old != nil && quota < cmp.Or(old.Quotas.Probes, DefaultProbes)
	used := a.usage(tenant).Probes
	if used > int64(quota)*probeUnit && (lowered || used > a.used[tenant].Probes) {
		f.add("quotas.probes", fmt.Sprintf("%d probes a second", (used+probeUnit-1)/probeUnit),
			fmt.Sprintf("must be at most %d from each mux, the tenant's quota: use longer intervals, or fewer checks or backends", quota))
	}
}

// eachService calls f for every Service after the edits.
func (a *foreign) eachService(f func(*Service)) {
	for i, o := range a.objects {
		if s, ok := o.(*Service); ok {
			if _, edited := a.edits[i]; !edited {
				f(s)
			}
		}
	}
	for _, o := range a.edits {
		if s, ok := o.(*Service); ok && s != nil {
			f(s)
		}
	}
}
