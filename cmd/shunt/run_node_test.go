package main

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
)

func TestOwnNode(t *testing.T) {
	network := func(name string, underlay ...string) lb.Document {
		n := &lb.Network{Name: name}
		for _, p := range underlay {
			n.Underlay = append(n.Underlay, netip.MustParsePrefix(p))
		}
		return lb.Document{Object: n}
	}
	dual := []string{"10.20.3.11", "10.20.3.12", "2001:db8:20:3::11"}
	for name, c := range map[string]struct {
		addresses []string
		networks  []lb.Document
		want      []string
		err       string
	}{
		"both families":              {dual, []lb.Document{network("dc1", "10.0.0.0/8", "2001:db8::/32")}, []string{"10.20.3.11", "2001:db8:20:3::11"}, ""},
		"IPv4 underlay alone":        {dual, []lb.Document{network("dc1", "10.0.0.0/8")}, []string{"10.20.3.11"}, ""},
		"IPv6 underlay alone":        {dual, []lb.Document{network("dc1", "2001:db8::/32")}, []string{"2001:db8:20:3::11"}, ""},
		"second address of a family": {dual, []lb.Document{network("dc1", "10.20.3.12/32")}, []string{"10.20.3.12"}, ""},
		"one Network, not two":       {dual, []lb.Document{network("dc0", "172.16.0.0/12"), network("dc1", "2001:db8::/32"), network("dc2", "10.0.0.0/8")}, []string{"2001:db8:20:3::11"}, ""},
		"no Network":                 {dual, nil, []string{"10.20.3.11", "2001:db8:20:3::11"}, ""},
		"outside": {dual, []lb.Document{network("dc1", "172.16.0.0/12", "192.168.0.0/16"), network("dc2", "fd00::/8")}, nil,
			`networks/dc1: underlay: 172.16.0.0/12, 192.168.0.0/16; networks/dc2: underlay: fd00::/8: must hold an address of --interface eth0 (10.20.3.11, 10.20.3.12, 2001:db8:20:3::11); add its prefix to the underlay, or write a Node "vm" with role mux and its address`},
		"no address": {nil, []lb.Document{network("dc1", "10.0.0.0/8")}, nil,
			`networks/dc1: underlay: 10.0.0.0/8: must hold an address of --interface eth0 (none); add its prefix to the underlay, or write a Node "vm" with role mux and its address`},
	} {
		t.Run(name, func(t *testing.T) {
			var addresses, want []netip.Addr
			for _, a := range c.addresses {
				addresses = append(addresses, netip.MustParseAddr(a))
			}
			for _, a := range c.want {
				want = append(want, netip.MustParseAddr(a))
			}
			got, err := ownNode("vm", "eth0", addresses, c.networks)
			switch {
			case c.err != "":
				if err == nil || err.Error() != c.err {
					t.Fatalf("ownNode: error %v, want %s", err, c.err)
				}
			case err != nil:
				t.Fatalf("ownNode: %v", err)
			case got.Name != "vm" || got.Role != lb.RoleMux || !slices.Equal(got.Addresses, want):
				t.Errorf("ownNode: %+v, want a mux vm with %v", got, want)
			}
		})
	}
}
