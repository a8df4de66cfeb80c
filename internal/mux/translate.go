package mux

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// natAddresses returns a node's addresses of path nat in the data plane's form.
func natAddresses(n *lb.Node) (out []dataplane.NATAddress) {
	if n.NAT == nil {
		return nil
	}
	for _, a := range n.NAT.Addresses {
		out = append(out, dataplane.NATAddress{Addr: a, Low: n.NAT.Low, High: n.NAT.High})
	}
	return out
}

// translate writes the addresses of path nat to the tables, before endpoints that need them. The
// caller holds applying.
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

// stampsOf reports whether muxes stamp cookies of an endpoint of the VIP.
func stampsOf(p plan.Plan, vip netip.Addr) bool {
	return slices.ContainsFunc(plan.OfVIP(p.Endpoints, lb.EndpointKey{VIP: vip}), func(e plan.Endpoint) bool { return e.NAT && e.Cookie != "" })
}
