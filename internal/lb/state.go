package lb

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
)

// State holds all wanted objects, with indexes that make the cost of validating a change
// proportional to the change. Check returns the faults that ValidateState finds for all objects
// after the change. Objects in it are never modified.
type State struct {
	objects map[id]Object
	all     Networks
	// vips and addresses hold the Services and Nodes that claim an address, ordered by name.
	vips, addresses claims
	// snats holds the Services through which a DIP's outbound connections leave.
	snats claims
	// routers holds the Nodes with a BGP identifier, in the form of routersOf.
	routers claims
	// owning holds the Services whose servers at a host address own VIPs.
	owning claims
	// naming holds the services that use a Policy.
	naming map[string]map[string]bool
	// muxes holds the Nodes of that role, translating the services with path nat.
	muxes       map[string]*Node
	translating map[string]bool
	// used holds the quota usage of a tenant's services.
	used map[string]Usage
	// tenants holds the Tenants that own addresses; dipsOf and vipsOf find them by address.
	tenants        map[string]*Tenant
	dipsOf, vipsOf owned
	// wrong holds the faults of the objects in the state, because the store may hold objects that a
	// later version refuses.
	wrong map[id][]Violation
}

// Edit is one step of a change: it puts the object, or removes it when Object is nil.
type Edit struct {
	Kind   Kind
	Name   string
	Object Object
}

// PutEdit returns the edit that puts the object.
func PutEdit(o Object) Edit { return Edit{o.Kind(), o.ObjectName(), o} }

// id names an object.
type id struct {
	kind Kind
	name string
}

func idOf(o Object) id { return id{o.Kind(), o.ObjectName()} }

func (i id) compare(o id) int {
	return cmp.Or(cmp.Compare(i.kind, o.kind), cmp.Compare(i.name, o.name))
}

// claims maps an address to the ordered names of the objects that have it; there is rarely more
// than one.
type claims map[netip.Addr][]string

func (c claims) add(addrs []netip.Addr, name string) {
	for _, a := range addrs {
		if i, found := slices.BinarySearch(c[a], name); !found {
			c[a] = slices.Insert(slices.Clone(c[a]), i, name)
		}
	}
}

func (c claims) remove(addrs []netip.Addr, name string) {
	for _, a := range addrs {
		i, found := slices.BinarySearch(c[a], name)
		switch {
		case found && len(c[a]) == 1:
			delete(c, a)
		case found:
			c[a] = slices.Delete(slices.Clone(c[a]), i, i+1)
		}
	}
}

// claimed returns the addresses that only one object may have.
func claimed(o Object) []netip.Addr {
	switch o := o.(type) {
	case *Service:
		return o.VIPs
	case *Node:
		return slices.Concat(o.Addresses, natOf(o))
	}
	return nil
}

// snatOf returns the DIPs whose outbound connections leave through the object.
func snatOf(o Object) []netip.Addr {
	if svc, ok := o.(*Service); ok {
		return svc.snatDIPs()
	}
	return nil
}

// NewState returns the state without objects.
func NewState() *State {
	return &State{
		objects: map[id]Object{}, vips: claims{}, addresses: claims{}, snats: claims{}, routers: claims{}, owning: claims{}, naming: map[string]map[string]bool{}, used: map[string]Usage{},
		wrong: map[id][]Violation{}, muxes: map[string]*Node{}, translating: map[string]bool{},
		tenants: map[string]*Tenant{}, dipsOf: newOwned(), vipsOf: newOwned(),
	}
}

// NodesAt returns the names of the Nodes with the address: one, unless the state is faulty.
func (s *State) NodesAt(addr netip.Addr) []string { return s.addresses[addr] }

// Check returns the faults of the state after the edits; the last edit of each object counts. If
// objects claim the same address, the one that had it before the edits keeps it, and the edit that
// came later is faulty. Of several that had it the first by name keeps it.
func (s *State) Check(edits ...Edit) []Violation {
	after := s.after(edits)
	after.holdersFirst = true
	found := after.faults()
	for i, faults := range s.wrong {
		if _, again := found[i]; !again {
			found[i] = faults
		}
	}
	var out []Violation
	for _, i := range slices.SortedFunc(maps.Keys(found), id.compare) {
		out = append(out, found[i]...)
	}
	return out
}

