package dataplane

import (
	"net/netip"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// TestHostImpossibleSources: what comes through a tunnel from an address that no host has, or that tunnels come from, is dropped, over both families, by IPIP and
// GUE, of new flows and known ones, whole and in fragments, and of other hosts; so is an ICMP error. The addresses next to these are clients like others.
func TestHostImpossibleSources(t *testing.T) {
	e := newClockEnv(t)
	bindings := []plan.Binding{
		bind(lb.TCP, vip4, dip4, dip4, true), bind(lb.TCP, vip6, dip6, dip6, true), gue(1, bind(lb.TCP, vip4, dip4, dip4, true)), gue(1, bind(lb.TCP, vip6, dip6, dip6, true)),
		bind(lb.UDP, vip4, dip4, dip4, true), bind(lb.UDP, vip6, dip6, dip6, true),
	}
	other := []netip.Prefix{netip.MustParsePrefix("100.80.0.0/16"), netip.MustParsePrefix("fd53:6875:6e75::/64")}
	must(t, e.host.Apply(HostState{TunnelSources: append(append([]netip.Prefix{}, tunnelSources...), other...), MTU: 1500, Bindings: bindings}))
	bad := []string{
		"0.0.0.0", "0.255.255.255", "127.0.0.1", "127.255.255.255", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255", source4, "100.64.255.255", "100.80.0.1",
		"::", "::1", "ff02::1", "ff0e::1", "::ffff:198.51.100.11", "::ffff:203.0.113.10", source6, "fd53:6875:6e75::1",
	}
	good := []string{
		"1.0.0.0", "126.255.255.255", "128.0.0.1", "223.255.255.255", "100.63.255.255", "100.65.0.0", "100.81.0.0",
		"::2", "::1:0:0:1", "1::1", "fe00::1", "::fffe:c633:640b", "fd53:6875:6e74:1::", "fd53:6875:6e76::1",
	}
	for _, c := range []struct {
		sources []string
		verdict int32
		reason  string
	}{{bad, verdictDrop, "in_bad_source"}, {good, verdictRedirect, "in_delivered"}} {
		for i, source := range c.sources {
			addr := netip.MustParseAddr(source)
			p := packet{protocol: lb.TCP, src: source, dst: vip4, sport: uint16(1000 + i), dport: 80, syn: true}
			outer, dip, mapped := source4, dip4, addr.Is4In6()
			if addr.Is6() {
				p.dst, outer, dip = vip6, source6, dip6
			}
			raw := func(p packet) []byte {
				if !mapped {
					return p.bytes(t)
				}
				// The packet of a client, with the address written over it.
				p.src = client6
				b := p.bytes(t)
				as16 := addr.As16()
				copy(b[8:], as16[:])
				return b
			}
			later := p
			later.syn, later.ack = false, true
			datagram := p
			datagram.protocol, datagram.dport, datagram.syn, datagram.payload = lb.UDP, 53, false, "0123456789012345678901234567890123456789"
			for _, f := range []struct {
				name  string
				frame []byte
			}{
				{"SYN", tunnel(t, outer, dip, raw(p))}, {"GUE", gueTunnel(t, outer, dip, 1, raw(p))}, {"segment", tunnel(t, outer, dip, raw(later))},
				{"datagram", tunnel(t, outer, dip, raw(datagram))},
			} {
				before := e.reasons(nil)
				v, _ := e.run(e.host.objects.HostIn, f.frame)
				if r := e.reasons(before); v != c.verdict || r[c.reason] != 1 {
					t.Errorf("%s from %s: verdict %d, reasons %v, want %d, %s", f.name, source, v, r, c.verdict, c.reason)
				}
			}
		}
	}
	piece := cut(packet{protocol: lb.UDP, src: source4, dst: vip4, sport: 1, dport: 53, payload: "0123456789012345678901234567890123456789"}.bytes(t), 5, 16)
	for i := range piece {
		e.expect("fragment", tunnel(t, source4, dip4, piece[i]), verdictDrop, tunnel(t, source4, dip4, piece[i]), "in_bad_source")
	}
	answer := packet{protocol: lb.TCP, src: vip4, dst: client4, sport: 80, dport: 40001, ack: true}
	e.expect("ICMP error", tunnel(t, source4, dip4, icmp(t, source4, vip4, 3, 4, 1400, answer.bytes(t))), verdictDrop, nil, "in_bad_source")
	// A flow that began before such an address was a tunnel source.
	e.in4(packet{sport: 7, ack: true})
	must(t, e.host.Apply(HostState{TunnelSources: append([]netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}, tunnelSources...), MTU: 1500, Bindings: bindings}))
	known := packet{protocol: lb.TCP, src: client4, dst: vip4, sport: 7, dport: 80, ack: true}
	e.expect("known", tunnel(t, source4, dip4, known.bytes(t)), verdictDrop, nil, "in_bad_source")
}
