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
	s := newState(all)
	var out []Violation
	for _, o := range s.objects {
		f := &faults{}
		switch o := o.(type) {
		case *Service:
			s.service(f, o)
		case *Node:
			s.node(f, o)
		case *Network:
			if o != s.network {
				f.add("name", o.Name, "must be "+s.network.Name+", the Network there is: more than one is "+NotSupported)
			}
		}
		if len(f.found) > 0 {
			out = append(out, f.prefixed(Ref(o.Kind(), o.ObjectName()))...)
		}
	}
	return out
}

// state is all objects in order, and what has been claimed so far, by whom.
type state struct {
	objects []Object
	network *Network // the first; nil when there is none
	vips    map[netip.Addr]string
	nodes   map[netip.Addr]string
}

func newState(all []Object) *state {
	s := &state{objects: slices.Clone(all), vips: map[netip.Addr]string{}, nodes: map[netip.Addr]string{}}
	slices.SortStableFunc(s.objects, func(a, b Object) int {
		return cmp.Or(cmp.Compare(a.Kind(), b.Kind()), cmp.Compare(a.ObjectName(), b.ObjectName()))
	})
	for _, o := range s.objects {
		if n, ok := o.(*Network); ok && s.network == nil {
			s.network = n
		}
	}
	return s
}

func (s *state) service(f *faults, o *Service) {
	// Paths and values are written for faults only: this runs over everything there is at every change.
	for i, vip := range o.VIPs {
		at := func() string { return fmt.Sprintf("vip[%d]", i) }
		if wrong := s.vip(vip); wrong != "" {
			f.add(at(), vip.String(), wrong)
		}
		if owner, taken := s.vips[vip]; taken {
			f.add(at(), vip.String(), "must belong to one service, and "+owner+" claims it too")
			continue
		}
		s.vips[vip] = Ref(KindService, o.Name)
	}
	if s.network == nil {
		return
	}
	for i := range o.Endpoints {
		e := &o.Endpoints[i]
		if e.Encap == "" && s.network.Encap == EncapIPIP {
			e.sharedOuters(func(s sharedOuter) {
				f.add(fmt.Sprintf("endpoints[%d].backends[%d].dip[%d]", i, s.backend, s.dip), s.addr.String(), s.wrong())
			})
		}
		for j := range e.Backends {
			b := &e.Backends[j]
			if wrong := s.underlay(b.Host); wrong != "" {
				f.add(fmt.Sprintf("endpoints[%d].backends[%d].host", i, j), b.Host.String(), wrong)
			}
			for k, dip := range b.DIPs {
				if wrong := cmp.Or(s.underlay(dip), s.tunnel(Outer(dip, b.Host))); wrong != "" {
					f.add(fmt.Sprintf("endpoints[%d].backends[%d].dip[%d]", i, j, k), dip.String(), wrong)
				}
			}
		}
	}
}

func (s *state) node(f *faults, o *Node) {
	for i, a := range o.Addresses {
		at := fmt.Sprintf("address[%d]", i)
		if s.network != nil {
			f.check(at, a.String(), s.underlay(a))
		}
		if owner, taken := s.nodes[a]; taken {
			f.add(at, a.String(), "must belong to one node, and "+owner+" claims it too")
			continue
		}
		s.nodes[a] = Ref(KindNode, o.Name)
	}
}

// vip says what is wrong with a VIP's place.
func (s *state) vip(a netip.Addr) string {
	if s.network == nil {
		return "must be inside the vips of a Network, and there is no Network"
	}
	if holding(s.network.VIPs, a) < 0 {
		return fmt.Sprintf("must be inside the vips of %s: %s", Ref(KindNetwork, s.network.Name), list(s.network.VIPs))
	}
	return ""
}

// underlay says what is wrong with the place of a DIP, a host or a node.
func (s *state) underlay(a netip.Addr) string {
	n := s.network
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
func (s *state) tunnel(outer netip.Addr) string {
	for _, p := range s.network.TunnelSources {
		if p.Addr().Is4() == outer.Is4() {
			return ""
		}
	}
	return fmt.Sprintf("needs an %s prefix in the tunnelSources of %s", family(outer), Ref(KindNetwork, s.network.Name))
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