// Apply applies the edits, valid or not.
func (s *State) Apply(edits ...Edit) {
	after := s.after(edits)
	for i, faults := range after.faults() {
		delete(s.wrong, i)
		if len(faults) > 0 {
			s.wrong[i] = faults
		}
	}
	for i, o := range after.edits {
		if old := s.objects[i]; old != nil {
			s.claims(i.kind).remove(claimed(old), i.name)
			s.snats.remove(snatOf(old), i.name)
			s.routers.remove(routersOf(old), i.name)
			s.owning.remove(owningOf(old), i.name)
			s.name(old, false)
			s.translate(old, false)
			s.own(old, false)
		}
		delete(s.objects, i)
		if o != nil {
			s.objects[i] = o
			s.claims(i.kind).add(claimed(o), i.name)
			s.snats.add(snatOf(o), i.name)
			s.routers.add(routersOf(o), i.name)
			s.owning.add(owningOf(o), i.name)
			s.name(o, true)
			s.translate(o, true)
			s.own(o, true)
		}
	}
	for tenant := range after.taken {
		if s.used[tenant] = after.usage(tenant); s.used[tenant] == (Usage{}) {
			delete(s.used, tenant)
		}
	}
	s.all = after.all
}

// name updates the services of policies.
func (s *State) name(o Object, names bool) {
	svc, ok := o.(*Service)
	switch {
	case !ok || svc.Policy == "":
	case !names:
		delete(s.naming[svc.Policy], svc.Name)
		if len(s.naming[svc.Policy]) == 0 {
			delete(s.naming, svc.Policy)
		}
	case s.naming[svc.Policy] == nil:
		s.naming[svc.Policy] = map[string]bool{svc.Name: true}
	default:
		s.naming[svc.Policy][svc.Name] = true
	}
}

// translate updates the muxes, and the services with path nat.
func (s *State) translate(o Object, there bool) {
	name := o.ObjectName()
	switch n := muxOf(o); {
	case n != nil && there:
		s.muxes[name] = n
	case n != nil:
		delete(s.muxes, name)
	case translates(o) && there:
		s.translating[name] = true
	case translates(o):
		delete(s.translating, name)
	}
}

// own updates the Tenants that own addresses.
func (s *State) own(o Object, there bool) {
	t, ok := o.(*Tenant)
	switch {
	case !ok || len(t.DIPs)+len(t.VIPs) == 0:
	case there:
		s.tenants[t.Name] = t
		s.dipsOf.add(t.DIPs, t)
		s.vipsOf.add(t.VIPs, t)
	default:
		delete(s.tenants, t.Name)
		s.dipsOf.remove(t.DIPs, t)
		s.vipsOf.remove(t.VIPs, t)
	}
}

// Naming calls f with the name of every service that uses a Policy.
func (s *State) Naming(policy string, f func(service string)) {
	for name := range s.naming[policy] {
		f(name)
	}
}

// claims returns the claims of a kind; nil for kinds without addresses, to which nothing is added.
func (s *State) claims(k Kind) claims {
	switch k {
	case KindService:
		return s.vips
	case KindNode:
		return s.addresses
	}
	return nil
}

// after is the state with edits that are not applied yet.
type after struct {
	*State
	edits map[id]Object // nil: removed
	all   Networks
	// taken is the change of each tenant's usage.
	taken map[string]Usage
	// newVIPs, newAddresses, newRouters and newSNATs are the claims of the edited objects.
	newVIPs, newAddresses, newRouters, newSNATs claims
	natting                                     *translators // see translators
	// holdersFirst: of several claims of an address the one of an object that is not edited wins,
	// else the one of an object that had it before, else the first by name; false: the first by
	// name.
	holdersFirst bool
}

func (s *State) after(edits []Edit) *after {
	a := &after{
		State: s, edits: make(map[id]Object, len(edits)), all: s.all, taken: map[string]Usage{}, newVIPs: claims{}, newAddresses: claims{}, newRouters: claims{}, newSNATs: claims{},
	}
	for _, e := range edits {
		a.edits[id{e.Kind, e.Name}] = e.Object
	}
	for i, o := range a.edits {
		a.take(s.objects[i], -1)
		a.take(o, 1)
		switch o := o.(type) {
		case *Service:
			a.newVIPs.add(o.VIPs, o.Name)
			a.newSNATs.add(o.snatDIPs(), o.Name)
		case *Node:
			a.newAddresses.add(claimed(o), o.Name)
			a.newRouters.add(routersOf(o), o.Name)
		}
		if i.kind != KindNetwork {
			continue
		}
		a.all = slices.DeleteFunc(slices.Clone(a.all), func(n *Network) bool { return n.Name == i.name })
		if n, ok := o.(*Network); ok {
			a.all = SortNetworks(append(a.all, n))
		}
	}
	return a
}

