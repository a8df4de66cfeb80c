package lb

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// ValidateState returns the faults between objects that are valid alone: all holds all wanted
// objects, each once. The order of all does not matter: of two objects that exclude each other the
// one with the later name is faulty.
//
// A backend's host need not be a Node's address, because servers that decapsulate themselves have
// no agent.
func ValidateState(all []Object) []Violation {
	l, objects := listedOf(all)
	return l.faults(objects)
}

// ValidatePart returns the faults between objects that may not be complete: those of ValidateState
// without those of missing objects. Without a Network no VIP needs one, no mux needs addresses for
// path nat, and a policy may be missing.
func ValidatePart(some []Object) []Violation {
	l, objects := listedOf(some)
	l.more = true
	return l.faults(objects)
}

// listedOf returns the surroundings of a list of objects, and the objects in order.
func listedOf(all []Object) (listed, []Object) {
	objects := slices.Clone(all)
	slices.SortStableFunc(objects, func(a, b Object) int { return idOf(a).compare(idOf(b)) })
	l := listed{vips: map[netip.Addr]string{}, snats: map[netip.Addr]string{}, nodes: map[netip.Addr]string{}, routers: map[netip.Addr]string{}, policies: map[string]*Policy{}, used: map[string]Usage{}}
	var muxes []*Node
	for _, o := range objects {
		l.add(o)
		if n := muxOf(o); n != nil {
			muxes = append(muxes, n)
		}
	}
	natting := translatorsOf(muxes)
	l.natting = &natting
	return l, objects
}

// faults returns the faults of objects in these surroundings.
func (l listed) faults(objects []Object) (out []Violation) {
	for _, o := range objects {
		out = append(out, rules{l}.check(o)...)
	}
	return out
}

// surroundings is everything outside an object that its validity depends on.
type surroundings interface {
	networks() Networks
	// vipOwner and addressOwner return the first Service and the first Node, by name, with the
	// address.
	vipOwner(netip.Addr) string
	addressOwner(netip.Addr) string
	// routerOwner returns the first Node with this BGP identifier, in the form of routersOf.
	routerOwner(netip.Addr) string
	// snatOwner returns the first Service through which the DIP's outbound connections leave.
	snatOwner(netip.Addr) string
	// policy returns the policy with the name, or nil.
	policy(name string) *Policy
	// usage returns the quota usage of a tenant's services.
	usage(tenant string) Usage
	// translators returns the capability of the muxes for path nat.
	translators() *translators
	// part reports whether more objects may exist, so that missing ones are no fault.
	part() bool
}

// listed implements surroundings for a list of objects.
type listed struct {
	all      Networks
	vips     map[netip.Addr]string
	snats    map[netip.Addr]string
	nodes    map[netip.Addr]string
	routers  map[netip.Addr]string
	policies map[string]*Policy
	used     map[string]Usage
	natting  *translators
	more     bool // result of part
}

// add adds the next object by kind and name.
func (l *listed) add(o Object) {
	claim := func(claims map[netip.Addr]string, addrs []netip.Addr) {
		for _, a := range addrs {
			if _, taken := claims[a]; !taken {
				claims[a] = o.ObjectName()
			}
		}
	}
	switch o := o.(type) {
	case *Service:
		claim(l.vips, o.VIPs)
		claim(l.snats, o.snatDIPs())
		u := l.used[o.Tenant]
		u.Add(o.Usage())
		l.used[o.Tenant] = u
	case *Node:
		claim(l.nodes, claimed(o))
		claim(l.routers, routersOf(o))
	case *Network:
		l.all = append(l.all, o)
	case *Policy:
		l.policies[o.Name] = o
	}
}

