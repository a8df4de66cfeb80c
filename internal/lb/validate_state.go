package lb

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// ValidateState returns the faults between objects that are valid by themselves: all is the wanted state of everything,
// each object once. The order of all does not matter: of two objects that exclude each other the later name is at fault.
//
// A backend's host need not be a Node's address: servers that decapsulate by themselves have no agent.
func ValidateState(all []Object) []Violation {
	objects := slices.Clone(all)
	slices.SortStableFunc(objects, func(a, b Object) int { return idOf(a).compare(idOf(b)) })
	l := listed{vips: map[netip.Addr]string{}, nodes: map[netip.Addr]string{}}
	for _, o := range objects {
		l.add(o)
	}
	var out []Violation
	for _, o := range objects {
		out = append(out, rules{l}.check(o)...)
	}
	return out
}

// surroundings are what the validity of an object depends on beside itself.
type surroundings interface {
	// network is the first by name; nil when there is none.
	network() *Network
	// vipOwner and addressOwner are the first Service and the first Node, by name, with the address.
	vipOwner(netip.Addr) string
	addressOwner(netip.Addr) string
}

// listed are the surroundings that a list of objects makes.
type listed struct {
	first *Network
	vips  map[netip.Addr]string
	nodes map[netip.Addr]string
}

// add takes in the next object by kind and name.
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
	case *Node:
		claim(l.nodes, o.Addresses)
	case *Network:
		l.first = cmp.Or(l.first, o)
	}
}

func (l listed) network() *Network                { return l.first }
func (l listed) vipOwner(a netip.Addr) string     { return l.vips[a] }
func (l listed) addressOwner(a netip.Addr) string { return l.nodes[a] }

// rules are those between objects. State must know which objects a change makes valid or invalid: see State.affected.
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
		if first := s.network(); o.Name != first.Name {
			f.add("name", o.Name, "must be "+first.Name+", the Network there is: more than one is "+NotSupported)
		}
	}
	if len(f.found) == 0 {
		return nil
	}
	return f.prefixed(Ref(o.Kind(), o.ObjectName()))
}

func (s rules) service(f *faults, o *Service) {
	// Paths and values are written for faults only: a change of the Network checks everything there is.
	for i, vip := range o.VIPs {
		at := func() string { return fmt.Sprintf("vip[%d]", i) }
		if wrong := s.vip(vip); wrong != "" {
			f.add(at(), vip.String(), wrong)
		}
		if owner := s.vipOwner(vip); owner != o.Name {
			f.add(at(), vip.String(), "must belong to one service, and "+Ref(KindService, owner)+" claims it too")
		}
	}
	network := s.network()
	if network == nil {
		return
	}
	for i := range o.Endpoints {
		e := &o.Endpoints[i]
		if e.Encap == "" && network.Encap == EncapIPIP {
			e.sharedOuters(func(s sharedOuter) {
				f.add(fmt.Sprintf("endpoints[%d].backends[%d].dip[%d]", i, s.backend, s.dip), s.addr.String(), s.wrong())
			})
		}
		for j := range e.Backends {
			b := &e.Backends[j]
			if wrong := underlay(network, b.Host); wrong != "" {
				f.add(fmt.Sprintf("endpoints[%d].backends[%d].host", i, j), b.Host.String(), wrong)
			}
			for k, dip := range b.DIPs {
				if wrong := cmp.Or(underlay(network, dip), tunnel(network, Outer(dip, b.Host))); wrong != "" {
					f.add(fmt.Sprintf("endpoints[%d].backends[%d].dip[%d]", i, j, k), dip.String(), wrong)
				}
			}
		}
	}
}

func (s rules) node(f *faults, o *Node) {
	network := s.network()
	for i, a := range o.Addresses {
		at := fmt.Sprintf("address[%d]", i)
		if network != nil {
			f.check(at, a.String(), underlay(network, a))
		}
		if owner := s.addressOwner(a); owner != o.Name {
			f.add(at, a.String(), "must belong to one node, and "+Ref(KindNode, owner)+" claims it too")
		}
	}
}

// vip says what is wrong with a VIP's place.
func (s rules) vip(a netip.Addr) string {
	n := s.network()
	if n == nil {
		return "must be inside the vips of a Network, and there is no Network"
	}
	if holding(n.VIPs, a) < 0 {
		return fmt.Sprintf("must be inside the vips of %s: %s", Ref(KindNetwork, n.Name), list(n.VIPs))
	}
	return ""
}

// underlay says what is wrong with the place of a DIP, a host or a node.
func underlay(n *Network, a netip.Addr) string {
	if i := holding(n.VIPs, a); i >= 0 {
		return fmt.Sprintf("must not be inside the vips of %s: %s", Ref(KindNetwork, n.Name), n.VIPs[i])
	}
	if i := holding(n.TunnelSources, a); i >= 0 {
		return fmt.Sprintf("must not be inside the tunnelSources of %s: %s", Ref(KindNetwork, n.Name), n.TunnelSources[i])
	}
	if len(n.Underlay) > 0 && holding(n.Underlay, a) < 0 {
		return fmt.Sprintf("must be inside the underlay of %s: %s", Ref(KindNetwork, n.Name), list(n.Underlay))
	}
	return ""
}

// tunnel says what is missing for packets to an outer destination.
func tunnel(n *Network, outer netip.Addr) string {
	for _, p := range n.TunnelSources {
		if p.Addr().Is4() == outer.Is4() {
			return ""
		}
	}
	return fmt.Sprintf("needs an %s prefix in the tunnelSources of %s", family(outer), Ref(KindNetwork, n.Name))
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
