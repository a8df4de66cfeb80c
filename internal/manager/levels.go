package manager

import "net/netip"

// levels returns the prefixes that an address belongs to, the narrowest first: of IPv4 the address
// alone; of IPv6 the /64, which one machine may have, and the /56 and the /48, which one customer
// may have. Limits per source hold for each of them, so that using many addresses does not evade
// the limits.
func levels(from string) []netip.Prefix {
	ap, err := netip.ParseAddrPort(from)
	if err != nil {
		return []netip.Prefix{{}}
	}
	addr := ap.Addr().Unmap().WithZone("")
	lengths := []int{32}
	if addr.Is6() {
		lengths = []int{64, 56, 48}
	}
	out := make([]netip.Prefix, 0, len(lengths))
	for _, bits := range lengths {
		p, _ := addr.Prefix(bits)
		out = append(out, p)
	}
	return out
}

// levelFactor returns the factor of a prefix's limit relative to the narrowest prefix.
func levelFactor(p netip.Prefix) int {
	switch {
	case p.Addr().Is6() && p.Bits() <= 48:
		return 16
	case p.Addr().Is6() && p.Bits() <= 56:
		return 4
	}
	return 1
}

// widest returns the last of levels, by which fair shares are counted.
func widest(from string) netip.Prefix {
	all := levels(from)
	return all[len(all)-1]
}
