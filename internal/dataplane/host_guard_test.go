package dataplane

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/plan"
)

// Addresses of the guards' tests: VIPs that the server owns, one endpoint each, another machine of the underlay, and one of nobody's network.
const (
	ownedWeb4, ownedAny6, ownedDNS4 = "203.0.113.12", "2001:db8:f::12", "203.0.113.17"
	mux4, mux6                      = "10.20.9.1", "2001:db8:20:9::1"
	foreign4, foreign6              = "192.0.2.77", "2001:db8:aaaa::77"
)

// guarded gives the tables a guard, and vm0 its servers.
func (e *hostEnv) guarded(g HostGuard) {
	e.t.Helper()
	address := netip.MustParseAddr
	must(e.t, e.host.Apply(HostState{
		TunnelSources: tunnelSources, MTU: 1500, Guard: g,
		VIPs:     []netip.Prefix{mustPrefix("203.0.113.0/24"), mustPrefix("2001:db8:f::/64")},
		Underlay: []netip.Prefix{mustPrefix("10.20.0.0/16"), mustPrefix("2001:db8:20::/48")},
		Bindings: []plan.Binding{bind(lb.TCP, vip4, dip4, dip4, true)},
	}))
	vm0 := e.device("vm0")
	must(e.t, netdev.In(e.namespace, func() error {
		_, err := e.host.Serve(HostServers{Senders: []HostSender{
			{Ifindex: vm0, Address: address(dip4)}, {Ifindex: vm0, Address: address(dip6)},
			{Ifindex: vm0, Address: address(ownedWeb4), Owned: true, Protocol: lb.TCP, Port: 80},
			{Ifindex: vm0, Address: address(ownedDNS4), Owned: true, Protocol: lb.UDP},
			{Ifindex: vm0, Address: address(ownedAny6), Owned: true, Protocol: lb.AnyProtocol},
		}})
		return err
	}))
}

// raw is a frame of an IP packet with any payload.
func raw(t *testing.T, src, dst string, protocol layers.IPProtocol, payload []byte) []byte {
	t.Helper()
	return frame(serialize(t, true, ipLayer(src, dst, protocol), gopacket.Payload(payload)))
}

// tcpFrom and udpFrom are frames of a server.
func tcpFrom(t *testing.T, src, dst string, sport uint16) []byte {
	t.Helper()
	return frame(packet{protocol: lb.TCP, src: src, dst: dst, sport: sport, dport: 40001, ack: true, payload: "x"}.bytes(t))
}

func udpFrom(t *testing.T, src, dst string, sport, dport uint16) []byte {
	t.Helper()
	return frame(packet{protocol: lb.UDP, src: src, dst: dst, sport: sport, dport: dport, payload: "12345678"}.bytes(t))
}

// fragment makes an IPv4 frame one of a datagram's: offset in units of 8 bytes.
func fragment(f []byte, offset uint16, more bool) []byte {
	f = slices.Clone(f)
	if more {
		offset |= 0x2000
	}
	binary.BigEndian.PutUint16(f[20:], offset)
	return f
}

// optioned puts a source route to an address into an IPv4 frame (RFC 791 section 3.1).
func optioned(f []byte, to string) []byte {
	f = slices.Clone(f)
	f[14] = 0x47
	binary.BigEndian.PutUint16(f[16:], binary.BigEndian.Uint16(f[16:])+8)
	a := netip.MustParseAddr(to).As4()
	return slices.Insert(f, 34, 131, 7, 4, a[0], a[1], a[2], a[3], 0)
}

// extended puts headers of destination options (60) or others of 8 bytes into an IPv6 frame, behind its first one.
func extended(f []byte, kinds ...byte) []byte {
	f = slices.Clone(f)
	next := f[20]
	var headers []byte
	for i, kind := range kinds {
		if i == 0 {
			f[20] = kind
		} else {
			headers[(i-1)*8] = kind
		}
		headers = append(headers, next, 0, 0, 0, 0, 0, 0, 0)
		if kind == 60 {
			copy(headers[i*8+2:], []byte{1, 4})
		}
	}
	binary.BigEndian.PutUint16(f[18:], binary.BigEndian.Uint16(f[18:])+uint16(len(headers)))
	return slices.Insert(f, 54, headers...)
}

// guardCase is a frame of a server, and what counts it dropped; "" it goes on.
type guardCase struct {
	name   string
	device string
	in     []byte
	reason string
}

func (e *hostEnv) guardCases(all []guardCase) {
	e.t.Helper()
	for _, c := range all {
		if c.reason == "" {
			e.sent(c.name, c.device, c.in, verdictNext)
		} else {
			e.sent(c.name, c.device, c.in, verdictDrop, c.reason)
		}
	}
}

