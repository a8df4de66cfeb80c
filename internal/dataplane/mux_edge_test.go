package dataplane

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/wire"
)

// edgeState is basicState with tunnels of GUE, small MTUs, and endpoints that take fragments by their addresses.
func edgeState() MuxState {
	s := basicState()
	gue := func(e MuxEndpoint) MuxEndpoint { e.Encap = EncapGUE; return e }
	taker := endpointOf(muxVIP4, lb.UDP, 5000, "10.20.1.11", "10.20.2.11", "10.20.3.11")
	taker.Fragments3Tuple = true
	narrow4, narrow6 := endpointOf(muxVIP4, lb.UDP, 5001, "10.20.1.12"), endpointOf(muxVIP6, lb.UDP, 5001, "2001:db8:20:1::12")
	narrow4.Members[0].MTU, narrow6.Members[0].MTU = 576, 1300
	s.Endpoints = append(s.Endpoints, taker, narrow4, narrow6,
		gue(endpointOf(muxVIP4, lb.TCP, 90, "10.20.1.11", "10.20.1.11", "10.20.2.11")),
		gue(endpointOf(muxVIP6, lb.TCP, 90, "2001:db8:20:1::11", "2001:db8:20:1::11")),
		gue(endpointOf(muxVIP4, lb.TCP, 91, "2001:db8:20:1::11")),
		gue(endpointOf(muxVIP6, lb.TCP, 91, "10.20.1.11", "10.20.1.11")),
	)
	s.VIPs = []MuxVIP{{VIP: muxVIP6, Limits: lb.Limits{Ping: 20}}}
	return s
}

func edgeFixture(t testing.TB) *muxFixture {
	f := newMuxFixture(t)
	s := edgeState()
	f.apply(s)
	hops := hopsTo(s)
	delete(hops, s.Endpoints[6].Members[0].Outer)
	f.setHops(hops)
	return f
}

// piece4 is a fragment of a UDP datagram; ports are in the first one.
func piece4(id uint16, offset int, more bool, port uint16) wire.Packet {
	p := udp4(port)
	p.ID, p.Flags = id, uint16(offset/8)
	if more {
		p.Flags |= 0x2000
	}
	if offset > 0 {
		p.Payload = wire.Raw{Number: wire.ProtoUDP, Data: bytes.Repeat([]byte{byte(offset)}, 64)}
	}
	return p
}

// piece6 is piece4 for IPv6.
func piece6(id uint32, offset int, more bool, port uint16) wire.Packet {
	p := udp6(port)
	h := binary.BigEndian.AppendUint32([]byte{0, byte(offset >> 8), byte(offset)}, id)
	if more {
		h[2] |= 1
	}
	p.Extensions = []wire.Extension{{Type: wire.ProtoFragment, Rest: h}}
	if offset > 0 {
		p.Payload = wire.Raw{Number: wire.ProtoUDP, Data: bytes.Repeat([]byte{byte(offset)}, 64)}
	}
	return p
}

// longer makes the UDP length that of a datagram which goes on in other fragments.
func longer(frame []byte, at int) []byte {
	frame[at] = 8
	return frame
}