// take adds the usage of a service to its tenant's, or subtracts it.
func (a *after) take(o Object, sign int) {
	if svc, ok := o.(*Service); ok {
		u := a.taken[svc.Tenant]
		u.Add(svc.Usage().Times(sign))
		a.taken[svc.Tenant] = u
	}
}

// object returns the object after the edits; nil if there is none.
func (a *after) object(i id) Object {
	if o, edited := a.edits[i]; edited {
		return o
	}
	return a.objects[i]
}

// part and networks implement surroundings. A state is complete.
func (a *after) part() bool { return false }

func (a *after) networks() Networks { return a.all }

// policy implements surroundings.
func (a *after) policy(name string) *Policy {
	p, _ := a.object(id{KindPolicy, name}).(*Policy)
	return p
}

// usage implements surroundings.
func (a *after) usage(tenant string) Usage {
	u := a.used[tenant]
	u.Add(a.taken[tenant])
	return u
}

// vipOwner implements surroundings.
func (a *after) vipOwner(addr netip.Addr) string {
	return a.owner(KindService, a.vips[addr], a.newVIPs[addr])
}

// snatOwner implements surroundings.
func (a *after) snatOwner(addr netip.Addr) string {
	return a.owner(KindService, a.snats[addr], a.newSNATs[addr])
}

// routerOwner implements surroundings.
func (a *after) routerOwner(id netip.Addr) string {
	return a.owner(KindNode, a.routers[id], a.newRouters[id])
}

// addressOwner implements surroundings.
func (a *after) addressOwner(addr netip.Addr) string {
	return a.owner(KindNode, a.addresses[addr], a.newAddresses[addr])
}

// owner returns the object whose claim of an address wins: had are the claimants before the edits,
// have the edited objects that claim it after them, both ordered. See holdersFirst.
func (a *after) owner(k Kind, had, have []string) string {
	first := ""
	for _, name := range had {
		if _, edited := a.edits[id{k, name}]; !edited {
			first = name
			break
		}
	}
	if first != "" && (a.holdersFirst || len(have) == 0 || first < have[0]) {
		return first
	}
	if a.holdersFirst {
		for _, name := range have {
			if _, held := slices.BinarySearch(had, name); held {
				return name
			}
		}
	}
	if len(have) > 0 {
		return have[0]
	}
	return ""
}

// affected returns the objects whose validity may change: the edited ones, those that claim an
// address which an edited one has or had, those that use an edited Policy, tenants of edited
// services, services for which muxes rewrite packets, those whose servers own VIPs at an edited
// Node, and all when a Network changed.
func (a *after) affected() map[id]bool {
	out := make(map[id]bool, len(a.edits))
	all := false
	for i := range a.edits {
		out[i] = true
		all = all || i.kind == KindNetwork
	}
	if all {
		for i := range a.objects {
			out[i] = true
		}
		return out
	}
	for tenant := range a.taken {
		out[id{KindTenant, tenant}] = true
	}
	a.retranslated(out)
	for i, o := range a.edits {
		if i.kind == KindPolicy {
			a.Naming(i.name, func(service string) { out[id{KindService, service}] = true })
		}
		for _, addrs := range [2][]netip.Addr{snatOf(a.objects[i]), snatOf(o)} {
			for _, addr := range addrs {
				for _, name := range a.snats[addr] {
					out[id{KindService, name}] = true
				}
			}
		}
		for _, ids := range [2][]netip.Addr{routersOf(a.objects[i]), routersOf(o)} {
			for _, router := range ids {
				for _, name := range a.routers[router] {
					out[id{KindNode, name}] = true
				}
			}
		}
		a.reowned(i, o, out)
		of := a.claims(i.kind)
		for _, addrs := range [2][]netip.Addr{claimed(a.objects[i]), claimed(o)} {
			for _, addr := range addrs {
				for _, name := range of[addr] {
					out[id{i.kind, name}] = true
				}
			}
		}
	}
	return out
}

// faults returns the faults of the affected objects; the list is nil for valid and for removed
// ones.
func (a *after) faults() map[id][]Violation {
	out := map[id][]Violation{}
	for i := range a.affected() {
		out[i] = nil
		if o := a.object(i); o != nil {
			out[i] = rules{a}.check(o)
		}
	}
	return out
}