// TestHostGuardsSources: servers send from their own addresses, and from a VIP what belongs to an endpoint that they own.
func TestHostGuardsSources(t *testing.T) {
	e := newHostEnv(t).quiet()
	e.guarded(GuardNetworks)
	icmpFrom := func(src, dst string) []byte {
		return raw(t, src, dst, layers.IPProtocolICMPv4, []byte{3, 3, 0, 0, 0, 0, 0, 0, 0x45, 0})
	}
	const bad, vip = "sent_bad_source", "sent_vip_source"
	both := []guardCase{
		{"own DIP 4", "vm0", tcpFrom(t, dip4, client4, 8080), ""},
		{"own DIP 6", "vm0", tcpFrom(t, dip6, client6, 8080), ""},
		{"a DIP behind another device", "vm0", tcpFrom(t, narrow4, client4, 8080), bad},
		{"the same, from there", "nm0", tcpFrom(t, narrow4, client4, 8080), ""},
		{"a DIP by another device", "nm0", tcpFrom(t, dip4, client4, 8080), bad},
		{"this machine", "vm0", tcpFrom(t, host4, client4, 8080), bad},
		{"this machine 6", "vm0", udpFrom(t, host6, client6, 8080, 53), bad},
		{"another machine", "vm0", tcpFrom(t, mux4, client4, 179), bad},
		{"another machine 6", "vm0", tcpFrom(t, mux6, client6, 179), bad},
		{"an outer source", "vm0", tcpFrom(t, source4, client4, 80), bad},
		{"an outer source 6", "vm0", tcpFrom(t, source6, client6, 80), bad},
		{"a VIP", "vm0", tcpFrom(t, vip4, client4, 80), vip},
		{"a VIP 6", "vm0", tcpFrom(t, vip6, client6, 80), vip},
		{"a VIP, ICMP", "vm0", icmpFrom(vip4, client4), vip},
		{"a VIP, later fragment", "vm0", fragment(tcpFrom(t, vip4, client4, 80), 3, false), vip},
		{"own endpoint", "vm0", tcpFrom(t, ownedWeb4, client4, 80), ""},
		{"own endpoint, by another device", "nm0", tcpFrom(t, ownedWeb4, client4, 80), vip},
		{"another port of its VIP", "vm0", tcpFrom(t, ownedWeb4, client4, 81), vip},
		{"another protocol of its VIP", "vm0", udpFrom(t, ownedWeb4, client4, 80, 40001), vip},
		{"SCTP of its VIP", "vm0", raw(t, ownedWeb4, client4, layers.IPProtocolSCTP, make([]byte, 16)), vip},
		{"an ICMP error of its VIP", "vm0", icmpFrom(ownedWeb4, client4), ""},
		{"first fragment of own endpoint", "vm0", fragment(tcpFrom(t, ownedWeb4, client4, 80), 0, true), ""},
		{"first fragment of another's", "vm0", fragment(tcpFrom(t, ownedWeb4, client4, 81), 0, true), vip},
		{"later fragment of its VIP", "vm0", fragment(tcpFrom(t, ownedWeb4, client4, 81), 3, false), ""},
		{"own range", "vm0", udpFrom(t, ownedDNS4, client4, 5353, 40001), ""},
		{"not of own range", "vm0", tcpFrom(t, ownedDNS4, client4, 5353), vip},
		{"all of its VIP", "vm0", tcpFrom(t, ownedAny6, client6, 1), ""},
		{"GRE of its VIP", "vm0", raw(t, ownedAny6, client6, layers.IPProtocolGRE, make([]byte, 16)), ""},
		{"nobody yet 4", "vm0", udpFrom(t, "0.0.0.0", "255.255.255.255", 68, 67), ""},
		{"nobody yet 6", "vm0", raw(t, "::", "ff02::1:ff00:11", layers.IPProtocolICMPv6, []byte{135, 0, 0, 0, 0, 0, 0, 0}), ""},
		{"its link", "vm0", raw(t, "fe80::1", "ff02::2", layers.IPProtocolICMPv6, []byte{133, 0, 0, 0, 0, 0, 0, 0}), ""},
		{"priority tag, another machine", "vm0", tagged(tcpFrom(t, mux4, client4, 179), 0x8100e000), bad},
		{"priority tags, a VIP", "vm0", tagged(tcpFrom(t, vip6, client6, 80), 0x88a80000, 0x81002000), vip},
		{"priority tag, own DIP", "vm0", tagged(tcpFrom(t, dip4, client4, 8080), 0x81000000), ""},
		{"of a VLAN", "vm0", tagged(tcpFrom(t, vip4, client4, 80), 0x81000064), ""},
	}
	e.guardCases(both)
	e.guardCases([]guardCase{
		{"beyond the Networks 4", "vm0", tcpFrom(t, foreign4, client4, 80), ""},
		{"beyond the Networks 6", "vm0", tcpFrom(t, foreign6, client6, 80), ""},
		{"a client's", "vm0", tcpFrom(t, client4, host4, 80), ""},
	})
	e.guarded(GuardStrict)
	e.guardCases(both)
	e.route(foreign4, "vm0")
	e.guardCases([]guardCase{
		{"strict: reached by it", "vm0", tcpFrom(t, foreign4, client4, 80), ""},
		{"strict: not by this one", "nm0", tcpFrom(t, foreign4, client4, 80), bad},
		{"strict: not at all", "vm0", tcpFrom(t, foreign6, client6, 80), bad},
		{"strict: a client's", "vm0", tcpFrom(t, client4, host4, 80), bad},
	})
	e.guarded(GuardOff)
	for _, c := range both {
		e.sent("off: "+c.name, c.device, c.in, verdictNext)
	}
}

