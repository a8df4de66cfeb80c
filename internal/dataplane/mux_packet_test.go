package dataplane

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/wire"
)

// basicState has endpoints of all four encapsulations, one without ring, and one whose members are all down.
func basicState() MuxState {
	s := MuxState{RingKeys: testKeys, TunnelSources: sources, Endpoints: []MuxEndpoint{
		endpointOf(muxVIP4, lb.TCP, 80, "10.20.1.11", "10.20.2.11", "10.20.3.11"),
		endpointOf(muxVIP6, lb.TCP, 80, "2001:db8:20:1::11", "2001:db8:20:2::11"),
		endpointOf(muxVIP4, lb.UDP, 53, "2001:db8:20:1::11", "2001:db8:20:2::11"),
		endpointOf(muxVIP6, lb.UDP, 53, "10.20.1.11", "10.20.2.11"),
		endpointOf(muxVIP4, lb.TCP, 81),
		endpointOf(muxVIP4, lb.TCP, 82, "10.20.1.11", "10.20.2.11"),
		endpointOf(muxVIP4, lb.TCP, 83, "10.20.9.9"),
	}}
	s.Endpoints[1].KeySlot = 1
	s.Endpoints[5].Members[0].Alive, s.Endpoints[5].Members[1].Alive = false, false
	return s
}

func basicFixture(t *testing.T) *muxFixture {
	f := newMuxFixture(t)
	s := basicState()
	f.apply(s)
	hops := hopsTo(s)
	delete(hops, s.Endpoints[6].Members[0].Outer)
	f.setHops(hops)
	return f
}

func tcp4(port uint16) wire.Packet {
	return wire.Packet{DstMAC: muxSelf, SrcMAC: muxRouter, Src: muxClient4, Dst: muxVIP4, TOS: 0x2e, ID: 77, Flags: 0x4000,
		Payload: wire.TCP{SrcPort: 40001, DstPort: port, Flags: wire.SYN, Data: []byte("hello")}}
}

func tcp6(port uint16) wire.Packet {
	p := tcp4(port)
	p.Src, p.Dst, p.FlowLabel = muxClient6, muxVIP6, 0x12345
	return p
}

func udp4(port uint16) wire.Packet {
	p := tcp4(port)
	p.Payload = wire.UDP{SrcPort: 40001, DstPort: port, Data: []byte("query")}
	return p
}

func udp6(port uint16) wire.Packet {
	p := tcp6(port)
	p.Payload = wire.UDP{SrcPort: 40001, DstPort: port, Data: []byte("query")}
	return p
}

// with changes bytes of a frame and mends the IPv4 header checksum.
func with(frame []byte, change func(b []byte)) []byte {
	change(frame)
	if binary.BigEndian.Uint16(frame[12:]) == wire.EtherTypeIPv4 {
		frame[24], frame[25] = 0, 0
		binary.BigEndian.PutUint16(frame[24:], wire.Checksum(frame[14:34]))
	}
	return frame
}

// packetCase is one frame and how it must end.
type packetCase struct {
	name   string
	frame  []byte
	reason string
}

func forwardCases() []packetCase {
	padded, expired := tcp4(80), tcp4(80)
	padded.Padding = 6
	expired.TTL = 1
	expired6 := tcp6(80)
	expired6.TTL = 1
	options := tcp4(80)
	options.Payload = wire.TCP{SrcPort: 1, DstPort: 80, Flags: wire.ACK, Options: []byte{1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2}}
	syn := tcp4(80)
	syn.Payload = wire.TCP{SrcPort: 1, DstPort: 80, Flags: wire.SYN, Options: []byte{2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7}}
	extended := tcp6(80)
	extended.Extensions = []wire.Extension{wire.Options(wire.ProtoHopByHop, 1), wire.Options(wire.ProtoDstOpts, 3),
		{Type: wire.ProtoRouting, Rest: make([]byte, 7)}, wire.Options(wire.ProtoDstOpts, 2)}
	fits, big := tcp4(80), tcp4(80)
	fits.Payload = wire.TCP{SrcPort: 1, DstPort: 80, Data: make([]byte, 1500-60)}
	big.Payload = wire.TCP{SrcPort: 1, DstPort: 80, Data: make([]byte, 1500-59)}
	itself4, itself6 := tcp4(80), tcp6(80)
	itself4.Src, itself6.Src = itself4.Dst, itself6.Dst
	mapped := tcp6(80)
	mapped.Dst = netip.AddrFrom16(muxVIP4.As16())
	return []packetCase{
		{"4in4", tcp4(80).Frame(), "forwarded"},
		{"6in6", tcp6(80).Frame(), "forwarded"},
		{"4in6", udp4(53).Frame(), "forwarded"},
		{"6in4", udp6(53).Frame(), "forwarded"},
		{"padded", padded.Frame(), "forwarded"},
		{"timestamps", options.Frame(), "forwarded"},
		{"SYN options", syn.Frame(), "forwarded"},
		{"extension headers", extended.Frame(), "forwarded"},
		{"fits the MTU", fits.Frame(), "forwarded"},
		{"one byte too big", big.Frame(), "ptb_sent"},
		{"TTL 1", expired.Frame(), "ttl_expired"},
		{"hop limit 1", expired6.Frame(), "ttl_expired"},
		{"no ring", tcp4(81).Frame(), "no_backend"},
		{"all down", tcp4(82).Frame(), "no_backend"},
		{"from the VIP itself", itself4.Frame(), "bad_source"},
		{"from the IPv6 VIP itself", itself6.Frame(), "bad_source"},
		{"IPv6 to the mapped address of an IPv4 VIP", mapped.Frame(), "pass_not_ours"},
		{"the same in a VLAN", tagged(mapped.Frame(), 0x8100_0064), "pass_not_ours"},
		{"to another address", with(tcp4(80).Frame(), func(b []byte) { b[5]++ }), "pass_other_mac"},
		{"to another address, first octet", with(tcp6(80).Frame(), func(b []byte) { b[0] ^= 4 }), "pass_other_mac"},
		{"broadcast", with(tcp4(80).Frame(), func(b []byte) { copy(b, "\xff\xff\xff\xff\xff\xff") }), "pass_other_mac"},
		{"unresolved", tcp4(83).Frame(), "no_nexthop"},
		{"no endpoint", tcp4(8080).Frame(), "no_endpoint"},
		{"UDP to a TCP port", udp4(80).Frame(), "no_endpoint"},
		{"TTL 1, no endpoint", with(tcp4(8080).Frame(), func(b []byte) { b[22] = 1 }), "no_endpoint"},
	}
}

