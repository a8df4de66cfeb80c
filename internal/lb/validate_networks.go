package lb

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// MaxTunnelSources limits the tunnelSources and switches of all Networks together. It is the
// capacity of a host's data plane.
const MaxTunnelSources = 64

// Limits of all Networks together: the capacity of a host's data plane.
const (
	// MaxNetworkPrefixes limits the prefixes of vips and underlay.
	MaxNetworkPrefixes = 32768
	// MaxInside limits the IPv4 prefixes of vips, underlay and tunnelSources, to which connections
	// of servers with SNAT are not translated. A host has room for 512 of both an old and a new
	// plan, for managers outside of them and for four that no Network has.
	MaxInside = 448
)

// network compares a Network with those before it. Of two that exclude each other the one with the
// later name is faulty.
func (s rules) network(f *faults, n *Network) {
	var before Networks
	for _, o := range s.networks() {
		if o.Name >= n.Name {
			break
		}
		before = append(before, o)
		ref := " of " + Ref(KindNetwork, o.Name)
		for _, mine := range []struct {
			name     string
			prefixes []netip.Prefix
		}{{"vips", n.VIPs}, {"underlay", n.Underlay}, {"tunnelSources", n.TunnelSources}, {"switches", n.Switches}} {
			for i, p := range mine.prefixes {
				at := fmt.Sprintf("%s[%d]", mine.name, i)
				f.apart(at, p, "vips", ref, o.VIPs)
				// Switches are inside underlays.
				if mine.name != "switches" {
					f.apart(at, p, "underlay", ref, o.Underlay)
				}
				if mine.name != "tunnelSources" {
					f.apart(at, p, "tunnelSources", ref, o.TunnelSources)
				}
				if mine.name != "switches" && mine.name != "underlay" {
					f.apart(at, p, "switches", ref, o.Switches)
				}
			}
		}
	}
	all := append(slices.Clip(before), n)
	if count := len(all.Inside()); count > MaxInside {
		f.add("underlay", fmt.Sprintf("%d prefixes", count), fmt.Sprintf("must be at most %d different IPv4 prefixes of vips, underlay and tunnelSources in all Networks", MaxInside))
	}
	if count := len(all.VIPs()) + len(all.Underlay()); count > MaxNetworkPrefixes {
		f.add("underlay", fmt.Sprintf("%d prefixes", count), fmt.Sprintf("must be at most %d different prefixes of vips and underlay in all Networks", MaxNetworkPrefixes))
	}
	switches := len(all.Switches())
	if count := len(before.TunnelSources(n)) + switches; count > MaxTunnelSources {
		field, allowed := "tunnelSources", fmt.Sprintf("must be at most %d different ones in all Networks", MaxTunnelSources)
		if switches > 0 {
			field, allowed = "switches", allowed+", tunnelSources included"
		}
		f.add(field, fmt.Sprintf("%d prefixes", count), allowed)
	}
}

// allowedVIP describes where VIPs may be.
func (ns Networks) allowedVIP() string {
	if len(ns) == 0 {
		return "must be inside the vips of a Network, and there is no Network"
	}
	return "must be inside the vips of " + ns.each(func(n *Network) []netip.Prefix { return n.VIPs })
}

// each lists prefixes of every Network.
func (ns Networks) each(prefixes func(*Network) []netip.Prefix) string {
	texts := make([]string, len(ns))
	for i, n := range ns {
		texts[i] = Ref(KindNetwork, n.Name) + ": " + list(prefixes(n))
	}
	return strings.Join(texts, "; or of ")
}

// underlay returns the fault of the address of a DIP, a host or a node; empty if there is none.
func (ns Networks) underlay(a netip.Addr) string {
	inside := false
	for _, n := range ns {
		if i := holding(n.VIPs, a); i >= 0 {
			return fmt.Sprintf("must not be inside the vips of %s: %s", Ref(KindNetwork, n.Name), n.VIPs[i])
		}
		if i := holding(n.TunnelSources, a); i >= 0 {
			return fmt.Sprintf("must not be inside the tunnelSources of %s: %s", Ref(KindNetwork, n.Name), n.TunnelSources[i])
		}
		if i := holding(n.Switches, a); i >= 0 {
			return fmt.Sprintf("must not be inside the switches of %s: %s", Ref(KindNetwork, n.Name), n.Switches[i])
		}
		inside = inside || n.anywhere() || holding(n.Underlay, a) >= 0
	}
	if inside {
		return ""
	}
	return "must be inside the underlay of " + ns.each(func(n *Network) []netip.Prefix { return n.Underlay })
}

// tunnel returns the prefix family that is missing for packets to an outer destination, which muxes
// of every Network send.
func (ns Networks) tunnel(outer netip.Addr) string {
	for _, n := range ns {
		if !slices.ContainsFunc(n.TunnelSources, func(p netip.Prefix) bool { return p.Addr().Is4() == outer.Is4() }) {
			return fmt.Sprintf("needs an %s prefix in the tunnelSources of %s", family(outer), Ref(KindNetwork, n.Name))
		}
	}
	return ""
}