func fragmentCases() []packetCase {
	tcp, ping := tcp4(80), tcp4(0)
	tcp.Flags, tcp.ID = 0x2000, 900
	tcpLater := tcp4(80)
	tcpLater.Flags, tcpLater.ID, tcpLater.Payload = 5, 900, wire.Raw{Number: wire.ProtoTCP, Data: make([]byte, 30)}
	ping.Flags, ping.Payload = 0x2000, wire.Echo{Data: make([]byte, 64)}
	dying, answered := piece4(1, 512, false, 0), piece4(1, 512, false, 0)
	dying.TTL, answered.Src = 1, muxVIP4
	other := piece6(7, 512, false, 0)
	other.Extensions[0].Rest = slices.Clone(other.Extensions[0].Rest)
	extended := piece6(8, 0, true, 53)
	extended.Extensions = append(extended.Extensions, wire.Options(wire.ProtoDstOpts, 1))
	short := piece6(9, 0, true, 53)
	unknown6 := piece6(99, 512, false, 0)
	return []packetCase{
		{"first fragment", longer(piece4(1, 0, true, 53).Frame(), 14+24), "forwarded"},
		{"second fragment", piece4(1, 512, true, 0).Frame(), "forwarded"},
		{"last fragment", piece4(1, 1024, false, 0).Frame(), "forwarded"},
		{"last fragment, TTL 1", dying.Frame(), "ttl_expired"},
		{"last fragment, from a VIP", answered.Frame(), "bad_source"},
		{"fragment that nobody began, taken by its addresses", piece4(2, 512, false, 0).Frame(), "forwarded"},
		{"first fragment to the taker", longer(piece4(3, 0, true, 5000).Frame(), 14+24), "forwarded"},
		{"first fragment, no endpoint", longer(piece4(4, 0, true, 9).Frame(), 14+24), "no_endpoint"},
		{"first fragment without a whole header", with(piece4(5, 0, true, 53).Frame(), func(b []byte) { b[17] = 27 }), "truncated"},
		{"first fragment of TCP", tcp.Frame(), "forwarded"},
		{"later fragment of TCP", tcpLater.Frame(), "forwarded"},
		{"fragment of a ping", ping.Frame(), "fragment"},
		{"IPv6 first fragment", longer(piece6(7, 0, true, 53).Frame(), 14+40+8+4), "forwarded"},
		{"IPv6 last fragment", other.Frame(), "forwarded"},
		{"IPv6 fragment that nobody began", unknown6.Frame(), "fragment"},
		{"IPv6 whole in one fragment", piece6(10, 0, false, 53).Frame(), "forwarded"},
		{"IPv6 first fragment, options behind", longer(extended.Frame(), 14+40+16+4), "forwarded"},
		{"IPv6 first fragment without a whole header", with(short.Frame(), func(b []byte) { b[19] = 8 + 7 }), "truncated"},
		{"IPv6 fragment header beyond the packet", with(short.Frame(), func(b []byte) { b[19] = 7 }), "ip6_extensions"},
	}
}

// errorAbout is an ICMP error to the source of a packet.
func errorAbout(about wire.Packet, kind, code byte, quote int) wire.Packet {
	ip := about.IP()
	b := append([]byte{kind, code, 0, 0, 0, 0, 5, 0}, ip[:min(quote, len(ip))]...)
	p := wire.Packet{DstMAC: muxSelf, SrcMAC: muxRouter, Dst: about.Src, Src: netip.MustParseAddr("192.0.2.77"), TTL: 60, Flags: 0x4000}
	if about.Src.Is4() {
		binary.BigEndian.PutUint16(b[2:], wire.Checksum(b))
		p.Payload = wire.Raw{Number: wire.ProtoICMP, Data: b}
		return p
	}
	p.Src = netip.MustParseAddr("2001:db8:77::1")
	binary.BigEndian.PutUint16(b[2:], wire.Checksum(wire.PseudoHeader(p.Src, p.Dst, 58, len(b)), b))
	p.Payload = wire.Raw{Number: wire.ProtoICMPv6, Data: b}
	return p
}

// answerTo is a packet of the endpoint that a packet went to.
func answerTo(p wire.Packet) wire.Packet {
	p.Src, p.Dst = p.Dst, p.Src
	switch l4 := p.Payload.(type) {
	case wire.TCP:
		l4.SrcPort, l4.DstPort, l4.Flags = l4.DstPort, l4.SrcPort, wire.SYN|wire.ACK
		p.Payload = l4
	case wire.UDP:
		l4.SrcPort, l4.DstPort = l4.DstPort, l4.SrcPort
		p.Payload = l4
	}
	return p
}

