package lb

import (
	"fmt"
	"net/netip"
)

// Limits of a network. The minimum MTU is IPv6's (RFC 8200 section 5).
const (
	MinMTU = 1280
	MaxMTU = 9216

	allowedMTU = "must be 1280 to 9216"
)

func (f *faults) network(n *Network) {
	if len(n.VIPs) == 0 {
		f.add("vips", "", "is missing, must have at least one prefix")
	}
	f.prefixes("vips", n.VIPs)
	f.prefixes("underlay", n.Underlay)
	if n.MTU < MinMTU || n.MTU > MaxMTU {
		f.add("mtu", fmt.Sprint(n.MTU), allowedMTU)
	}
	f.choice("encap", n.Encap, nil, encaps...)
	if len(n.TunnelSources) == 0 {
		f.add("tunnelSources", "", "is empty, must have a prefix, or one of each family")
	}
	f.prefixes("tunnelSources", n.TunnelSources)
	for i, p := range n.TunnelSources {
		at := fmt.Sprintf("tunnelSources[%d]", i)
		if f.has(at) {
			continue
		}
		f.check(at, p.String(), tunnelSource(p, n.TunnelSources[:i]))
		f.apart(at, p, "vips", "", n.VIPs)
		f.apart(at, p, "underlay", "", n.Underlay)
	}
	for _, t := range n.SNAT.fields() {
		if *t.time != 0 && (*t.time < t.least || *t.time > t.most) {
			f.add("snat."+t.name, durationText(*t.time), t.allowed)
		}
	}
	f.prefixes("switches", n.Switches)
	for i, p := range n.Switches {
		at := fmt.Sprintf("switches[%d]", i)
		f.apart(at, p, "vips", "", n.VIPs)
		f.apart(at, p, "tunnelSources", "", n.TunnelSources)
	}
}

// prefixes checks each prefix of a list alone, and that none is duplicated.
func (f *faults) prefixes(path string, list []netip.Prefix) {
	for i, p := range list {
		f.check(fmt.Sprintf("%s[%d]", path, i), p.String(), unicastPrefix(p))
	}
	unique(f, path, list)
}

// tunnelSource returns the fault of a prefix of outer sources that follows others.
func tunnelSource(p netip.Prefix, before []netip.Prefix) string {
	for _, b := range before {
		if b.Addr().Is4() == p.Addr().Is4() {
			return "must be at most one prefix of each family"
		}
	}
	switch {
	case p.Addr().Is4() && (p.Bits() < 8 || p.Bits() > 24):
		return "must be /8 to /24"
	case p.Addr().Is6() && p.Bits() != 64:
		return "must be a /64"
	}
	return ""
}

// apart adds a fault if p overlaps one of the others; of names their Network, empty for the same
// Network.
func (f *faults) apart(at string, p netip.Prefix, name, of string, others []netip.Prefix) {
	for i, o := range others {
		if p.Overlaps(o) && !f.has(at) && (of != "" || !f.has(fmt.Sprintf("%s[%d]", name, i))) {
			f.add(at, p.String(), fmt.Sprintf("must not overlap %s[%d]%s, %s", name, i, of, o))
		}
	}
}
