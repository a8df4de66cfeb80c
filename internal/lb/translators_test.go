package lb_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
)

// translatedState returns two muxes with addresses for path nat, a host, and a service that they
// translate, of both families.
func translatedState() (mux1, mux2, host *lb.Node, svc *lb.Service) {
	mux1, mux2, host = validNode(), validNode(), validNode()
	mux2.Name, mux2.Addresses = "mux2", []netip.Addr{addr("10.10.0.12"), addr("2001:db8:10::12")}
	host.Name, host.Role, host.BGP, host.Addresses = "host1", lb.RoleHost, nil, []netip.Addr{addr("10.20.3.1")}
	mux1.NAT = &lb.NAT{Addresses: []netip.Addr{addr("192.0.2.1"), addr("2001:db8:40::1")}}
	mux2.NAT = &lb.NAT{Addresses: []netip.Addr{addr("192.0.2.2"), addr("2001:db8:40::2")}}
	svc = validService()
	for i := range svc.Endpoints {
		svc.Endpoints[i].Path, svc.Endpoints[i].RepairWindow = lb.PathNAT, nil
		svc.Endpoints[i].Backends[1].Host = netip.Addr{}
	}
	for _, o := range []lb.Object{mux1, mux2, host, svc} {
		lb.SetDefaults(o)
	}
	return mux1, mux2, host, svc
}

// TestTranslatorsOfState: muxes must support the services with path nat, with addresses that no
// other object has.
func TestTranslatorsOfState(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(mux1, mux2, host *lb.Node, svc *lb.Service)
		want  []string
	}{
		{"valid", func(_, _, _ *lb.Node, _ *lb.Service) {}, nil},
		{"no mux has addresses", func(mux1, mux2, _ *lb.Node, svc *lb.Service) {
			mux1.NAT, mux2.NAT, svc.Endpoints = nil, nil, svc.Endpoints[1:]
		}, []string{
			"services/web: endpoints[0].path: nat: needs an IPv4 address in nat.addresses of every mux, and no mux has one",
		}},
		{"one has none", func(_, mux2, _ *lb.Node, svc *lb.Service) { mux2.NAT = nil }, []string{
			"services/web: endpoints[0].path: nat: needs an IPv4 address in nat.addresses of every mux, and nodes/mux2 has none",
			"services/web: endpoints[1].path: nat: needs an IPv4 address in nat.addresses of every mux, and nodes/mux2 has none",
		}},
		{"one has none of the family", func(mux1, _, _ *lb.Node, svc *lb.Service) {
			mux1.NAT.Addresses, svc.Endpoints[0].Path = mux1.NAT.Addresses[:1], lb.PathDSR
			svc.Endpoints[0].Backends[1].Host = addr("10.20.2.1")
		}, []string{"services/web: endpoints[1].path: nat: needs an IPv6 address in nat.addresses of every mux, and nodes/mux1 has none"}},
		{"one has none of a family that the service has not", func(_, mux2, _ *lb.Node, svc *lb.Service) {
			mux2.NAT.Addresses, svc.VIPs = mux2.NAT.Addresses[:1], svc.VIPs[:1]
		}, nil},
		{"one of a VIP's", func(mux1, _, _ *lb.Node, _ *lb.Service) { mux1.NAT.Addresses[0] = addr("203.0.113.200") }, []string{
			"nodes/mux1: nat.addresses[0]: 203.0.113.200: must not be inside the vips of networks/dc: 203.0.113.0/24",
		}},
		{"one of tunnels", func(mux1, _, _ *lb.Node, _ *lb.Service) { mux1.NAT.Addresses[0] = addr("100.64.0.1") }, []string{
			"nodes/mux1: nat.addresses[0]: 100.64.0.1: must not be inside the tunnelSources of networks/dc: 100.64.0.0/16",
		}},
		{"two have one", func(_, mux2, _ *lb.Node, _ *lb.Service) { mux2.NAT.Addresses[1] = addr("2001:db8:40::1") }, []string{
			"nodes/mux2: nat.addresses[1]: 2001:db8:40::1: must belong to one node, and nodes/mux1 has it",
		}},
		{"a node's own", func(_, mux2, _ *lb.Node, _ *lb.Service) { mux2.NAT.Addresses[0] = addr("10.20.3.1") }, []string{
			"nodes/mux2: nat.addresses[0]: 10.20.3.1: must belong to one node, and nodes/host1 has it",
		}},
		{"a server's", func(_, mux2, _ *lb.Node, svc *lb.Service) {
			mux2.NAT.Addresses[0], svc.Endpoints = addr("10.20.1.11"), svc.Endpoints[:1]
		}, []string{"services/web: endpoints[0].backends[0].dip[0]: 10.20.1.11: must not be one of nat.addresses of nodes/mux2"}},
		{"a host's that is no node", func(_, mux2, _ *lb.Node, svc *lb.Service) {
			mux2.NAT.Addresses[0], svc.Endpoints = addr("10.20.9.1"), svc.Endpoints[:1]
			svc.Endpoints[0].Backends[1].Host = addr("10.20.9.1")
		}, []string{"services/web: endpoints[0].backends[1].host: 10.20.9.1: must not be one of nat.addresses of nodes/mux2"}},
	} {
		mux1, mux2, host, svc := translatedState()
		c.spoil(mux1, mux2, host, svc)
		all := []lb.Object{mux1, mux2, host, svc, validNetwork()}
		if got := texts(lb.ValidateState(all)); got != strings.Join(c.want, "\n      ") {
			t.Errorf("%s:\n got %q\nwant %q", c.name, got, c.want)
		}
		for _, o := range all {
			if wrong := lb.Validate(o); len(wrong) > 0 {
				t.Errorf("%s: %v", c.name, texts(wrong))
			}
		}
	}
}