func errorCases() []packetCase {
	about4, about6 := answerTo(tcp4(80)), answerTo(tcp6(80))
	dying := errorAbout(about4, 3, 4, 60)
	dying.TTL = 1
	large := errorAbout(about4, 3, 4, 60)
	raw := large.Payload.(wire.Raw)
	raw.Data = append(raw.Data, make([]byte, 1440)...)
	large.Payload = raw
	inner := func(change func(ip []byte)) []byte {
		f := errorAbout(about4, 3, 4, 60).Frame()
		change(f[14+20+8:])
		return f
	}
	inner6 := func(change func(ip []byte)) []byte {
		f := errorAbout(about6, 1, 4, 60).Frame()
		change(f[14+40+8:])
		return f
	}
	optioned := with(inner(func(ip []byte) {
		copy(ip[24:], ip[20:28])
		ip[0] = 0x46
	}), func([]byte) {})
	piece := answerTo(piece6(1, 0, true, 53))
	pieceLater := answerTo(piece6(1, 512, true, 53))
	elsewhere := errorAbout(about4, 3, 1, 60)
	elsewhere.Dst = muxVIP4
	stranger := about4
	stranger.Src = muxClient4
	strange := errorAbout(stranger, 3, 1, 60)
	strange.Dst = muxVIP4
	closed := answerTo(tcp4(8080))
	gone := answerTo(tcp4(82))
	gre := about4
	gre.Payload = wire.Raw{Number: 47, Data: make([]byte, 20)}
	return []packetCase{
		{"unreachable", errorAbout(about4, 3, 1, 28).Frame(), "forwarded"},
		{"fragmentation needed", errorAbout(about4, 3, 4, 60).Frame(), "forwarded"},
		{"time exceeded", errorAbout(answerTo(udp4(53)), 11, 0, 60).Frame(), "forwarded"},
		{"parameter problem", errorAbout(about4, 12, 0, 60).Frame(), "forwarded"},
		{"source quench", errorAbout(about4, 4, 0, 60).Frame(), "icmp_ignored"},
		{"redirect", errorAbout(about4, 5, 0, 60).Frame(), "icmp_ignored"},
		{"ICMPv6 unreachable", errorAbout(about6, 1, 4, 60).Frame(), "forwarded"},
		{"ICMPv6 too big", errorAbout(about6, 2, 0, 600).Frame(), "forwarded"},
		{"ICMPv6 time exceeded", errorAbout(answerTo(udp6(53)), 3, 0, 60).Frame(), "forwarded"},
		{"ICMPv6 about a first fragment", errorAbout(piece, 3, 0, 60).Frame(), "forwarded"},
		{"ICMPv6 about a later fragment", errorAbout(pieceLater, 3, 0, 60).Frame(), "icmp_error_unknown"},
		{"ICMPv6 of unknown type 5", errorAbout(about6, 5, 0, 60).Frame(), "icmp_ignored"},
		{"through GUE", errorAbout(answerTo(tcp4(90)), 3, 4, 60).Frame(), "forwarded"},
		{"quoted options", optioned, "forwarded"},
		{"TTL 1", dying.Frame(), "ttl_expired"},
		{"too big itself", large.Frame(), "too_big"},
		{"no alive member", errorAbout(gone, 3, 1, 60).Frame(), "no_backend"},
		{"quote of 27 bytes", errorAbout(about4, 3, 1, 27).Frame(), "icmp_error_unknown"},
		{"quote of 19 bytes", errorAbout(about4, 3, 1, 19).Frame(), "icmp_error_unknown"},
		{"no quote", errorAbout(about4, 3, 1, 0).Frame(), "icmp_error_unknown"},
		{"ICMPv6 quote of 47 bytes", errorAbout(about6, 1, 4, 47).Frame(), "icmp_error_unknown"},
		{"quoted IHL 4", inner(func(ip []byte) { ip[0] = 0x44 }), "icmp_error_unknown"},
		{"quoted IHL 15 beyond the quote", inner(func(ip []byte) { ip[0] = 0x4f }), "icmp_error_unknown"},
		{"quoted version 6", inner(func(ip []byte) { ip[0] = 0x65 }), "icmp_error_unknown"},
		{"quoted length below its header", inner(func(ip []byte) { ip[2], ip[3] = 0, 27 }), "icmp_error_unknown"},
		{"quoted later fragment", inner(func(ip []byte) { ip[7] = 1 }), "icmp_error_unknown"},
		{"ICMPv6 quoted version 4", inner6(func(ip []byte) { ip[0] = 0x40 }), "icmp_error_unknown"},
		{"ICMPv6 quoted hop-by-hop options", inner6(func(ip []byte) { ip[6] = 0 }), "icmp_error_unknown"},
		{"quoted source is not where it went", strange.Frame(), "icmp_error_unknown"},
		{"about a port that is not served", errorAbout(closed, 3, 1, 60).Frame(), "icmp_error_unknown"},
		{"about GRE", errorAbout(gre, 3, 1, 60).Frame(), "icmp_error_unknown"},
	}
}

