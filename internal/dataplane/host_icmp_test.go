package dataplane

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/shuntlb/shunt/internal/lb"
)

// Routers on the way, which send errors.
const router4, router6 = "192.0.2.1", "2001:db8:ff::1"

// icmp is an ICMP message with a right checksum: type, code, four bytes, and what it quotes.
func icmp(t *testing.T, src, dst string, kind, code byte, word uint32, quoted []byte) []byte {
	t.Helper()
	b := append(binary.BigEndian.AppendUint32([]byte{kind, code, 0, 0}, word), quoted...)
	even := b
	if len(b)%2 == 1 {
		even = append(slices.Clone(b), 0)
	}
	protocol := layers.IPProtocolICMPv4
	if !is4(src) {
		protocol = layers.IPProtocolICMPv6
		even = append(pseudo(src, dst, byte(protocol), len(b)), even...)
	}
	binary.BigEndian.PutUint16(b[2:], ^headerSum(even))
	return plain(t, src, dst, protocol, string(b))
}

// quotes are lengths of quotes behind the quoted IP header: ports and little more, TCP's checksum and little more, all.
var quotes = []int{8, 18, 20, 1000}

func quote(ip []byte, n int) []byte {
	header := 20
	if ip[0]>>4 == 6 {
		header = 40
	}
	return ip[:min(len(ip), header+n)]
}

// errorKind is an ICMP error.
type errorKind struct {
	kind, code byte
	word       uint32
}

var errors4 = []errorKind{{3, 4, 1400}, {3, 1, 0}, {11, 0, 0}, {12, 0, 20 << 24}}
var errors6 = []errorKind{{2, 0, 1300}, {1, 4, 0}, {3, 0, 0}, {4, 1, 40}}

// TestHostICMPIn: an error about an answer reaches its server and quotes the answer as it left the server: both
// families, TCP and UDP, quotes of all lengths, by every kind of tunnel.
func TestHostICMPIn(t *testing.T) {
	e := newHostEnv(t).quiet()
	e.apply(bind(lb.TCP, vip4, dip4, dip4, true), gue(3, bind(lb.UDP, vip4, host4, dip4, true)),
		bind(lb.TCP, vip6, dip6, dip6, true), bind(lb.UDP, vip6, dip6, dip6, true))
	for _, c := range []struct {
		protocol                 lb.Protocol
		client, vip, dip, router string
		vport, dport             uint16
		wrap                     func([]byte) []byte
		errors                   []errorKind
	}{
		{lb.TCP, client4, vip4, dip4, router4, 80, 8080, func(ip []byte) []byte { return tunnel(t, source4, dip4, ip) }, errors4},
		{lb.UDP, client4, vip4, dip4, router4, 53, 5353, func(ip []byte) []byte { return gueTunnel(t, source4, host4, 3, ip) }, errors4},
		{lb.TCP, client6, vip6, dip6, router6, 80, 8080, func(ip []byte) []byte { return tunnel(t, source6, dip6, ip) }, errors6},
		{lb.UDP, client6, vip6, dip6, router6, 53, 5353, func(ip []byte) []byte { return tunnel(t, source6, dip6, ip) }, errors6},
	} {
		open := packet{protocol: c.protocol, src: c.client, dst: c.vip, sport: 40001, dport: c.vport, ack: true}
		e.run(e.host.objects.HostIn, c.wrap(open.bytes(t)))
		sent := packet{protocol: c.protocol, src: c.dip, dst: c.client, sport: c.dport, dport: 40001, ack: true, payload: "an answer that is too big"}
		left := sent
		left.src, left.sport = c.vip, c.vport
		if c.protocol == lb.TCP {
			e.expect("before an answer", c.wrap(icmp(t, c.router, c.vip, c.errors[0].kind, 0, 0, left.bytes(t))), verdictDrop, nil, "in_icmp_window")
		}
		e.run(e.host.objects.HostOut, frame(sent.bytes(t)))
		for _, k := range c.errors {
			for _, n := range quotes {
				in := icmp(t, c.router, c.vip, k.kind, k.code, k.word, quote(left.bytes(t), n))
				out := icmp(t, c.router, c.dip, k.kind, k.code, k.word, quote(sent.bytes(t), n))
				e.expect(fmt.Sprintf("%s %s type %d quote %d", c.protocol, c.vip, k.kind, n), c.wrap(in), verdictRedirect, frame(out), "in_icmp_delivered")
			}
		}
		unknown := left
		unknown.dport = 40002
		e.expect("a flow that is not known", c.wrap(icmp(t, c.router, c.vip, c.errors[0].kind, 0, 0, unknown.bytes(t))), verdictDrop, nil, "in_icmp_unknown")
		unknown.sport = 81
		e.expect("no such endpoint", c.wrap(icmp(t, c.router, c.vip, c.errors[0].kind, 0, 0, unknown.bytes(t))), verdictDrop, nil, "in_no_binding")
		e.expect("quotes another's packet", c.wrap(icmp(t, c.router, c.vip, c.errors[0].kind, 0, 0, open.bytes(t))), verdictDrop, nil, "in_malformed")
		e.expect("quote cut", c.wrap(icmp(t, c.router, c.vip, c.errors[0].kind, 0, 0, quote(left.bytes(t), 7))), verdictDrop, nil, "in_malformed")
		e.expect("no quote", c.wrap(icmp(t, c.router, c.vip, c.errors[0].kind, 0, 0, nil)), verdictDrop, nil, "in_malformed")
		e.expect("no error", c.wrap(icmp(t, c.router, c.vip, 5, 0, 0, left.bytes(t))), verdictDrop, nil, "in_no_binding")
	}
}