func echoCases() []packetCase {
	ping4, ping6 := tcp4(0), tcp6(0)
	ping4.Payload = wire.Echo{ID: 7, Seq: 9, Data: []byte("odd data.")}
	ping6.Payload = wire.Echo{ID: 7, Seq: 9, Data: []byte("odd data.")}
	dying, largest, larger, extended := ping4, ping4, ping4, ping6
	dying.TTL = 1
	largest.Payload = wire.Echo{Data: make([]byte, 1472)}
	larger.Payload = wire.Echo{Data: make([]byte, 8973)}
	extended.Extensions = []wire.Extension{wire.Options(wire.ProtoDstOpts, 1)}
	answer, loop := ping4, ping4
	answer.Payload = wire.Echo{Reply: true}
	loop.Src = loop.Src.Next()
	cross := ping4
	cross.Payload = wire.Raw{Number: wire.ProtoICMPv6, Data: make([]byte, 8)}
	return []packetCase{
		{"ping", ping4.Frame(), "echo_replied"},
		{"ping6", ping6.Frame(), "echo_replied"},
		{"ping with TTL 1", dying.Frame(), "echo_replied"},
		{"largest ping", largest.Frame(), "echo_replied"},
		{"ping too large", larger.Frame(), "icmp_ignored"},
		{"ping6 with extension header", extended.Frame(), "icmp_ignored"},
		{"echo reply", answer.Frame(), "icmp_ignored"},
		{"ping from multicast", with(ping4.Frame(), func(b []byte) { b[26] = 224 }), "icmp_ignored"},
		{"ping from loopback", with(ping4.Frame(), func(b []byte) { b[26] = 127 }), "icmp_ignored"},
		{"ping6 from multicast", with(ping6.Frame(), func(b []byte) { b[22] = 0xff }), "icmp_ignored"},
		{"ping, wrong sum", with(ping4.Frame(), func(b []byte) { b[len(b)-1]++ }), "bad_checksum"},
		{"ping6, wrong sum", with(ping6.Frame(), func(b []byte) { b[len(b)-1]++ }), "bad_checksum"},
		{"ping, code 1", with(ping4.Frame(), func(b []byte) { b[35] = 1 }), "icmp_ignored"},
		{"ICMPv6 over IPv4", cross.Frame(), "protocol"},
		{"short ICMP", with(ping4.Frame(), func(b []byte) { b[17] = 27 }), "truncated"},
	}
}

