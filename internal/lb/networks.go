package lb

import (
	"cmp"
	"net/netip"
	"slices"
)

// Networks holds all Networks, ordered by name.
type Networks []*Network

// SortNetworks orders Networks by name.
func SortNetworks(all []*Network) Networks {
	slices.SortFunc(all, func(a, b *Network) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// OfVIP returns the Network whose vips contain a VIP; nil if there is none.
func (ns Networks) OfVIP(vip netip.Addr) *Network {
	for _, n := range ns {
		if holding(n.VIPs, vip) >= 0 {
			return n
		}
	}
	return nil
}

// OfAddress returns the Network whose underlay contains an address; nil if there is none.
func (ns Networks) OfAddress(a netip.Addr) *Network {
	for _, n := range ns {
		if holding(n.Underlay, a) >= 0 {
			return n
		}
	}
	return nil
}

// Home returns the Network of a machine: the one whose underlay contains the first of its addresses
// that is in any, else the first without an underlay, which accepts any address, else the first. It
// is nil if there is none.
func (ns Networks) Home(addresses []netip.Addr) *Network {
	for _, a := range addresses {
		if n := ns.OfAddress(a); n != nil {
			return n
		}
	}
	if i := slices.IndexFunc(ns, (*Network).anywhere); i >= 0 {
		return ns[i]
	}
	if len(ns) == 0 {
		return nil
	}
	return ns[0]
}

// anywhere reports whether nodes, hosts and DIPs of the Network may have any address.
func (n *Network) anywhere() bool { return len(n.Underlay) == 0 }

// Encap returns the tunnel of a VIP's endpoints that do not set it.
func (ns Networks) Encap(vip netip.Addr) string {
	if n := ns.OfVIP(vip); n != nil && n.Encap != "" {
		return n.Encap
	}
	return EncapIPIP
}

// TunnelSources returns those of all Networks without duplicates, first's before the others'.
func (ns Networks) TunnelSources(first *Network) []netip.Prefix {
	var out []netip.Prefix
	add := func(n *Network) {
		for _, p := range n.TunnelSources {
			if !slices.Contains(out, p) {
				out = append(out, p)
			}
		}
	}
	if first != nil {
		add(first)
	}
	for _, n := range ns {
		add(n)
	}
	return out
}

// VIPs returns the prefixes of VIPs of all Networks without duplicates.
func (ns Networks) VIPs() []netip.Prefix {
	return ns.all(func(n *Network) []netip.Prefix { return n.VIPs })
}

// Underlay returns the underlay of all Networks, each prefix once.
func (ns Networks) Underlay() []netip.Prefix {
	return ns.all(func(n *Network) []netip.Prefix { return n.Underlay })
}

// all returns some prefixes of every Network, in order and without duplicates.
func (ns Networks) all(of func(*Network) []netip.Prefix) (out []netip.Prefix) {
	for _, n := range ns {
		out = append(out, of(n)...)
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

// Inside returns the IPv4 prefixes of all underlays, VIPs and tunnel sources, without duplicates.
// Connections of servers to them are not translated to a VIP.
func (ns Networks) Inside() []netip.Prefix {
	out := ns.all(func(n *Network) []netip.Prefix { return slices.Concat(n.Underlay, n.VIPs, n.TunnelSources) })
	return slices.DeleteFunc(out, func(p netip.Prefix) bool { return !p.Addr().Is4() })
}

// Switches returns those of all Networks without duplicates.
func (ns Networks) Switches() []netip.Prefix {
	return ns.all(func(n *Network) []netip.Prefix { return n.Switches })
}