// TestHostGuardsQuotes: an ICMP error quotes a packet to a server behind its sender's device, else it would leave with another server's VIP.
func TestHostGuardsQuotes(t *testing.T) {
	e := newHostEnv(t).quiet()
	e.guarded(GuardNetworks)
	const bad = "sent_bad_source"
	about := func(client, server string) []byte {
		return packet{protocol: lb.TCP, src: client, dst: server, sport: 40001, dport: 8080, ack: true, payload: "12345678"}.bytes(t)
	}
	unreachable4 := func(from, server string) []byte {
		return frame(icmp(t, from, client4, 3, 3, 0, about(client4, server)))
	}
	tooBig6 := func(from, server string) []byte {
		return frame(icmp(t, from, client6, 2, 0, 1280, about(client6, server)))
	}
	e.guardCases([]guardCase{
		{"about its own flow", "vm0", unreachable4(dip4, dip4), ""},
		{"about its own flow 6", "vm0", tooBig6(dip6, dip6), ""},
		{"about one behind another device", "vm0", unreachable4(dip4, narrow4), bad},
		{"the same, by a priority tag", "vm0", tagged(unreachable4(dip4, narrow4), 0x81000000), bad},
		{"the same, from there", "nm0", unreachable4(narrow4, narrow4), ""},
		{"about one of another machine", "vm0", unreachable4(dip4, mux4), bad},
		{"about one of another machine 6", "vm0", tooBig6(dip6, mux6), bad},
		{"of its VIP, about it", "vm0", unreachable4(ownedWeb4, ownedWeb4), ""},
		{"of its VIP, about another's", "vm0", unreachable4(ownedWeb4, vip4), bad},
	})
	e.route(foreign4, "vm0")
	e.guardCases([]guardCase{
		{"about one behind it", "vm0", unreachable4(dip4, foreign4), ""},
		{"about the same, from elsewhere", "nm0", unreachable4(narrow4, foreign4), bad},
	})
	e.guarded(GuardOff)
	e.sent("off", "vm0", unreachable4(dip4, narrow4), verdictNext)
}