// big is a UDP packet of so many bytes in all.
func big(p wire.Packet, size int) wire.Packet {
	l4 := p.Payload.(wire.UDP)
	header := 28
	if p.Dst.Is6() {
		header = 48
	}
	l4.Data = bytes.Repeat([]byte("shunt"), size)[:size-header]
	p.Payload = l4
	return p
}

func tooBigCases() []packetCase {
	soft, multicast, multicast6 := big(udp4(5001), 557), big(udp4(5001), 1500), big(udp6(5001), 1500)
	soft.Flags = 0
	multicast.Src, multicast6.Src = netip.MustParseAddr("224.0.0.1"), netip.MustParseAddr("ff02::1")
	first := big(piece4(50, 0, true, 5001), 600)
	first.Flags |= 0x4000
	later := piece4(50, 512, false, 0)
	later.Flags |= 0x4000
	later.Payload = wire.Raw{Number: wire.ProtoUDP, Data: make([]byte, 600)}
	first6, later6 := big(piece6(50, 0, true, 5001), 1280), piece6(50, 1232, false, 0)
	later6.Payload = wire.Raw{Number: wire.ProtoUDP, Data: make([]byte, 1300)}
	guest := tcp4(90)
	guest.Payload = wire.TCP{SrcPort: 1, DstPort: 90, Data: make([]byte, 1457-40)}
	fits := tcp4(90)
	fits.Payload = wire.TCP{SrcPort: 1, DstPort: 90, Data: make([]byte, 1456-40)}
	padded := big(udp4(5001), 557)
	padded.Padding = 3
	return []packetCase{
		{"IPv4 that just fits", big(udp4(5001), 556).Frame(), "forwarded"},
		{"IPv4, one byte more, quoted in part", big(udp4(5001), 557).Frame(), "ptb_sent"},
		{"IPv4, padded", padded.Frame(), "ptb_sent"},
		{"IPv4 of 1500 bytes", big(udp4(5001), 1500).Frame(), "ptb_sent"},
		{"IPv4 without DF", soft.Frame(), "too_big"},
		{"IPv4 from multicast", multicast.Frame(), "bad_source"},
		{"IPv6 that just fits", big(udp6(5001), 1260).Frame(), "forwarded"},
		{"IPv6, one byte more", big(udp6(5001), 1261).Frame(), "ptb_sent"},
		{"IPv6 of 1500 bytes", big(udp6(5001), 1500).Frame(), "ptb_sent"},
		{"IPv6 from multicast", multicast6.Frame(), "bad_source"},
		{"IPv4 first fragment", longer(first.Frame(), 14+24), "ptb_sent"},
		{"IPv4 later fragment", later.Frame(), "too_big"},
		{"IPv6 first fragment", longer(first6.Frame(), 14+40+8+4), "ptb_sent"},
		{"IPv6 later fragment", later6.Frame(), "ptb_sent"},
		{"GUE that just fits", fits.Frame(), "forwarded"},
		{"GUE, one byte more", guest.Frame(), "ptb_sent"},
	}
}

func gueCases() []packetCase {
	var out []packetCase
	for i := range uint16(6) { // members that share an outer destination are told apart
		p := tcp4(90)
		p.Payload = wire.TCP{SrcPort: 100 + i, DstPort: 90, Flags: wire.SYN}
		out = append(out, packetCase{"4 in 4", p.Frame(), "forwarded"})
	}
	return append(out,
		packetCase{"6 in 6", tcp6(90).Frame(), "forwarded"},
		packetCase{"4 in 6", tcp4(91).Frame(), "forwarded"},
		packetCase{"6 in 4", tcp6(91).Frame(), "forwarded"},
	)
}