func malformedCases() []packetCase {
	routed, many, late, gre := tcp6(80), tcp6(80), tcp6(80), tcp4(80)
	routed.Extensions = []wire.Extension{{Type: wire.ProtoRouting, Rest: []byte{0, 0, 1, 0, 0, 0, 0}}}
	many.Extensions = slices.Repeat([]wire.Extension{wire.Options(wire.ProtoDstOpts, 1)}, 7)
	late.Extensions = []wire.Extension{wire.Options(wire.ProtoDstOpts, 1), wire.Options(wire.ProtoHopByHop, 1)}
	gre.Payload = wire.Raw{Number: 47, Data: make([]byte, 20)}
	none := tcp6(80)
	none.Payload = wire.Raw{Number: wire.ProtoNoNext, Data: make([]byte, 8)}
	fragment6 := tcp6(80)
	fragment6.Extensions = []wire.Extension{{Type: wire.ProtoFragment, Rest: make([]byte, 7)}, {Type: wire.ProtoFragment, Rest: make([]byte, 7)}}
	elsewhere := tcp4(80)
	elsewhere.Dst = muxClient4
	vlan := tcp4(80).Frame()
	binary.BigEndian.PutUint16(vlan[12:], wire.EtherTypeVLAN)
	arp := tcp4(80).Frame()
	binary.BigEndian.PutUint16(arp[12:], 0x0806)
	lying := func(options ...byte) []byte {
		p := tcp4(80)
		p.Payload = wire.TCP{SrcPort: 1, DstPort: 80, Options: options}
		return p.Frame()
	}
	return []packetCase{
		{"frame of 30 bytes", tcp4(80).Frame()[:30], "truncated"},
		{"IPv6 frame of 50 bytes", tcp6(80).Frame()[:50], "truncated"},
		{"a VLAN tag of which something else follows", vlan, "pass_not_ip"},
		{"ARP", arp, "pass_not_ip"},
		{"another destination", elsewhere.Frame(), "pass_not_ours"},
		{"malformed, another destination", with(elsewhere.Frame(), func(b []byte) { b[14] = 0x41 }), "pass_not_ours"},
		{"version 6 in an IPv4 frame", with(tcp4(80).Frame(), func(b []byte) { b[14] = 0x65 }), "bad_version"},
		{"version 4 in an IPv6 frame", with(tcp6(80).Frame(), func(b []byte) { b[14] = 0x45 }), "bad_version"},
		{"IHL 4", with(tcp4(80).Frame(), func(b []byte) { b[14] = 0x44 }), "ip4_bad_ihl"},
		{"IHL beyond the frame", with(tcp4(80).Frame()[:60], func(b []byte) { b[14] = 0x4f }), "ip4_bad_ihl"},
		{"IHL 6", with(tcp4(80).Frame(), func(b []byte) { b[14] = 0x46 }), "ip4_options"},
		{"IHL 6, short", with(tcp4(80).Frame(), func(b []byte) { b[14] = 0x46; b[17] = 23 }), "ip4_bad_length"},
		{"length below header", with(tcp4(80).Frame(), func(b []byte) { b[17] = 19 }), "ip4_bad_length"},
		{"length beyond frame", with(tcp4(80).Frame(), func(b []byte) { b[17]++ }), "ip4_bad_length"},
		{"header checksum", func() []byte { b := tcp4(80).Frame(); b[24]++; return b }(), "bad_checksum"},
		{"last fragment, the first one not seen", with(tcp4(80).Frame(), func(b []byte) { b[21] = 1 }), "fragment"},
		{"IPv6 fragment in a fragment", fragment6.Frame(), "ip6_extensions"},
		{"jumbogram", with(tcp6(80).Frame(), func(b []byte) { b[18], b[19] = 0, 0 }), "ip6_bad_length"},
		{"IPv6 length beyond frame", with(tcp6(80).Frame(), func(b []byte) { b[19]++ }), "ip6_bad_length"},
		{"source route", routed.Frame(), "ip6_extensions"},
		{"seven extension headers", many.Frame(), "ip6_extensions"},
		{"hop-by-hop not first", late.Frame(), "ip6_extensions"},
		{"extension beyond packet", with(late.Frame(), func(b []byte) { b[55] = 200 }), "ip6_extensions"},
		{"no next header", none.Frame(), "protocol"},
		{"GRE", gre.Frame(), "protocol"},
		{"data offset 4", with(tcp4(80).Frame(), func(b []byte) { b[46] = 0x40 }), "tcp_bad_offset"},
		{"data offset beyond segment", with(tcp4(80).Frame(), func(b []byte) { b[46] = 0x70 }), "tcp_bad_offset"},
		{"short TCP", with(tcp4(80).Frame(), func(b []byte) { b[17] = 39 }), "truncated"},
		{"short UDP", with(udp4(53).Frame(), func(b []byte) { b[17] = 27 }), "truncated"},
		{"option of length 0", lying(2, 0, 0, 0), "tcp_bad_option"},
		{"option of length 1", lying(2, 1, 0, 0), "tcp_bad_option"},
		{"option beyond header", lying(1, 1, 8, 10), "tcp_bad_option"},
		{"option without length", lying(1, 1, 1, 8), "tcp_bad_option"},
		{"UDP length 7", with(udp4(53).Frame(), func(b []byte) { b[39] = 7 }), "udp_bad_length"},
		{"UDP length beyond packet", with(udp6(53).Frame(), func(b []byte) { b[59] = 200 }), "udp_bad_length"},
	}
}

func TestPackets(t *testing.T) {
	f := basicFixture(t)
	for _, c := range slices.Concat(forwardCases(), echoCases(), malformedCases()) {
		t.Run(c.name, func(t *testing.T) {
			f.t = t
			if got := f.check(c.frame); got.reason != c.reason {
				t.Errorf("the model says %s, expected %s", got.reason, c.reason)
			}
		})
	}
}
