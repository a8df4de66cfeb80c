package plan

import (
	"net/netip"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
)

// TestTranslatedEndpoints: with path nat, packets go directly to the servers, whichever machine
// they run on, without a tunnel and without hosts.
func TestTranslatedEndpoints(t *testing.T) {
	vip, dip, host := netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("10.20.1.11"), netip.MustParseAddr("2001:db8:20::1")
	other := netip.MustParseAddr("10.20.2.11")
	svc := &lb.Service{Name: "web", VIPs: []netip.Addr{vip}, Endpoints: []lb.Endpoint{{Protocol: lb.TCP, Port: 80, Path: lb.PathNAT, Backends: []lb.Backend{
		{DIPs: []netip.Addr{dip}, Host: host, Weight: 1}, {DIPs: []netip.Addr{other}, Weight: 1},
	}}}}
	lb.SetDefaults(svc)
	ep := &svc.Endpoints[0]
	st := EndpointState{Key: lb.EndpointKey{VIP: vip, Protocol: lb.TCP, Port: 80}}
	st.Members = []MemberState{
		{ID: 1, Backend: lb.BackendKey{DIP: dip, Port: 80}, Weight: 1}, {ID: 2, Backend: lb.BackendKey{DIP: other, Port: 80}, Weight: 1},
	}
	got := MakeEndpoint(svc, ep, &st, nil, lb.EncapGUE)
	if !got.NAT || got.Encap != lb.EncapIPIP || got.Members[0].Outer != dip || got.Members[1].Outer != other {
		t.Errorf("path nat: %+v", got)
	}
	if bindings := MakeBindings(svc, ep, &st, lb.EncapGUE); len(bindings) > 0 {
		t.Errorf("path nat: hosts are told %+v", bindings)
	}
	if _, ok := MakeRepair(ep, &st, []Key{{}}, lb.EncapGUE); ok {
		t.Error("path nat: hosts are told what to repair")
	}
	ep.Path = lb.PathDSR
	same := MakeEndpoint(svc, ep, &st, nil, lb.EncapGUE)
	if same.NAT || same.Encap != lb.EncapGUE || same.Members[0].Outer != host || got.Equal(&same) {
		t.Errorf("path dsr: %+v", same)
	}
}