// tagged puts tags in front of a frame's type, each TPID:16 | TCI:16.
func tagged(frame []byte, tags ...uint32) []byte {
	for _, t := range slices.Backward(tags) {
		frame = withTag(frame, t)
	}
	return frame
}

func taggedCases() []packetCase {
	ping4, ping6 := tcp4(0), tcp6(0)
	ping4.Payload, ping6.Payload = wire.Echo{ID: 1, Data: []byte("tag")}, wire.Echo{ID: 1, Data: []byte("tag")}
	elsewhere := tcp4(80)
	elsewhere.Dst = muxClient4
	const one, outer, inner = 0x8100_0064, 0x88a8_2001, 0x8100_0002
	return []packetCase{
		{"one tag", tagged(tcp4(80).Frame(), one), "forwarded"},
		{"two tags", tagged(tcp6(80).Frame(), outer, inner), "forwarded"},
		{"802.1ad alone", tagged(udp4(53).Frame(), outer), "forwarded"},
		{"ping", tagged(ping4.Frame(), one), "echo_replied"},
		{"ping6, two tags", tagged(ping6.Frame(), outer, inner), "echo_replied"},
		{"too big", tagged(big(udp4(5001), 700).Frame(), one), "ptb_sent"},
		{"too big, two tags", tagged(big(udp6(5001), 1400).Frame(), outer, inner), "ptb_sent"},
		{"no endpoint", tagged(tcp4(8080).Frame(), one), "no_endpoint"},
		{"ICMP error", tagged(errorAbout(answerTo(tcp4(80)), 3, 1, 60).Frame(), one), "forwarded"},
		{"first fragment", tagged(longer(piece4(70, 0, true, 53).Frame(), 14+24), one), "forwarded"},
		{"later fragment", tagged(piece4(70, 512, false, 0).Frame(), one), "forwarded"},
		{"padded", tagged(append(tcp4(80).Frame(), 0, 0, 0, 0), one), "forwarded"},
		{"another destination", tagged(elsewhere.Frame(), one), "pass_not_ours"},
		{"three tags", tagged(tcp4(80).Frame(), outer, inner, one), "pass_not_ours"},
		{"ARP", tagged(with(tcp4(80).Frame(), func(b []byte) { b[12], b[13] = 8, 6 }), one), "pass_not_ip"},
		{"cut in the tag", tagged(tcp4(80).Frame(), one)[:16], "truncated"},
		{"cut in the second tag", tagged(tcp4(80).Frame(), outer, inner)[:20], "truncated"},
		{"cut in the IP header", tagged(tcp4(80).Frame(), one)[:36], "truncated"},
		{"cut in the IPv6 header", tagged(tcp6(80).Frame(), one)[:50], "truncated"},
		{"malformed", tagged(with(tcp4(80).Frame(), func(b []byte) { b[14] = 0x44 }), one), "ip4_bad_ihl"},
		{"to another address", tagged(with(tcp4(80).Frame(), func(b []byte) { b[5]++ }), one), "pass_other_mac"},
	}
}

func edgeCases() []packetCase {
	return slices.Concat(fragmentCases(), errorCases(), tooBigCases(), gueCases(), taggedCases())
}

func TestEdgePackets(t *testing.T) {
	f := edgeFixture(t)
	for _, c := range edgeCases() {
		t.Run(c.name, func(t *testing.T) {
			f.t = t
			if got := f.check(c.frame); got.reason != c.reason {
				t.Errorf("the model says %s, expected %s", got.reason, c.reason)
			}
		})
	}
}

