package lb

import (
	"cmp"
	"net/netip"
	"slices"
)

// Networks are all Networks, ordered by name.
type Networks []*Network

// SortNetworks orders Networks by name.
func SortNetworks(all []*Network) Networks {
	slices.SortFunc(all, func(a, b *Network) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// OfVIP is the Network that a VIP belongs to: the one whose vips hold it; nil when there is none.
func (ns Networks) OfVIP(vip netip.Addr) *Network {
	for _, n := range ns {
		if holding(n.VIPs, vip) >= 0 {
			return n
		}
	}
	return nil
}

// OfAddress is the Network whose underlay holds an address; nil when there is none.
func (ns Networks) OfAddress(a netip.Addr) *Network {
	for _, n := range ns {
		if holding(n.Underlay, a) >= 0 {
			return n
		}
	}
	return nil
}

// Home is the Network that a machine stands in: the one whose underlay holds the first of its addresses that any holds,
// else the first without an underlay, where everything may stand, else the first. It is nil when there is none.
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

// anywhere tells whether nodes, hosts and DIPs of the Network may have any address.
func (n *Network) anywhere() bool { return len(n.Underlay) == 0 }

// Encap is the tunnel of a VIP's endpoints that do not say.
func (ns Networks) Encap(vip netip.Addr) string {
	if n := ns.OfVIP(vip); n != nil && n.Encap != "" {
		return n.Encap
	}
	return EncapIPIP
}

// TunnelSources are those of all Networks, each once, first's before the others'.
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
