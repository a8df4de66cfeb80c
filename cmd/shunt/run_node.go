package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/shuntlb/shunt/internal/lb"
)

// ownNode returns the Node that `shunt run` adds to a file without one for this machine: a mux with
// the first address of each family of its interface device that is in the underlay of the first
// Network of all that has any of them. Addresses outside of every underlay are left out, because a
// Node with one is refused. Without a Network it takes the first address of each family. It fails
// when no address is in an underlay.
func ownNode(name, device string, addresses []netip.Addr, all []lb.Document) (*lb.Node, error) {
	node := &lb.Node{Name: name, Role: lb.RoleMux}
	var underlays []string
	for _, d := range all {
		network, ok := d.Object.(*lb.Network)
		if !ok {
			continue
		}
		if node.Addresses = oneOfEach(addresses, network.Underlay); len(node.Addresses) > 0 {
			return node, nil
		}
		underlays = append(underlays, fmt.Sprintf("%s: underlay: %s", lb.Ref(lb.KindNetwork, network.Name), join(network.Underlay)))
	}
	if len(underlays) == 0 {
		node.Addresses = oneOfEach(addresses, nil)
		return node, nil
	}
	return nil, fmt.Errorf("%s: must hold an address of --interface %s (%s); add its prefix to the underlay, or write a Node %q with role mux and its address",
		strings.Join(underlays, "; "), device, join(addresses), name)
}

// oneOfEach returns the first IPv4 and the first IPv6 address of all that are inside one of the
// prefixes. Without prefixes every address matches.
func oneOfEach(all []netip.Addr, prefixes []netip.Prefix) []netip.Addr {
	var out []netip.Addr
	for _, family := range []func(netip.Addr) bool{netip.Addr.Is4, netip.Addr.Is6} {
		i := slices.IndexFunc(all, func(a netip.Addr) bool {
			return family(a) && (prefixes == nil || slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) }))
		})
		if i >= 0 {
			out = append(out, all[i])
		}
	}
	return out
}

// join returns the texts of values, separated by commas, or "none".
func join[T fmt.Stringer](values []T) string {
	if len(values) == 0 {
		return "none"
	}
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i] = v.String()
	}
	return strings.Join(texts, ", ")
}