// TestLimitedAnswers: a VIP answers a limited number of pings and of packets too big, then more as time passes.
func TestLimitedAnswers(t *testing.T) {
	f := edgeFixture(t)
	ping4, ping6 := tcp4(0), tcp6(0)
	ping4.Payload, ping6.Payload = wire.Echo{ID: 1}, wire.Echo{ID: 1}
	count := func(frame []byte, n int) (got map[string]int) {
		got = map[string]int{}
		for range n {
			got[f.check(frame).reason]++
		}
		return got
	}
	for _, c := range []struct {
		frame         []byte
		answered      string
		limited       string
		atOnce, later int
	}{
		{ping4.Frame(), "echo_replied", "ping_limited", 100, 40},
		{ping6.Frame(), "echo_replied", "ping_limited", 16, 0},
		{big(udp4(5001), 700).Frame(), "ptb_sent", "ptb_limited", 100, 40},
	} {
		begin := f.model.policy.now
		if got := count(c.frame, 130); got[c.answered] != c.atOnce || got[c.limited] != 130-c.atOnce {
			t.Errorf("at once: %v, expected %d %s", got, c.atOnce, c.answered)
		}
		f.setJiffies(begin + f.model.policy.hz/25)
		if got := count(c.frame, 60); got[c.answered] != c.later {
			t.Errorf("40 ms later: %v, expected %d %s", got, c.later, c.answered)
		}
	}
}

// TestTooBigSharesOfVIPs: a VIP whose packet-too-big bucket is empty takes no answers from another VIP, of either family, by tunnel or tagged.
func TestTooBigSharesOfVIPs(t *testing.T) {
	f := edgeFixture(t)
	s := f.model.state
	s.Endpoints = slices.Clone(s.Endpoints)
	other4, other6 := netip.MustParseAddr("203.0.113.77"), netip.MustParseAddr("2001:db8:77::1")
	for vip, dips := range map[netip.Addr][]string{other4: {"10.20.1.11"}, other6: {"fd00:20::11"}} {
		e := endpointOf(vip, lb.UDP, 5001, dips...)
		s.Endpoints = append(s.Endpoints, e)
	}
	f.apply(s)
	f.setHops(hopsTo(s))
	to := func(p wire.Packet, vip netip.Addr) []byte {
		p.Dst = vip
		return p.Frame()
	}
	flood4, flood6 := big(udp4(5001), 1500), big(udp6(5001), 1500)
	for _, c := range []struct {
		name  string
		flood wire.Packet
		other []byte
	}{
		{"IPv4", flood4, to(flood4, other4)},
		{"IPv6", flood6, to(flood6, other6)},
		{"IPv4 tagged", flood4, tagged(to(flood4, other4), 0x8100_0007)},
		{"IPv6 tagged", flood6, tagged(to(flood6, other6), 0x8100_0007)},
	} {
		for f.check(c.flood.Frame()).reason != "ptb_limited" {
		}
		if got := f.check(c.other); got.reason != "ptb_sent" {
			t.Errorf("%s: the other VIP's client gets %s, expected ptb_sent", c.name, got.reason)
		}
	}
}

// TestFragmentsAreForgotten: after five seconds, and when their member is dead or their endpoint gone.
func TestFragmentsAreForgotten(t *testing.T) {
	f := edgeFixture(t)
	first, later := piece6(1, 0, true, 53), piece6(1, 512, false, 0)
	expect := func(reason string) {
		t.Helper()
		if got := f.check(later.Frame()); got.reason != reason {
			t.Errorf("the model says %s, expected %s", got.reason, reason)
		}
	}
	sent := f.check(longer(first.Frame(), 14+40+8+4))
	f.setJiffies(testStart + 5*f.model.policy.hz - 1)
	expect("forwarded")
	f.setJiffies(testStart + 5*f.model.policy.hz)
	expect("fragment")
	sent = f.check(longer(first.Frame(), 14+40+8+4))
	f.setAlive(MemberAlive{sent.member.Endpoint, sent.member.Member, false})
	expect("fragment")
	f.setAlive(MemberAlive{sent.member.Endpoint, sent.member.Member, true})
	expect("forwarded")
	s := f.model.state
	s.Endpoints = slices.Clone(s.Endpoints)
	s.Endpoints = slices.DeleteFunc(s.Endpoints, func(e MuxEndpoint) bool { return e.Key == sent.member.Endpoint })
	f.apply(s)
	expect("fragment")
}