func (l listed) networks() Networks               { return l.all }
func (l listed) vipOwner(a netip.Addr) string     { return l.vips[a] }
func (l listed) snatOwner(a netip.Addr) string    { return l.snats[a] }
func (l listed) addressOwner(a netip.Addr) string { return l.nodes[a] }
func (l listed) routerOwner(a netip.Addr) string  { return l.routers[a] }
func (l listed) policy(name string) *Policy       { return l.policies[name] }
func (l listed) part() bool                       { return l.more }
func (l listed) usage(tenant string) Usage        { return l.used[tenant] }

// rules are the rules between objects. State must find the objects that a change makes valid or
// invalid: see State.affected.
type rules struct{ surroundings }

// check returns the faults of one object.
func (s rules) check(o Object) []Violation {
	f := &faults{}
	switch o := o.(type) {
	case *Service:
		s.service(f, o)
	case *Node:
		s.node(f, o)
	case *Network:
		s.network(f, o)
	case *Tenant:
		s.tenant(f, o)
	}
	if len(f.found) == 0 {
		return nil
	}
	return f.prefixed(Ref(o.Kind(), o.ObjectName()))
}

func (s rules) service(f *faults, o *Service) {
	// Paths and values are formatted only for faults, because a change of a Network checks every
	// service.
	networks := s.networks()
	var ipip4, ipip6 bool // a VIP of the family is in a Network that tunnels by IPIP
	for i, vip := range o.VIPs {
		at := func() string { return fmt.Sprintf("vip[%d]", i) }
		n := networks.OfVIP(vip)
		switch {
		case n == nil && len(networks) == 0 && s.part():
		case n == nil:
			f.add(at(), vip.String(), networks.allowedVIP())
		case n.Encap == EncapIPIP:
			ipip4, ipip6 = ipip4 || vip.Is4(), ipip6 || vip.Is6()
		}
		if owner := s.vipOwner(vip); owner != o.Name {
			f.add(at(), vip.String(), "must belong to one service, and "+Ref(KindService, owner)+" has it")
		}
	}
	s.snat(f, o)
	if o.Policy != "" {
		f.check("policy", o.Policy, s.policyOf(o))
	}
	s.translated(f, o)
	s.owners(f, o)
	if len(networks) == 0 {
		return
	}
	for i := range o.Endpoints {
		e := &o.Endpoints[i]
		if e.Encap == "" && !e.Translated() && (ipip4 || ipip6) {
			e.sharedOuters(func(s sharedOuter) {
				if s.addr.Is4() && ipip4 || s.addr.Is6() && ipip6 {
					f.add(fmt.Sprintf("endpoints[%d].backends[%d].dip[%d]", i, s.backend, s.dip), s.addr.String(), s.wrong())
				}
			})
		}
		for j := range e.Health.Checks {
			if a := e.Health.Checks[j].Address; a.IsValid() {
				f.check(e.checkPath(fmt.Sprintf("endpoints[%d].health", i), j)+".address", a.String(), networks.underlay(a))
			}
		}
		for j := range e.Backends {
			b := &e.Backends[j]
			if wrong := networks.underlay(b.Host); wrong != "" && b.Host.IsValid() {
				f.add(fmt.Sprintf("endpoints[%d].backends[%d].host", i, j), b.Host.String(), wrong)
			}
			for k, dip := range b.DIPs {
				wrong := networks.underlay(dip)
				if wrong == "" && !e.Translated() {
					wrong = networks.tunnel(Outer(dip, b.Host))
				}
				if wrong != "" {
					f.add(fmt.Sprintf("endpoints[%d].backends[%d].dip[%d]", i, j, k), dip.String(), wrong)
				}
			}
		}
	}
}

// policyOf returns the fault of the policy that a service uses; empty if there is none.
func (s rules) policyOf(o *Service) string {
	p := s.policy(o.Policy)
	switch {
	case p == nil && s.part():
		return ""
	case p == nil:
		return "must be the name of a Policy, and there is none of this name"
	case p.Tenant != "" && p.Tenant != o.Tenant:
		return fmt.Sprintf("must be a Policy of tenant %s or of none, and %s is of %s", o.Tenant, Ref(KindPolicy, p.Name), p.Tenant)
	}
	return ""
}