// TestHostICMPInLies: a quoted header lies, a UDP answer had no checksum, a client port was substituted, the server owns
// the VIP.
func TestHostICMPInLies(t *testing.T) {
	e := newHostEnv(t).quiet()
	second := "203.0.113.77"
	e.apply(bind(lb.UDP, vip4, dip4, dip4, true), bind(lb.UDP, second, dip4, dip4, true), bind(lb.UDP, owned4, host4, host4, false))
	ask := packet{protocol: lb.UDP, src: client4, dst: vip4, sport: 40001, dport: 53, payload: "q"}
	e.run(e.host.objects.HostIn, tunnel(t, source4, dip4, ask.bytes(t)))
	sent := packet{protocol: lb.UDP, src: dip4, dst: client4, sport: 5353, dport: 40001, payload: "answer", noSum: true}
	left := sent
	left.src, left.sport = vip4, 53
	wrap := func(quoted []byte) []byte {
		return tunnel(t, source4, dip4, icmp(t, router4, vip4, 3, 4, 1400, quoted))
	}
	e.expect("without a checksum", wrap(left.bytes(t)), verdictRedirect, frame(icmp(t, router4, dip4, 3, 4, 1400, sent.bytes(t))), "in_icmp_delivered")
	for name, at := range map[string]struct {
		at int
		v  byte
	}{"version": {0, 0x65}, "IHL below": {0, 0x44}, "IHL beyond": {0, 0x4f}, "a later fragment": {7, 1}} {
		q := left.bytes(t)
		q[at.at] = at.v
		e.expect(name, wrap(q), verdictDrop, nil, "in_malformed")
	}

	ask.dst = second
	_, out := e.run(e.host.objects.HostIn, tunnel(t, source4, dip4, ask.bytes(t)))
	port := binary.BigEndian.Uint16(out[34:])
	if port == 40001 {
		t.Fatal("the client port was not substituted")
	}
	sent.noSum, left.noSum = false, false
	left.src, sent.dport = second, port
	e.expect("substitute", tunnel(t, source4, dip4, icmp(t, router4, second, 3, 4, 1400, left.bytes(t))), verdictRedirect,
		frame(icmp(t, router4, dip4, 3, 4, 1400, sent.bytes(t))), "in_icmp_delivered")

	left.src = owned4
	owned := icmp(t, router4, owned4, 3, 4, 1400, left.bytes(t))
	e.expect("owned", tunnel(t, source4, host4, owned), verdictPass, frame(owned), "in_untouched")
}

// TestHostICMPOut: what a server, or the host itself, has to say of a client's packet comes from the VIP and quotes the
// packet as the client sent it; other errors are left alone.
func TestHostICMPOut(t *testing.T) {
	e := newHostEnv(t).quiet()
	e.apply(bind(lb.TCP, vip4, dip4, dip4, true), bind(lb.UDP, vip4, dip4, dip4, true),
		bind(lb.TCP, vip6, dip6, dip6, true), bind(lb.UDP, vip6, dip6, dip6, true))
	for _, c := range []struct {
		protocol                       lb.Protocol
		client, vip, dip, host, source string
		vport, dport                   uint16
		errors                         []errorKind
	}{
		{lb.TCP, client4, vip4, dip4, host4, source4, 80, 8080, errors4}, {lb.UDP, client4, vip4, dip4, host4, source4, 53, 5353, errors4},
		{lb.TCP, client6, vip6, dip6, host6, source6, 80, 8080, errors6}, {lb.UDP, client6, vip6, dip6, host6, source6, 53, 5353, errors6},
	} {
		sent := packet{protocol: c.protocol, src: c.client, dst: c.vip, sport: 40001, dport: c.vport, ack: true, payload: "what is this"}
		e.run(e.host.objects.HostIn, tunnel(t, c.source, c.dip, sent.bytes(t)))
		got := sent
		got.dst, got.dport = c.dip, c.dport
		for _, k := range c.errors {
			for _, n := range quotes {
				for _, from := range []string{c.dip, c.host} {
					in := icmp(t, from, c.client, k.kind, k.code, k.word, quote(got.bytes(t), n))
					out := icmp(t, c.vip, c.client, k.kind, k.code, k.word, quote(sent.bytes(t), n))
					e.answered(fmt.Sprintf("%s from %s type %d quote %d", c.protocol, from, k.kind, n), frame(in), verdictNext, frame(out), "out_icmp_returned")
				}
			}
		}
		for name, in := range map[string][]byte{
			"to a router":    icmp(t, c.dip, map[bool]string{true: router4, false: router6}[is4(c.dip)], c.errors[0].kind, 0, 0, got.bytes(t)),
			"of another":     icmp(t, c.dip, c.client, c.errors[0].kind, 0, 0, sent.bytes(t)),
			"cut":            icmp(t, c.dip, c.client, c.errors[0].kind, 0, 0, quote(got.bytes(t), 7)),
			"an echo answer": icmp(t, c.dip, c.client, map[bool]byte{true: 0, false: 129}[is4(c.dip)], 0, 0, got.bytes(t)),
		} {
			e.answered(name, frame(in), verdictNext, frame(in), "pass_not_ours")
		}
	}
}
