package probe

import (
	"net/netip"
	"testing"
	"unique"

	"github.com/shuntlb/shunt/internal/lb"
)

func TestWantedThroughTheTunnel(t *testing.T) {
	vip, dip, outer := netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("10.20.1.11"), netip.MustParseAddr("10.20.1.1")
	one := lb.EndpointKey{VNI: 7, VIP: vip, Protocol: lb.TCP, Port: 80}
	many, all := one, one
	many.Port, many.PortEnd = 8000, 8100
	all.Port, all.PortEnd = 0, lb.AllPorts
	for _, c := range []struct {
		name           string
		through, encap string
		endpoint       lb.EndpointKey
		port, backend  uint16
		want           Tunnel
		address        uint16
	}{
		{"direct", lb.ThroughDirect, lb.EncapIPIP, one, 0, 8080, Tunnel{}, 8080},
		{"IPIP names no member", lb.ThroughTunnel, lb.EncapIPIP, one, 0, 8080, Tunnel{7, netip.AddrPortFrom(vip, 80), outer, lb.EncapIPIP, 0}, 8080},
		{"GUE does", lb.ThroughTunnel, lb.EncapGUE, one, 0, 8080, Tunnel{7, netip.AddrPortFrom(vip, 80), outer, lb.EncapGUE, 5}, 8080},
		{"the endpoint's port is the only one", lb.ThroughTunnel, lb.EncapIPIP, one, 9, 8080, Tunnel{7, netip.AddrPortFrom(vip, 80), outer, lb.EncapIPIP, 0}, 8080},
		{"the first of many", lb.ThroughTunnel, lb.EncapIPIP, many, 0, 0, Tunnel{7, netip.AddrPortFrom(vip, 8000), outer, lb.EncapIPIP, 0}, 8000},
		{"the check's of many", lb.ThroughTunnel, lb.EncapIPIP, many, 8050, 0, Tunnel{7, netip.AddrPortFrom(vip, 8050), outer, lb.EncapIPIP, 0}, 8050},
		{"the check's of all", lb.ThroughTunnel, lb.EncapIPIP, all, 443, 0, Tunnel{7, netip.AddrPortFrom(vip, 443), outer, lb.EncapIPIP, 0}, 443},
		{"the backend's of all", lb.ThroughTunnel, lb.EncapIPIP, all, 0, 8080, Tunnel{7, netip.AddrPortFrom(vip, 8080), outer, lb.EncapIPIP, 0}, 8080},
	} {
		got := Wanted(lb.Check{Kind: lb.CheckTCP, Through: c.through, Port: c.port}, dip, c.backend, Way{c.endpoint, outer, c.encap, 5})
		if c.through == lb.ThroughDirect && got != Of(lb.Check{Kind: lb.CheckTCP, Through: c.through, Port: c.port}, dip, c.backend) {
			t.Errorf("%s: %+v is not what Of says", c.name, got)
		}
		var tunnel Tunnel
		if got.Tunnel != (unique.Handle[Tunnel]{}) {
			tunnel = got.Tunnel.Value()
		}
		if tunnel != c.want || got.Address != netip.AddrPortFrom(dip, c.address) {
			t.Errorf("%s: %+v to %v, expected %+v to port %d", c.name, tunnel, got.Address, c.want, c.address)
		}
	}
}
