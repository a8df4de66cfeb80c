package host

import (
	"net/netip"
	"slices"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/plan"
)

// underlay returns the underlay prefixes of a plan: those of its Networks, and each address outside
// them of this host, of a server, or of a server's host.
func underlay(p *plan.Plan) []netip.Prefix {
	out := slices.Clone(p.Underlay)
	seen := map[netip.Addr]bool{}
	add := func(a netip.Addr) {
		if !a.IsValid() || seen[a] {
			return
		}
		seen[a] = true
		if !slices.ContainsFunc(p.Underlay, func(u netip.Prefix) bool { return u.Contains(a) }) {
			out = append(out, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	for _, a := range p.Node.Addresses {
		add(a)
	}
	for i := range p.Bindings {
		add(p.Bindings[i].DIP)
		add(p.Bindings[i].Outer)
	}
	for i := range p.Repairs {
		for _, t := range p.Repairs[i].Targets {
			add(t.DIP)
			add(t.Host)
		}
	}
	return out
}

// senderClaim holds the inputs of sendersOf from a binding: a server, and the endpoint that it
// owns, if any.
type senderClaim struct {
	dip   netip.Addr
	owned lb.EndpointKey
}

// claimsOf returns the claims of bindings.
func claimsOf(bindings []plan.Binding) map[senderClaim]bool {
	out := map[senderClaim]bool{}
	for i := range bindings {
		c := senderClaim{dip: bindings[i].DIP}
		if !bindings[i].Rewrite {
			c.owned = bindings[i].Key
		}
		out[c] = true
	}
	return out
}

// sendersOf returns the source addresses allowed on these devices: the DIPs of servers, those with
// SNAT included, and VIPs, for the endpoints that a server owns.
func sendersOf(bindings []plan.Binding, snat []netip.Addr, ways netdev.Ways, devices []int) (out []dataplane.HostSender) {
	seen := map[dataplane.HostSender]bool{}
	add := func(s dataplane.HostSender) {
		if !seen[s] {
			seen[s] = true
			out = append(out, s)
		}
	}
	from := func(dip netip.Addr) (device int, ok bool) {
		hop, ok := ways.To(dip)
		if ok = ok && hop.Tag == 0 && slices.Contains(devices, hop.Ifindex); ok {
			add(dataplane.HostSender{Ifindex: hop.Ifindex, Address: dip})
		}
		return hop.Ifindex, ok
	}
	for _, dip := range snat {
		from(dip)
	}
	for i := range bindings {
		b := &bindings[i]
		device, ok := from(b.DIP)
		if !ok || b.Rewrite {
			continue
		}
		owned := dataplane.HostSender{Ifindex: device, Address: b.Key.VIP, Owned: true, Protocol: b.Key.Protocol, Port: b.Key.Port}
		if b.Key.PortEnd != 0 || b.Key.Protocol == lb.AnyProtocol {
			owned.Port = 0
		}
		add(owned)
	}
	return out
}