// TestSharedOuters: two members of an endpoint may share an outer destination when the tunnel names them.
func TestSharedOuters(t *testing.T) {
	f := newMuxFixture(t)
	s := MuxState{RingKeys: testKeys, TunnelSources: sources, Endpoints: []MuxEndpoint{endpointOf(muxVIP4, lb.TCP, 80, "10.20.1.11", "10.20.1.11")}}
	if err := f.mux.Apply(s); err == nil || !strings.Contains(err.Error(), "gue") {
		t.Errorf("error %v: must tell of gue", err)
	}
	s.Endpoints[0].Encap = EncapGUE
	f.apply(s)
}

// TestTaggedNextHop: frames to a next hop in a VLAN get its tag, whichever interface they came by.
func TestTaggedNextHop(t *testing.T) {
	f := edgeFixture(t)
	for _, ifindex := range []int{ingress, 7} {
		hops := hopsTo(f.model.state)
		for a, h := range hops {
			h.Ifindex, h.Tag = ifindex, 0x8100_0123
			hops[a] = h
		}
		f.setHops(hops)
		for _, c := range []packetCase{
			{"4 in 4", tcp4(80).Frame(), "forwarded"}, {"6 in 6", tcp6(80).Frame(), "forwarded"},
			{"GUE", tcp4(90).Frame(), "forwarded"}, {"tagged", tagged(tcp4(80).Frame(), 0x8100_0007), "forwarded"},
		} {
			f.check(c.frame)
		}
		for a, h := range f.mux.tables.hops.wanted {
			word, err := f.mux.tables.hops.word(h)
			must(t, err)
			if got := f.mux.tables.hops.hop(word); got != h {
				t.Errorf("next hop of %v: %v, expected %v", a, got, h)
			}
		}
	}
}

// TestJumbo: frames whose tail is in fragments of memory are walked like others.
func TestJumbo(t *testing.T) {
	f := newMuxFixture(t)
	s := MuxState{RingKeys: testKeys, TunnelSources: sources, Endpoints: []MuxEndpoint{
		endpointOf(muxVIP4, lb.UDP, 53, "10.20.1.11"), endpointOf(muxVIP6, lb.UDP, 53, "2001:db8:20:1::11"),
		endpointOf(muxVIP4, lb.UDP, 54, "10.20.1.12"),
	}}
	for i := range s.Endpoints {
		s.Endpoints[i].Members[0].MTU = 9000
	}
	s.Endpoints[2].Encap = EncapGUE
	f.apply(s)
	f.setHops(hopsTo(s))
	padded, ping := big(udp4(53), 8000), tcp4(0)
	padded.Padding = 50
	ping.Payload = wire.Echo{Data: bytes.Repeat([]byte{1, 2, 3}, 2990)}
	ping6 := tcp6(0)
	ping6.Payload = ping.Payload
	for _, c := range []packetCase{
		{"fits", big(udp4(53), 8980).Frame(), "forwarded"},
		{"too big", big(udp4(53), 8981).Frame(), "ptb_sent"},
		{"IPv6 fits", big(udp6(53), 8960).Frame(), "forwarded"},
		{"IPv6 too big", big(udp6(53), 8961).Frame(), "ptb_sent"},
		{"GUE fits", big(udp4(54), 8956).Frame(), "forwarded"},
		{"GUE too big", big(udp4(54), 8957).Frame(), "ptb_sent"},
		{"padded", padded.Frame(), "forwarded"},
		{"short packet, long padding", append(udp4(53).Frame(), make([]byte, 6000)...), "forwarded"},
		{"length beyond frame", with(big(udp4(53), 8000).Frame(), func(b []byte) { b[17]++ }), "ip4_bad_length"},
		{"IPv6 length beyond frame", with(big(udp6(53), 8000).Frame(), func(b []byte) { b[19]++ }), "ip6_bad_length"},
		{"ping", ping.Frame(), "echo_replied"},
		{"ping6", ping6.Frame(), "echo_replied"},
		{"ping, wrong sum", with(ping.Frame(), func(b []byte) { b[8000]++ }), "bad_checksum"},
		{"tagged", tagged(big(udp4(53), 8980).Frame(), 0x8100_0001), "forwarded"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f.t = t
			if got := f.check(c.frame); got.reason != c.reason {
				t.Errorf("the model says %s, expected %s", got.reason, c.reason)
			}
		})
	}
	for _, size := range []int{3000, 4000, 8972} {
		p := tcp4(0)
		p.Payload = wire.Echo{ID: 3, Data: bytes.Repeat([]byte{7, 1, 9}, size)[:size]}
		if got := f.check(p.Frame()); got.reason != "echo_replied" {
			t.Errorf("ping of %d bytes: the model says %s", size, got.reason)
		}
		p.Src, p.Dst = muxClient6, muxVIP6
		if got := f.check(p.Frame()); got.reason != "echo_replied" {
			t.Errorf("ping6 of %d bytes: the model says %s", size, got.reason)
		}
	}
}

