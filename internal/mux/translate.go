package mux

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// natAddresses are the addresses of path nat that a node has, in the data plane's words.
func natAddresses(n *lb.Node) (out []dataplane.NATAddress) {
	if n.NAT == nil {
		return nil
	}
	for _, a := range n.NAT.Addresses {
		out = append(out, dataplane.NATAddress{Addr: a, Low: n.NAT.Low, High: n.NAT.High})
	}
	return out
}

// translate gives the tables the addresses of path nat, before endpoints that need them; applying is held.
func (a *Agent) translate(s step) error {
	want := natAddresses(&s.after.Node)
	if !s.whole && slices.Equal(want, a.translating) {
		return nil
	}
	if err := a.o.Tables.SetNATAddresses(want); err != nil {
		return fmt.Errorf("nat.addresses: %w", err)
	}
	a.translating = want
	return nil
}

// stampsOf tells whether muxes stamp cookies of an endpoint of the VIP.
func stampsOf(p plan.Plan, vip netip.Addr) bool {
	return slices.ContainsFunc(plan.OfVIP(p.Endpoints, lb.EndpointKey{VIP: vip}), func(e plan.Endpoint) bool { return e.NAT && e.Cookie != "" })
}
