package manager

import "net/netip"

// levels are the prefixes that an address belongs to, the narrowest first: an IPv4 address alone; of IPv6 the /64, which one machine may have,
// the /56 and the /48, which one customer may have. Limits of a source hold for each, so that taking many addresses does not evade them.
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

// levelFactor is how many times the limit of the narrowest prefix a prefix has.
func levelFactor(p netip.Prefix) int {
	switch {
	case p.Addr().Is6() && p.Bits() <= 48:
		return 16
	case p.Addr().Is6() && p.Bits() <= 56:
		return 4
	}
	return 1
}

// widest is the last of levels: what shares with others are counted by.
func widest(from string) netip.Prefix {
	all := levels(from)
	return all[len(all)-1]
}