// TestHostGuardsTunnels: servers reach no tunnel of the underlay, by whatever headers they try.
func TestHostGuardsTunnels(t *testing.T) {
	e := newHostEnv(t).quiet()
	e.guarded(GuardNetworks)
	inner4 := packet{protocol: lb.TCP, src: client4, dst: vip4, sport: 1, dport: 80, syn: true}.bytes(t)
	inner6 := packet{protocol: lb.TCP, src: client6, dst: vip6, sport: 1, dport: 80, syn: true}.bytes(t)
	const tunnelled = "sent_tunnel"
	gue4 := func(dst string) []byte { return gueTunnel(t, dip4, dst, 1, inner4) }
	gue6 := func(dst string) []byte { return gueTunnel(t, dip6, dst, 1, inner6) }
	e.guardCases([]guardCase{
		{"4in4 to the machine", "vm0", tunnel(t, dip4, host4, inner4), tunnelled},
		{"6in4 to the machine", "vm0", tunnel(t, dip4, host4, inner6), tunnelled},
		{"6in6 to the machine", "vm0", tunnel(t, dip6, host6, inner6), tunnelled},
		{"4in6 to a mux", "vm0", tunnel(t, dip6, mux6, inner4), tunnelled},
		{"4in4 to a DIP", "vm0", tunnel(t, dip4, narrow4, inner4), tunnelled},
		{"4in4 to an outer source", "vm0", tunnel(t, dip4, source4, inner4), tunnelled},
		{"4in4 from an outer source", "vm0", tunnel(t, source4, dip4, inner4), "sent_bad_source"},
		{"GUE from an outer source", "vm0", gueTunnel(t, source6, dip6, 1, inner6), "sent_bad_source"},
		{"GRE", "vm0", raw(t, dip4, mux4, layers.IPProtocolGRE, make([]byte, 20)), tunnelled},
		{"GUE 4", "vm0", gue4(mux4), tunnelled},
		{"GUE 6", "vm0", gue6(host6), tunnelled},
		{"GUE, another port", "vm0", udpFrom(t, dip4, mux4, 6080, 6081), ""},
		{"TCP to its port", "vm0", frame(packet{protocol: lb.TCP, src: dip4, dst: mux4, sport: 1, dport: 6080}.bytes(t)), ""},
		{"4in4 to anybody else", "vm0", tunnel(t, dip4, client4, inner4), ""},
		{"GUE to anybody else", "vm0", gue6(client6), ""},
		{"4in4 to a VIP", "vm0", tunnel(t, dip4, vip4, inner4), ""},
		{"first fragment of GUE", "vm0", fragment(gue4(mux4), 0, true), tunnelled},
		{"later fragment of UDP", "vm0", fragment(gue4(mux4), 1, true), ""},
		{"later fragment of 4in4", "vm0", fragment(tunnel(t, dip4, mux4, inner4), 1, false), tunnelled},
		{"first fragment of GUE 6", "vm0", func() []byte { f := extended(gue6(mux6), 44); f[57] = 1; return f }(), tunnelled},
		{"first fragment 6, options behind it", "vm0", func() []byte { f := extended(gue6(mux6), 44, 60); f[57] = 1; return f }(), tunnelled},
		{"first fragment 6 that ends before its UDP header", "vm0", func() []byte {
			f := extended(gue6(mux6), 44, 60)
			f[57], f[63] = 1, 1
			binary.BigEndian.PutUint16(f[18:], 16)
			return f[:70]
		}(), "sent_malformed"},
		{"VLAN", "vm0", tagged(gue4(mux4), 0x81000064), tunnelled},
		{"two VLANs", "vm0", tagged(tunnel(t, dip6, mux6, inner6), 0x88a80001, 0x81000002), tunnelled},
		{"IPv4 options", "vm0", optioned(gue4(mux4), mux4), tunnelled},
		{"IPv4 source route by somebody else", "vm0", optioned(tunnel(t, dip4, client4, inner4), mux4), tunnelled},
		{"IPv4 options without a tunnel", "vm0", optioned(tcpFrom(t, dip4, mux4, 8080), mux4), ""},
		{"IPv6 options", "vm0", extended(gue6(mux6), 60), tunnelled},
		{"IPv6 hop-by-hop, options, routing", "vm0", extended(tunnel(t, dip6, mux6, inner4), 0, 60, 43), tunnelled},
		{"more IPv6 headers than anybody follows", "vm0", extended(gue6(mux6), 60, 60, 60, 60, 60, 60, 60), "sent_malformed"},
		{"the same to anybody else", "vm0", extended(gue6(client6), 60, 60, 60, 60, 60, 60, 60), ""},
		{"IPv6 source route", "vm0", func() []byte { f := extended(gue6(mux6), 43); f[57] = 1; return f }(), "sent_malformed"},
	})
	e.guarded(GuardOff)
	e.sent("off", "vm0", gue4(mux4), verdictNext)
}

// TestHostGuardIsTakenOver: an agent that starts finds who may send, and changes what differs.
func TestHostGuardIsTakenOver(t *testing.T) {
	e := newHostEnv(t).quiet()
	e.guarded(GuardNetworks)
	must(t, e.host.Close())
	e.open()
	e.quiet()
	own, vip := tcpFrom(t, dip4, client4, 8080), tcpFrom(t, ownedWeb4, client4, 80)
	e.sent("before a plan: own DIP", "vm0", own, verdictNext)
	e.sent("before a plan: own endpoint", "vm0", vip, verdictNext)
	e.sent("before a plan: spoofed", "vm0", tcpFrom(t, mux4, client4, 80), verdictDrop, "sent_bad_source")
	e.serve()
	e.sent("nobody owns it any more", "vm0", vip, verdictDrop, "sent_vip_source")
	must(t, e.host.Apply(HostState{TunnelSources: tunnelSources, MTU: 1500}))
	if n, s := len(e.host.state.networks), len(e.host.senders); n != 0 || s != 0 {
		t.Errorf("%d prefixes and %d senders are left", n, s)
	}
	e.sent("no guard", "vm0", vip, verdictNext)
}
