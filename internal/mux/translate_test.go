package mux

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// translating is planOf with addresses of path nat and endpoints that use them.
func translating(vips []string, addresses ...string) plan.Plan {
	p := planOf(vips, "10.20.1.11")
	p.Node.NAT = &lb.NAT{Low: 2000, High: 2999}
	for _, a := range addresses {
		p.Node.NAT.Addresses = append(p.Node.NAT.Addresses, netip.MustParseAddr(a))
	}
	for i := range p.Endpoints {
		p.Endpoints[i].NAT = true
	}
	return p
}

// TestTranslatingMux: a mux sends from its addresses of path nat and announces them, whatever the
// state of its VIPs. A new agent does not withdraw them.
func TestTranslatingMux(t *testing.T) {
	w := newWorld(t)
	w.apply(translating([]string{"203.0.113.10"}, "10.99.0.1", "2001:db8:99::1"))
	w.expect("before the VIP's server was asked", "tables [203.0.113.10]", "routes [10.99.0.1 2001:db8:99::1]")
	of := func(a string) dataplane.NATAddress {
		return dataplane.NATAddress{Addr: netip.MustParseAddr(a), Low: 2000, High: 2999}
	}
	if want := []dataplane.NATAddress{of("10.99.0.1"), of("2001:db8:99::1")}; !slices.Equal(w.tables.nat, want) {
		t.Errorf("the tables send from %v, expected %v", w.tables.nat, want)
	}
	e := w.tables.state.Endpoints[0]
	if !e.NAT || e.Members[0].Port != w.agent.plan.Endpoints[0].Members[0].Port || e.Members[0].Outer != netip.MustParseAddr("10.20.1.11") {
		t.Errorf("the endpoint is %+v", e)
	}
	w.probe("10.20.1.11", true, "connected")
	w.expect("its server answers", "alive 203.0.113.10/1 true", "routes [10.99.0.1 203.0.113.10 2001:db8:99::1]")

	w.restart()
	w.apply(translating([]string{"203.0.113.10"}, "10.99.0.1", "2001:db8:99::1"))
	w.expect("another agent", "tables [203.0.113.10]")
	if len(w.tables.nat) != 2 {
		t.Errorf("it has the tables send from %v", w.tables.nat)
	}

	w.apply(translating([]string{"203.0.113.10"}, "10.99.0.2"))
	w.expect("other addresses", "tables [203.0.113.10]", "routes [10.99.0.2 203.0.113.10]")
	if !slices.Equal(w.tables.nat, []dataplane.NATAddress{of("10.99.0.2")}) {
		t.Errorf("the tables send from %v", w.tables.nat)
	}
	w.probe("10.20.1.11", false, "connection refused")
	w.probe("10.20.1.11", false, "connection refused")
	w.expect("the VIP has no server", "alive 203.0.113.10/1 false", "routes [10.99.0.2]")
	p := planOf([]string{"203.0.113.10"}, "10.20.1.11")
	w.apply(p)
	if len(w.tables.nat) > 0 {
		t.Errorf("without addresses the tables send from %v", w.tables.nat)
	}
	if e := w.tables.state.Endpoints[0]; e.NAT || e.Members[0].Port != 0 {
		t.Errorf("the endpoint is still %+v", e)
	}
}
