package lb

import (
	"fmt"
	"net/netip"
	"slices"
)

// translators is the capability of the muxes of a state for path nat.
type translators struct {
	// without names, for IPv4 and for IPv6, the first mux by name that has no address to send from;
	// some reports whether any mux has one.
	without [2]string
	some    [2]bool
	// owners maps each address to the first mux by name that has it.
	owners map[netip.Addr]string
}

// translatorsOf evaluates muxes, ordered by name.
func translatorsOf(muxes []*Node) translators {
	out := translators{owners: map[netip.Addr]string{}}
	for _, n := range muxes {
		for i, v4 := range [2]bool{true, false} {
			if n.NAT.Has(v4) {
				out.some[i] = true
			} else if out.without[i] == "" {
				out.without[i] = n.Name
			}
		}
		for _, a := range natOf(n) {
			if _, taken := out.owners[a]; !taken {
				out.owners[a] = n.Name
			}
		}
	}
	return out
}

// wrong returns the reason why muxes cannot serve path nat for VIPs of a family; empty if they can.
func (t *translators) wrong(v4 bool) string {
	i, name := 0, "IPv4"
	if !v4 {
		i, name = 1, "IPv6"
	}
	switch {
	case !t.some[i]:
		return fmt.Sprintf("needs an %s address in nat.addresses of every mux, and no mux has one", name)
	case t.without[i] != "":
		return fmt.Sprintf("needs an %s address in nat.addresses of every mux, and %s has none", name, Ref(KindNode, t.without[i]))
	}
	return ""
}

// natOf returns the addresses from which an object sends to servers of path nat.
func natOf(o Object) []netip.Addr {
	if n, ok := o.(*Node); ok && n != nil && n.NAT != nil {
		return n.NAT.Addresses
	}
	return nil
}

// muxOf returns the object if it is a mux, else nil.
func muxOf(o Object) *Node {
	if n, ok := o.(*Node); ok && n.Role == RoleMux {
		return n
	}
	return nil
}

// translates reports whether an object is a service for which muxes rewrite packets.
func translates(o Object) bool {
	s, ok := o.(*Service)
	return ok && s.Translated()
}

// translated checks that the muxes support path nat for the service, and that no server has one of
// their addresses.
func (s rules) translated(f *faults, o *Service) {
	muxes := s.translators()
	for i := range o.Endpoints {
		e := &o.Endpoints[i]
		if e.Translated() {
			for _, v4 := range [2]bool{true, false} {
				at := fmt.Sprintf("endpoints[%d].path", i)
				if wrong := muxes.wrong(v4); wrong != "" && !s.part() && containsFamily(o.VIPs, v4) && !f.has(at) {
					f.add(at, e.Path, wrong)
				}
			}
		}
		if len(muxes.owners) == 0 {
			continue
		}
		for j := range e.Backends {
			b := &e.Backends[j]
			if mux := muxes.owners[b.Host]; mux != "" {
				f.add(fmt.Sprintf("endpoints[%d].backends[%d].host", i, j), b.Host.String(), "must not be one of nat.addresses of "+Ref(KindNode, mux))
			}
			for k, dip := range b.DIPs {
				if mux := muxes.owners[dip]; mux != "" {
					f.add(fmt.Sprintf("endpoints[%d].backends[%d].dip[%d]", i, j, k), dip.String(), "must not be one of nat.addresses of "+Ref(KindNode, mux))
				}
			}
		}
	}
}

// nat checks the addresses from which a mux sends against those of all other objects.
func (s rules) nat(f *faults, o *Node) {
	for i, a := range natOf(o) {
		at := fmt.Sprintf("nat.addresses[%d]", i)
		f.check(at, a.String(), s.networks().apartFrom(a))
		if owner := s.addressOwner(a); owner != o.Name && !f.has(at) {
			f.add(at, a.String(), "must belong to one node, and "+Ref(KindNode, owner)+" has it")
		}
	}
}

// apartFrom returns the prefix of a Network that wrongly contains an address that must only be in
// the underlay.
func (ns Networks) apartFrom(a netip.Addr) string {
	for _, n := range ns {
		for _, of := range []struct {
			name     string
			prefixes []netip.Prefix
		}{{"vips", n.VIPs}, {"tunnelSources", n.TunnelSources}, {"switches", n.Switches}} {
			if i := holding(of.prefixes, a); i >= 0 {
				return fmt.Sprintf("must not be inside the %s of %s: %s", of.name, Ref(KindNetwork, n.Name), of.prefixes[i])
			}
		}
	}
	return ""
}

// translators implements surroundings.
func (l listed) translators() *translators { return l.natting }

// translators implements surroundings. The first call computes the result.
func (a *after) translators() *translators {
	if a.natting == nil {
		var muxes []*Node
		for name, n := range a.muxes {
			if _, edited := a.edits[id{KindNode, name}]; !edited {
				muxes = append(muxes, n)
			}
		}
		for _, o := range a.edits {
			if n := muxOf(o); n != nil {
				muxes = append(muxes, n)
			}
		}
		slices.SortFunc(muxes, func(a, b *Node) int { return idOf(a).compare(idOf(b)) })
		found := translatorsOf(muxes)
		a.natting = &found
	}
	return a.natting
}

// retranslated adds to out the objects whose validity a change of muxes may affect: all services
// when addresses change, those with path nat when only muxes do.
func (a *after) retranslated(out map[id]bool) {
	addresses, muxes := false, false
	for i, o := range a.edits {
		old := a.objects[i]
		addresses = addresses || !slices.Equal(natOf(old), natOf(o))
		muxes = muxes || (muxOf(old) == nil) != (muxOf(o) == nil)
	}
	if addresses {
		for i := range a.objects {
			if i.kind == KindService {
				out[i] = true
			}
		}
	} else if muxes {
		for name := range a.translating {
			out[id{KindService, name}] = true
		}
	}
}