func (s rules) node(f *faults, o *Node) {
	s.nat(f, o)
	networks := s.networks()
	var home *Network
	for i, a := range o.Addresses {
		at := fmt.Sprintf("address[%d]", i)
		if len(networks) > 0 {
			f.check(at, a.String(), networks.underlay(a))
		}
		if n := networks.OfAddress(a); home == nil {
			home = n
		} else if n != nil && n != home {
			f.add(at, a.String(), "must be inside the underlay of "+Ref(KindNetwork, home.Name)+", where the node has its other address")
		}
		if owner := s.addressOwner(a); owner != o.Name {
			f.add(at, a.String(), "must belong to one node, and "+Ref(KindNode, owner)+" has it")
		}
	}
	s.routing(f, o)
}

// routing refuses BGP sessions that cannot come up: those with a VIP, and two speakers with one
// identifier in an autonomous system (RFC 6286 section 2.1).
func (s rules) routing(f *faults, o *Node) {
	if o.BGP == nil {
		return
	}
	for i, p := range o.BGP.Peers {
		for _, n := range s.networks() {
			if at := holding(n.VIPs, p.Address); at >= 0 {
				f.add(fmt.Sprintf("bgp.peers[%d].address", i), p.Address.String(), fmt.Sprintf("must not be inside vips[%d] of %s, %s: no router has a VIP", at, Ref(KindNetwork, n.Name), n.VIPs[at]))
				break
			}
		}
	}
	for _, id := range routersOf(o) {
		if owner := s.routerOwner(id); owner != o.Name && (o.BGP.RouterID.IsValid() || !f.hasUnder("address")) {
			f.add("bgp.routerId", o.BGP.identifier(o).String(), fmt.Sprintf("must differ from that of %s, which is in AS %d too", Ref(KindNode, owner), o.BGP.ASN))
		}
	}
}

// identifier returns the BGP identifier of a node: its routerId, else its IPv4 address; the zero
// address if it has neither.
func (b *BGP) identifier(n *Node) netip.Addr {
	if b.RouterID.IsValid() {
		return b.RouterID
	}
	for _, a := range n.Addresses {
		if a.Is4() {
			return a
		}
	}
	return netip.Addr{}
}

// routersOf returns the BGP identifier of a mux with its autonomous system, as one address: 4 bytes
// of the AS first, 4 of the identifier last. It returns nil for other objects.
func routersOf(o Object) []netip.Addr {
	n, ok := o.(*Node)
	if !ok || n.BGP == nil || n.Role != RoleMux {
		return nil
	}
	id := n.BGP.identifier(n)
	if !id.Is4() {
		return nil
	}
	var key [16]byte
	binary.BigEndian.PutUint32(key[:], n.BGP.ASN)
	last := id.As4()
	copy(key[12:], last[:])
	return []netip.Addr{netip.AddrFrom16(key)}
}

// tenant compares the usage of a tenant with its quotas.
func (s rules) tenant(f *faults, t *Tenant) {
	u := s.usage(t.Name)
	quota := func(name string, used int, quota uint32) {
		if quota > 0 && used > int(quota) {
			f.add("quotas."+name, fmt.Sprintf("%d %s", used, name), fmt.Sprintf("must be at most %d, the tenant's quota", quota))
		}
	}
	quota("services", u.Services, t.Quotas.Services)
	quota("endpoints", u.Endpoints, t.Quotas.Endpoints)
	quota("backends", u.Backends, t.Quotas.Backends)
}

// holding returns the index of the prefix that holds a, or -1.
func holding(prefixes []netip.Prefix, a netip.Addr) int {
	return slices.IndexFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

func list(prefixes []netip.Prefix) string {
	texts := make([]string, len(prefixes))
	for i, p := range prefixes {
		texts[i] = p.String()
	}
	return strings.Join(texts, ", ")
}