// randomEdgeFrame is a fragment, an ICMP error, a packet of any size, to an endpoint of edgeState; tagged or not, whole or
// not.
func randomEdgeFrame(r *rand.Rand) []byte {
	port := []uint16{80, 53, 90, 91, 5000, 5001, 82, 7}[r.IntN(8)]
	var p wire.Packet
	switch r.IntN(6) {
	case 0:
		p = piece4(uint16(r.IntN(40)), r.IntN(3)*512, r.IntN(2) == 0, port)
	case 1:
		p = piece6(r.Uint32N(40), r.IntN(3)*512, r.IntN(2) == 0, port)
	case 2:
		p = errorAbout(answerTo([]func(uint16) wire.Packet{tcp4, tcp6, udp4, udp6}[r.IntN(4)](port)), byte(r.IntN(13)), byte(r.IntN(5)), r.IntN(90))
	case 3:
		p = big(udp4(port), 28+r.IntN(2000))
	case 4:
		p = big(udp6(port), 48+r.IntN(2000))
	case 5:
		p = tcp4(0)
		if r.IntN(2) == 0 {
			p = tcp6(0)
		}
		p.Payload = wire.Echo{ID: 1, Data: make([]byte, r.IntN(300))}
	}
	p.TTL, p.TOS, p.Padding = uint8(r.IntN(8)*9), uint8(r.Uint32()), max(0, r.IntN(60)-50)
	frame := p.Frame()
	if r.IntN(3) == 0 {
		for range 1 + r.IntN(2) {
			frame[r.IntN(min(len(frame), 130))] = byte(r.Uint32())
		}
		if r.IntN(4) != 0 {
			frame = with(frame, func([]byte) {})
		}
	}
	for r.IntN(4) == 0 {
		frame = tagged(frame, []uint32{0x8100_0005, 0x88a8_0fff}[r.IntN(2)])
	}
	if r.IntN(20) == 0 {
		frame = frame[:max(14, r.IntN(len(frame)))]
	}
	return frame
}

// TestRandomEdgePackets compares program and model over what is not the usual packet.
func TestRandomEdgePackets(t *testing.T) {
	f, r := edgeFixture(t), seeded(t)
	expected := f.reasonsNow()
	for range 60_000 {
		frame := randomEdgeFrame(r)
		f.model.noted = nil
		want := f.model.walk(frame)
		verdict, out := f.run(frame)
		if verdict != want.verdict || !bytes.Equal(out, want.frame) {
			t.Fatalf("frame %x:\ngot  verdict %d, %x\nwant verdict %d, %x (%s)", frame, verdict, out, want.verdict, want.frame, want.reason)
		}
		for _, counted := range append(f.model.noted, want.reason) {
			expected[counted]++
		}
		if r.IntN(6) == 0 {
			f.setJiffies(f.model.policy.now + uint64(r.IntN(3)))
		}
		if r.IntN(2000) == 0 {
			f.setJiffies(f.model.policy.now + 5*f.model.policy.hz)
		}
	}
	for name, n := range f.reasonsNow() {
		if n != expected[name] {
			t.Errorf("reason %s: counted %d, the model %d", name, n, expected[name])
		}
	}
}
