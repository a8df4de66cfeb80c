package dataplane

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/snat"
)

// holder4 sends from vip4; far4 is somebody outside.
var holder4 = snat.Holder{VIP: snat.VIP{Addr: netip.MustParseAddr(vip4)}, DIP: netip.MustParseAddr(dip4)}

const (
	far4      = "198.51.100.80"
	otherFar4 = "198.51.100.81"
	// snatMSS is 1500 - 20 (outer) - 24 (GUE) - 40.
	snatMSS = 1416
)

// newSNATEnv is a quiet environment where dip4 sends from vip4 by these ranges, and the inside is 10.0.0.0/8 and 203.0.113.0/24.
func newSNATEnv(t *testing.T, usable ...snat.Range) *hostEnv {
	e := newClockEnv(t)
	e.leased(usable...)
	return e
}

// roomySNATEnv is newSNATEnv with a flow table where nothing loses its place.
func roomySNATEnv(t *testing.T, usable ...snat.Range) *hostEnv {
	e := newHostEnv(t)
	e.testClock, e.flows = true, 1<<18
	e.open()
	e.quiet()
	e.setClock(time.Hour)
	e.leased(usable...)
	return e
}

// bindingsOfSNAT are a TCP and a UDP endpoint of vip4 at dip4.
func bindingsOfSNAT() []plan.Binding {
	return []plan.Binding{bind(lb.TCP, vip4, dip4, dip4, true), bind(lb.UDP, vip4, dip4, dip4, true), gue(3, bind(lb.TCP, "203.0.113.99", dip4, dip4, true)),
		bind(lb.TCP, "203.0.113.98", host4, dip4, true), bind(lb.TCP, "203.0.113.97", host6, dip4, true)}
}

// leased gives dip4 its ranges.
func (e *hostEnv) leased(usable ...snat.Range) {
	e.t.Helper()
	must(e.t, e.host.Apply(HostState{
		TunnelSources: tunnelSources, MTU: 1500, Inside: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("203.0.113.0/24")},
		Bindings: bindingsOfSNAT(),
	}))
	must(e.t, e.host.SetHolders([]snat.Holder{holder4}))
	must(e.t, e.host.SetRanges(holder4, usable, nil))
}

// leaves gives a packet of a server to host_out, which must send it from vip4, and returns the port it got. Everything else of the packet
// must be as it was, but for the MSS.
func (e *hostEnv) leaves(name string, p packet, mss uint16, reasons ...string) uint16 {
	e.t.Helper()
	before := e.reasons(nil)
	v, got := e.run(e.host.objects.HostOut, frame(p.bytes(e.t)))
	port := binary.BigEndian.Uint16(got[34:])
	want := p
	want.src, want.sport = vip4, port
	if mss != 0 {
		want.options = mssOption(1, mss)
	}
	if r := e.reasons(before); v != verdictNext || !maps.Equal(r, one(append(reasons, "out_snat")...)) {
		e.t.Errorf("%s: verdict %d, reasons %v", name, v, r)
	}
	if !bytes.Equal(got, frame(want.bytes(e.t))) {
		e.t.Errorf("%s: frame\n% x, want\n% x", name, got, frame(want.bytes(e.t)))
	}
	return port
}

// returns gives an answer to a port of vip4 to host_in, which must deliver it to port dport of dip4.
func (e *hostEnv) returns(name string, p packet, dport uint16, wrap func([]byte) []byte, reasons ...string) {
	e.t.Helper()
	want := p
	want.dst, want.dport = dip4, dport
	e.expect(name, wrap(p.bytes(e.t)), verdictRedirect, frame(want.bytes(e.t)), append(reasons, "in_snat")...)
}

func (e *hostEnv) byIPIP(ip []byte) []byte { return tunnel(e.t, source4, dip4, ip) }
func (e *hostEnv) byGUE(ip []byte) []byte  { return gueTunnel(e.t, source4, dip4, plan.NoMember, ip) }

// TestHostSNAT: connections of a server with SNAT leave with the VIP and a port of its ranges, keep it, and what comes back by any tunnel of any
// mux reaches the server: TCP, UDP with and without a checksum.
func TestHostSNAT(t *testing.T) {
	e := newSNATEnv(t, 200, 300)
	syn := packet{protocol: lb.TCP, src: dip4, dst: far4, sport: 40001, dport: 443, syn: true, options: mssOption(1, 1460)}
	port := e.leaves("SYN", syn, snatMSS, "mss_clamped")
	if r := snat.RangeOf(port); r != 200 && r != 300 {
		t.Fatalf("port %d is of no range of the server", port)
	}
	if again := e.leaves("SYN again", syn, snatMSS, "mss_clamped"); again != port {
		t.Errorf("a SYN that was sent again has port %d, the first had %d", again, port)
	}
	answer := packet{protocol: lb.TCP, src: far4, dst: vip4, sport: 443, dport: port, syn: true, ack: true, acked: 0x11223345}
	e.returns("SYN-ACK", answer, 40001, e.byIPIP)
	data := packet{protocol: lb.TCP, src: dip4, dst: far4, sport: 40001, dport: 443, ack: true, acked: 0x11223345, payload: "odd"}
	if again := e.leaves("data", data, 0); again != port {
		t.Errorf("data has port %d, the SYN had %d", again, port)
	}
	answer.syn, answer.payload = false, "an answer"
	e.returns("data back by GUE", answer, 40001, e.byGUE)
	// A mux may know the host, not the DIP, as the other end of its tunnel.
	e.returns("data back by another address", answer, 40001, func(ip []byte) []byte { return tunnel(t, source4, host4, ip) })
	e.returns("data back in IPv6", answer, 40001, func(ip []byte) []byte { return tunnel(t, source6, host6, ip) })

	for _, noSum := range []bool{false, true} {
		ask := packet{protocol: lb.UDP, src: dip4, dst: far4, sport: 40002, dport: 53, payload: "question", noSum: noSum}
		port := e.leaves("UDP", ask, 0)
		e.returns("UDP back", packet{protocol: lb.UDP, src: far4, dst: vip4, sport: 53, dport: port, payload: "answer", noSum: noSum}, 40002, e.byIPIP)
	}

	// Only the far end itself is let in.
	for name, p := range map[string]packet{
		"another address": {protocol: lb.TCP, src: otherFar4, dst: vip4, sport: 443, dport: port, ack: true},
		"another port":    {protocol: lb.TCP, src: far4, dst: vip4, sport: 444, dport: port, ack: true},
		"another of ours": {protocol: lb.TCP, src: far4, dst: vip4, sport: 443, dport: port + 1, ack: true},
		"by UDP":          {protocol: lb.UDP, src: far4, dst: vip4, sport: 443, dport: port},
	} {
		e.expect(name, e.byIPIP(p.bytes(t)), verdictDrop, nil, "in_snat_unknown")
	}
	e.expect("a VIP without SNAT", e.byIPIP(packet{protocol: lb.TCP, src: far4, dst: "203.0.113.99", sport: 443, dport: port, ack: true}.bytes(t)),
		verdictDrop, nil, "in_no_binding")
	// Endpoints go before.
	e.expect("an endpoint", e.byIPIP(packet{protocol: lb.TCP, src: far4, dst: vip4, sport: 443, dport: 80, ack: true}.bytes(t)), verdictRedirect, nil, "in_delivered")
}

// TestHostSNATLeftAlone: what is no connection of SNAT leaves as it is.
func TestHostSNATLeftAlone(t *testing.T) {
	e := newSNATEnv(t, 200)
	tcp := packet{protocol: lb.TCP, src: dip4, dst: far4, sport: 40001, dport: 443}
	with := func(change func(p *packet)) []byte {
		p := tcp
		change(&p)
		return frame(p.bytes(t))
	}
	for name, in := range map[string][]byte{
		"to a server":             with(func(p *packet) { p.dst, p.syn = "10.30.0.1", true }),
		"to a VIP":                with(func(p *packet) { p.dst, p.syn = "203.0.113.7", true }),
		"to a group":              with(func(p *packet) { p.dst, p.syn = "239.0.0.1", true }),
		"of another server":       with(func(p *packet) { p.src, p.syn = narrow4, true }),
		"an answer past the VIP":  with(func(p *packet) { p.syn, p.ack = true, true }),
		"a segment of before":     with(func(p *packet) { p.ack = true }),
		"a RST of before":         with(func(p *packet) { p.rst = true }),
		"of the VIP itself":       with(func(p *packet) { p.src, p.syn = vip4, true }),
		"IPv6":                    frame(packet{protocol: lb.TCP, src: dip6, dst: client6, sport: 1, dport: 2, syn: true}.bytes(t)),
		"GRE":                     frame(plain(t, dip4, far4, layers.IPProtocolGRE, "whatever it is")),
		"an echo reply":           frame(icmp(t, dip4, far4, 0, 0, 0x12340001, []byte("pong"))),
		"another ICMP message":    frame(icmp(t, dip4, far4, 13, 0, 0x12340001, []byte("time"))),
		"an ICMP message cut off": frame(plain(t, dip4, far4, layers.IPProtocolICMPv4, "\x08\x00")),
	} {
		e.answered(name, in, verdictNext, in, "pass_not_ours")
	}
	if n := e.tags(); n != 0 {
		t.Errorf("%d records in the table", n)
	}
	// An answer of a client's flow is one, whatever else the server may send.
	ask := packet{protocol: lb.UDP, src: far4, dst: vip4, sport: 5000, dport: 53, payload: "q"}
	e.run(e.host.objects.HostIn, e.byIPIP(ask.bytes(t)))
	reply := packet{protocol: lb.UDP, src: dip4, dst: far4, sport: 5353, dport: 5000, payload: "a"}
	out := reply
	out.src, out.sport = vip4, 53
	e.answered("an answer", frame(reply.bytes(t)), verdictNext, frame(out.bytes(t)), "out_returned")
}

// TestHostSNATPing: the identifier of an echo takes the place of the port; errors about it find the way back.
func TestHostSNATPing(t *testing.T) {
	e := newSNATEnv(t, 200)
	ask := func(src string, id uint16) []byte { return icmp(t, src, far4, 8, 0, uint32(id)<<16|7, []byte("ping!")) }
	_, got := e.run(e.host.objects.HostOut, frame(ask(dip4, 0xbeef)))
	id := binary.BigEndian.Uint16(got[38:])
	if snat.RangeOf(id) != 200 {
		t.Fatalf("identifier %d is of no range of the server", id)
	}
	e.answered("again", frame(ask(dip4, 0xbeef)), verdictNext, frame(ask(vip4, id)), "out_snat")
	reply := func(dst string, id uint16) []byte { return icmp(t, far4, dst, 0, 0, uint32(id)<<16|7, []byte("ping!")) }
	e.expect("reply", e.byGUE(reply(vip4, id)), verdictRedirect, frame(reply(dip4, 0xbeef)), "in_snat")
	e.expect("nobody's reply", e.byIPIP(reply(vip4, id^1)), verdictDrop, nil, "in_snat_unknown")
	e.expect("a request", e.byIPIP(icmp(t, far4, vip4, 8, 0, uint32(id)<<16, nil)), verdictDrop, nil, "in_no_binding")
	for _, k := range errors4 {
		for _, n := range quotes {
			in := icmp(t, router4, vip4, k.kind, k.code, k.word, quote(ask(vip4, id), n))
			out := icmp(t, router4, dip4, k.kind, k.code, k.word, quote(ask(dip4, 0xbeef), n))
			e.expect(fmt.Sprintf("error %d quotes %d", k.kind, n), e.byIPIP(in), verdictRedirect, frame(out), "in_icmp_delivered")
		}
	}
	// What the server, or who is in front of it, says of the reply leaves with the VIP, also when the server's identifier is 0.
	_, got = e.run(e.host.objects.HostOut, frame(ask(dip4, 0)))
	for from, to := range map[uint16]uint16{0xbeef: id, 0: binary.BigEndian.Uint16(got[38:])} {
		for _, k := range errors4 {
			in, out := icmp(t, dip4, far4, k.kind, k.code, k.word, reply(dip4, from)), icmp(t, vip4, far4, k.kind, k.code, k.word, reply(vip4, to))
			e.answered(fmt.Sprintf("error %d about the reply to %#x", k.kind, from), frame(in), verdictNext, frame(out), "out_icmp_returned")
		}
	}
	e.expect("error about nobody's", e.byIPIP(icmp(t, router4, vip4, 3, 1, 0, ask(vip4, id^8))), verdictDrop, nil, "in_snat_unknown")
}

// TestHostSNATErrors: ICMP errors about packets of a connection reach the server, of TCP only when they quote what may be under way; the
// server's own leave with the VIP.
func TestHostSNATErrors(t *testing.T) {
	e := newSNATEnv(t, 200)
	for _, c := range []packet{
		{protocol: lb.TCP, src: dip4, dst: far4, sport: 40001, dport: 443, syn: true},
		{protocol: lb.UDP, src: dip4, dst: far4, sport: 40002, dport: 53, payload: "a question of some length"},
	} {
		left := c
		left.src, left.sport = vip4, e.leaves("open", c, 0)
		for _, k := range errors4 {
			for _, n := range quotes {
				in := icmp(t, router4, vip4, k.kind, k.code, k.word, quote(left.bytes(t), n))
				out := icmp(t, router4, dip4, k.kind, k.code, k.word, quote(c.bytes(t), n))
				e.expect(fmt.Sprintf("%s error %d quotes %d", c.protocol, k.kind, n), e.byGUE(in), verdictRedirect, frame(out), "in_icmp_delivered")
			}
		}
		other := left
		other.sport++
		e.expect("of no connection", e.byIPIP(icmp(t, router4, vip4, 3, 1, 0, other.bytes(t))), verdictDrop, nil, "in_snat_unknown")
		back := packet{protocol: c.protocol, src: far4, dst: vip4, sport: c.dport, dport: left.sport, ack: true, acked: 0x11223345, payload: "x"}
		got := back
		got.dst, got.dport = dip4, c.sport
		if c.protocol == lb.TCP {
			opened := back
			opened.syn, opened.payload = true, ""
			e.returns("SYN-ACK", opened, c.sport, e.byIPIP)
		}
		e.returns("answer", back, c.sport, e.byIPIP)
		for _, k := range errors4 {
			in := icmp(t, dip4, far4, k.kind, k.code, k.word, got.bytes(t))
			out := icmp(t, vip4, far4, k.kind, k.code, k.word, back.bytes(t))
			e.answered(fmt.Sprintf("%s error %d of the server", c.protocol, k.kind), frame(in), verdictNext, frame(out), "out_icmp_returned")
		}
		if c.protocol == lb.TCP {
			e.expect("of what was acknowledged", e.byIPIP(icmp(t, router4, vip4, 3, 1, 0, left.bytes(t))), verdictDrop, nil, "in_icmp_window")
		}
	}
}

// TestHostSNATFragments: fragments follow their first one, both ways; of pings too.
func TestHostSNATFragments(t *testing.T) {
	e := newSNATEnv(t, 200)
	text := string(make([]byte, 100)) + "and so on, up to an odd end"
	ask := packet{protocol: lb.UDP, src: dip4, dst: far4, sport: 40001, dport: 53, payload: text}
	_, got := e.run(e.host.objects.HostOut, frame(cut(ask.bytes(t), 0xabcd, 32, 64)[0]))
	sent := ask
	sent.src, sent.sport = vip4, binary.BigEndian.Uint16(got[34:])
	in, out := cut(ask.bytes(t), 0xabce, 32, 64), cut(sent.bytes(t), 0xabce, 32, 64)
	e.answered("before its first", frame(in[1]), verdictNext, frame(in[1]), "pass_not_ours")
	e.answered("first", frame(in[0]), verdictNext, frame(out[0]), "out_snat")
	e.answered("second", frame(in[1]), verdictNext, frame(out[1]), "out_returned", "fragment_followed")
	e.answered("last", frame(in[2]), verdictNext, frame(out[2]), "out_returned", "fragment_followed")

	reply := packet{protocol: lb.UDP, src: far4, dst: vip4, sport: 53, dport: sent.sport, payload: text}
	got2 := reply
	got2.dst, got2.dport = dip4, 40001
	in, out = cut(reply.bytes(t), 0xabcf, 32), cut(got2.bytes(t), 0xabcf, 32)
	e.expect("back: before its first", e.byIPIP(in[1]), verdictDrop, nil, "in_fragment")
	e.expect("back: first", e.byIPIP(in[0]), verdictRedirect, frame(out[0]), "in_snat")
	e.expect("back: last", e.byGUE(in[1]), verdictRedirect, frame(out[1]), "in_delivered", "fragment_followed")

	ping := func(src, dst string, kind byte, id uint16) [][]byte {
		return cut(icmp(t, src, dst, kind, 0, uint32(id)<<16|1, []byte(text)), 0xabd0, 64)
	}
	_, got = e.run(e.host.objects.HostOut, frame(ping(dip4, far4, 8, 77)[0]))
	id := binary.BigEndian.Uint16(got[38:])
	want := ping(vip4, far4, 8, id)
	e.answered("ping: first", frame(ping(dip4, far4, 8, 77)[0]), verdictNext, frame(want[0]), "out_snat")
	e.answered("ping: last", frame(ping(dip4, far4, 8, 77)[1]), verdictNext, frame(want[1]), "out_returned", "fragment_followed")
	e.expect("ping back: first", e.byIPIP(ping(far4, vip4, 0, id)[0]), verdictRedirect, frame(ping(far4, dip4, 0, 77)[0]), "in_snat")
	e.expect("ping back: last", e.byIPIP(ping(far4, vip4, 0, id)[1]), verdictRedirect, frame(ping(far4, dip4, 0, 77)[1]), "in_delivered", "fragment_followed")
}

// snatClass is the class of the flow of a server's port to far4's port 443, 0: there is none.
func (e *hostEnv) snatClass(sport uint16) FlowClass {
	e.t.Helper()
	r := hostFlowRecord{Client: netip.MustParseAddr(far4).As16(), Dip: e.number(dip4), DipPortBe: be16(sport), PeerPortBe: be16(443), Scope: 6,
		Kind: uint8(hostFlowKindFLOW_SNAT)}
	_, tag, ok := e.host.flows.find(&r, e.tick())
	if !ok {
		return 0
	}
	return tag.class()
}

// TestHostSNATClasses: what segments make of a connection. The far end has to know what the server sent.
func TestHostSNATClasses(t *testing.T) {
	e := newSNATEnv(t, 200, 201, 202, 203)
	const isn = 0x11223344 // of every segment that says no other
	out := func(sport uint16, p packet) uint16 {
		p.protocol, p.src, p.dst, p.sport, p.dport = lb.TCP, dip4, far4, sport, 443
		_, got := e.run(e.host.objects.HostOut, frame(p.bytes(t)))
		return binary.BigEndian.Uint16(got[34:])
	}
	in := func(port uint16, p packet) {
		p.protocol, p.src, p.dst, p.sport, p.dport = lb.TCP, far4, vip4, 443, port
		e.run(e.host.objects.HostIn, e.byIPIP(p.bytes(t)))
	}
	established := func(s uint16) uint16 {
		port := out(s, packet{syn: true})
		in(port, packet{syn: true, ack: true, acked: isn + 1})
		out(s, packet{ack: true, acked: isn + 1})
		return port
	}
	for i, c := range []struct {
		name string
		do   func(s uint16)
		want FlowClass
	}{
		{"a SYN", func(s uint16) { out(s, packet{syn: true}) }, FlowUntrusted},
		{"SYNs", func(s uint16) { out(s, packet{syn: true}); out(s, packet{syn: true}) }, FlowUntrusted},
		{"SYN, SYN-ACK", func(s uint16) { in(out(s, packet{syn: true}), packet{syn: true, ack: true, acked: isn + 1}) }, FlowTrusted},
		{"SYN, a SYN-ACK that knows nothing", func(s uint16) {
			port := out(s, packet{syn: true})
			in(port, packet{syn: true, ack: true, acked: isn + 2})
			in(port, packet{syn: true, ack: true, acked: isn + 1 - 1<<16})
		}, FlowUntrusted},
		{"refused", func(s uint16) { in(out(s, packet{syn: true}), packet{rst: true, ack: true, acked: isn + 1}) }, FlowClosing},
		{"refused by who knows nothing", func(s uint16) { in(out(s, packet{syn: true}), packet{rst: true, ack: true, acked: isn + 77}) }, FlowUntrusted},
		{"a RST of the server", func(s uint16) { established(s); out(s, packet{rst: true, seq: isn + 1}) }, FlowClosing},
		{"a RST of the server that gives up", func(s uint16) { out(s, packet{syn: true}); out(s, packet{rst: true, seq: isn + 1}) }, FlowClosing},
		{"a RST of the server to a forged acknowledgement", func(s uint16) {
			port := out(s, packet{syn: true})
			out(s, packet{rst: true, seq: isn + 77})
			in(port, packet{syn: true, ack: true, acked: isn + 1})
			out(s, packet{ack: true, seq: isn + 1, acked: 1})
		}, FlowTrusted},
		{"a RST of the far end", func(s uint16) { in(established(s), packet{rst: true, seq: isn + 1}) }, FlowClosing},
		{"a RST one off", func(s uint16) { in(established(s), packet{rst: true, seq: isn + 2}) }, FlowTrusted},
		{"a RST after data", func(s uint16) {
			p := established(s)
			in(p, packet{ack: true, seq: isn + 1, acked: isn + 1, payload: "data"})
			in(p, packet{rst: true, seq: isn + 5})
		}, FlowClosing},
		{"a RST after data that nobody sent", func(s uint16) {
			p := established(s)
			in(p, packet{ack: true, seq: isn + 2, acked: isn + 1, payload: "data"})
			in(p, packet{rst: true, seq: isn + 6})
		}, FlowTrusted},
		{"a SYN of the far end", func(s uint16) { in(established(s), packet{syn: true, seq: 77}) }, FlowTrusted},
		{"a FIN each way, the far end's forged", func(s uint16) {
			in(established(s), packet{ack: true, seq: isn + 1000, acked: isn + 1, fin: true})
			in(established(s), packet{ack: true, seq: isn, acked: isn + 1, fin: true})
			in(established(s), packet{ack: true, seq: isn + 1, acked: isn + 9, fin: true})
			out(s, packet{ack: true, seq: isn + 1, acked: isn + 1, fin: true})
		}, FlowTrusted},
		{"an ACK before the SYN-ACK", func(s uint16) { in(out(s, packet{syn: true}), packet{ack: true, acked: isn + 1}) }, FlowUntrusted},
		{"a new SYN of the server", func(s uint16) { established(s); out(s, packet{syn: true, seq: 99}) }, FlowUntrusted},
		{"a FIN one way", func(s uint16) { in(established(s), packet{ack: true, seq: isn + 1, acked: isn + 1, fin: true}) }, FlowTrusted},
		{"a FIN each way", func(s uint16) {
			in(established(s), packet{ack: true, seq: isn + 1, acked: isn + 1, fin: true})
			out(s, packet{ack: true, acked: isn + 2, fin: true})
		}, FlowClosing},
		{"a SYN after the end", func(s uint16) {
			established(s)
			out(s, packet{rst: true, seq: isn + 1})
			out(s, packet{syn: true})
		}, FlowUntrusted},
		{"a SYN into a connection that goes on", func(s uint16) { established(s); out(s, packet{syn: true}) }, FlowTrusted},
	} {
		s := uint16(1000 + i)
		c.do(s)
		if got := e.snatClass(s); got != c.want {
			t.Errorf("%s: class %d, want %d", c.name, got, c.want)
		}
	}
}

// TestHostSNATIdle: a connection that goes one way only keeps its way back as long as it lasts, and both end by its idle time.
func TestHostSNATIdle(t *testing.T) {
	e := newSNATEnv(t, 200)
	idle := lb.DefaultHostIdle
	ask := packet{protocol: lb.UDP, src: dip4, dst: far4, sport: 40002, dport: 53, payload: "question"}
	port := e.leaves("first", ask, 0)
	reply := packet{protocol: lb.UDP, src: far4, dst: vip4, sport: 53, dport: port, payload: "answer"}
	e.returns("answer", reply, 40002, e.byIPIP)
	for range 8 {
		e.later(idle.UDP / 2)
		e.sweepAll()
		if again := e.leaves("again", ask, 0); again != port {
			t.Fatalf("port %d, it was %d", again, port)
		}
	}
	e.returns("answer after a long time", reply, 40002, e.byIPIP)
	// What leads back lost its place: the next packet that says that the connection lives brings it again.
	back := hostFlowRecord{Client: netip.MustParseAddr(far4).As16(), Dip: e.number(vip4), DipPortBe: be16(port), PeerPortBe: be16(53), Scope: 17,
		Kind: uint8(hostFlowKindFLOW_BACK)}
	e.forget(back)
	e.expect("lost", e.byIPIP(reply.bytes(t)), verdictDrop, nil, "in_snat_unknown")
	e.later(idle.UDP / 2)
	e.leaves("brings it again", ask, 0)
	e.returns("answer after that", reply, 40002, e.byIPIP)
	// The connection lost its place: it finds its port again by what leads back.
	e.forget(hostFlowRecord{Client: back.Client, Dip: e.number(dip4), DipPortBe: be16(40002), PeerPortBe: be16(53), Scope: 17, Kind: uint8(hostFlowKindFLOW_SNAT)})
	if again := e.leaves("after it was lost", ask, 0); again != port {
		t.Errorf("port %d, it was %d", again, port)
	}
	e.later(idle.UDP + 3*time.Second)
	e.sweepAll()
	if n := e.tags(); n != 0 {
		t.Errorf("%d records after the idle time", n)
	}
}

// TestHostSNATPorts: a port serves many far ends and one connection to each; when none is free the packet goes to the agent, 64 at a time, and
// the agent is told where ports get scarce.
func TestHostSNATPorts(t *testing.T) {
	e := newSNATEnv(t, 200)
	low := e.host.Low()
	syn := packet{protocol: lb.TCP, src: dip4, dst: far4, dport: 443, syn: true}
	taken := map[uint16]bool{}
	for s := range uint16(8) {
		syn.sport = 1000 + s
		taken[e.leaves("to one far end", syn, 0)] = true
	}
	if len(taken) != 8 {
		t.Fatalf("8 connections have ports %v", taken)
	}
	for s := range uint16(8) {
		for _, p := range []packet{
			{protocol: lb.TCP, src: dip4, dst: otherFar4, sport: 1000 + s, dport: 443, syn: true},
			{protocol: lb.TCP, src: dip4, dst: far4, sport: 1000 + s, dport: 444, syn: true},
			{protocol: lb.UDP, src: dip4, dst: far4, sport: 1000 + s, dport: 443},
		} {
			e.leaves("to another far end", p, 0)
		}
	}
	syn.sport = 2000
	e.answered("no device", frame(syn.bytes(t)), verdictDrop, nil, "out_snat_no_port")
	if h := <-low; h != holder4 {
		t.Fatalf("ports of %v are scarce", h)
	}
	e.host.SetDevice(e.ifindex)
	for n := range MaxSNATWaiting {
		e.answered(fmt.Sprintf("number %d waits", n), frame(syn.bytes(t)), verdictRedirect, frame(syn.bytes(t)), "out_snat_waits")
	}
	e.answered("too many wait", frame(syn.bytes(t)), verdictDrop, nil, "out_snat_no_port")
	if n := e.flowTotals().SNAT.Waiting; n != uint64(MaxSNATWaiting) {
		t.Errorf("%d packets wait", n)
	}
	e.scarceAgain(low, syn)
	e.host.Dealt(holder4.DIP, 1)
	e.answered("one was dealt with", frame(syn.bytes(t)), verdictRedirect, frame(syn.bytes(t)), "out_snat_waits")
	e.answered("no more", frame(syn.bytes(t)), verdictDrop, nil, "out_snat_no_port")
	e.host.Settle(func(dip netip.Addr) (int, bool) { return 0, dip == holder4.DIP })
	must(t, e.host.SetRanges(holder4, []snat.Range{200, 201}, nil))
	if port := e.leaves("with another range", syn, 0); snat.RangeOf(port) != 201 {
		t.Errorf("port %d, want one of the new range", port)
	}

	// Ranges that leave keep their connections, and get no new ones.
	must(t, e.host.SetRanges(holder4, []snat.Range{201}, []snat.Range{200}))
	kept := 0
	for s := range uint16(8) {
		syn.sport = 1000 + s
		if taken[e.leaves("kept", syn, 0)] {
			kept++
		}
	}
	if kept != 8 {
		t.Errorf("%d of 8 connections kept their ports", kept)
	}
	for s := range uint16(7) {
		syn.sport = 3000 + s
		if port := e.leaves("new", syn, 0); snat.RangeOf(port) != 201 {
			t.Errorf("a new connection has port %d of a range that leaves", port)
		}
	}
	e.sweepAll()
	if n := e.flowTotals().SNAT; n.Used != 16 || n.Ports != 8 || n.Servers != 1 {
		t.Errorf("totals %+v, want 16 ports in use, 8 for new connections, of one server", n)
	}
	uses, err := e.host.Uses()
	must(t, err)
	var used []snat.Range
	for _, u := range uses {
		used = append(used, u.Range)
	}
	slices.Sort(used)
	if !slices.Equal(used, []snat.Range{200, 201}) {
		t.Errorf("ranges %v are used, want both", used)
	}

	// A range that is another's: connections that have its ports are over.
	must(t, e.host.SetRanges(holder4, []snat.Range{201}, nil))
	e.sweepAll()
	e.sweepAll()
	if n := e.flowTotals().SNAT; n.Used != 8 {
		t.Errorf("%d ports in use, want those of one range", n.Used)
	}
	// A port that a connection took just before its range went is known at once. An hour later flows are over, and newcomers may have their
	// places: nothing counts flows of before any more.
	must(t, e.host.SetRanges(holder4, []snat.Range{201, 202}, nil))
	e.later(time.Hour)
	last := packet{protocol: lb.UDP, src: dip4, dst: otherFar4, dport: 443}
	for s := uint16(5000); ; s++ {
		last.sport = s
		if snat.RangeOf(e.leaves("at the last moment", last, 0)) == 202 {
			break
		}
	}
	must(t, e.host.SetRanges(holder4, []snat.Range{201}, []snat.Range{202}))
	e.host.now = func() time.Duration { return time.Duration(e.tick() << hostFlowTagFLOW_TAG_TICK_SHIFT) }
	uses, err = e.host.Uses()
	must(t, err)
	if !slices.ContainsFunc(uses, func(u SNATUse) bool { return u.Range == 202 && time.Since(u.At) < time.Minute }) {
		t.Errorf("uses %v: range 202 was used just now", uses)
	}
	e.later(-time.Hour)

	must(t, e.host.SetHolders(nil))
	syn.sport = 3000
	e.answered("without SNAT", frame(syn.bytes(t)), verdictNext, frame(syn.bytes(t)), "pass_not_ours")
	e.sweepAll()
	if n := e.flowTotals().SNAT; n != (HostSNATCounts{}) {
		t.Errorf("totals %+v of no server", n)
	}
}

// TestHostSNATFull: a flow table without room takes no connection, and leaves nothing behind of it.
func TestHostSNATFull(t *testing.T) {
	e := newSNATEnv(t, 200)
	for b := range e.host.flows.tags {
		for way := range flowWays {
			store(&e.host.flows.tags[b].Tags[way], uint64(newFlowTag(uint64(way)<<32, 1, FlowTrusted, e.tick()+1000)))
		}
	}
	syn := packet{protocol: lb.TCP, src: dip4, dst: far4, sport: 1, dport: 443, syn: true}
	v, _ := e.run(e.host.objects.HostOut, frame(syn.bytes(t)))
	if c, _ := e.host.Counters(); v != verdictDrop || c.Reasons["out_snat_full"] != 1 {
		t.Errorf("verdict %d, reasons %v", v, c.Reasons)
	}
}

// TestHostSNATAdopted: another agent finds DIPs, ranges and connections as the one before left them.
func TestHostSNATAdopted(t *testing.T) {
	e := newSNATEnv(t, 200, 300)
	syn := packet{protocol: lb.TCP, src: dip4, dst: far4, sport: 40001, dport: 443, syn: true}
	port := e.leaves("SYN", syn, 0)
	e.host.SetDevice(e.ifindex)
	must(t, e.host.Close())
	e.open()
	e.quiet()
	e.setClock(time.Hour)
	if again := e.leaves("SYN of after", syn, 0); again != port {
		t.Errorf("port %d, it was %d", again, port)
	}
	e.sweepAll()
	e.sweepAll()
	e.sweepAll()
	if e.flowTotals().SNAT != (HostSNATCounts{Servers: 1, Ports: 16, Used: 1}) {
		t.Errorf("totals %+v", e.flowTotals().SNAT)
	}
	must(t, e.host.SetHolders([]snat.Holder{holder4}))
	must(t, e.host.SetRanges(holder4, []snat.Range{200, 300}, nil))
	if again := e.leaves("after the manager said so", syn, 0); again != port {
		t.Errorf("port %d, it was %d", again, port)
	}
	if got := e.host.snat.setup.Device; got != 0 {
		t.Errorf("packets without a port go to device %d of the agent before", got)
	}
}

// TestHostSNATRefuses: what the tables cannot have is refused.
func TestHostSNATRefuses(t *testing.T) {
	e := newSNATEnv(t, 200)
	for name, h := range map[string]snat.Holder{
		"an overlay": {VIP: snat.VIP{VNI: 7, Addr: holder4.VIP.Addr}, DIP: holder4.DIP},
		"IPv6":       {VIP: holder4.VIP, DIP: netip.MustParseAddr(dip6)},
	} {
		if err := e.host.SetHolders([]snat.Holder{h}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := e.host.SetRanges(snat.Holder{VIP: holder4.VIP, DIP: netip.MustParseAddr(narrow4)}, []snat.Range{1}, nil); err == nil {
		t.Error("a DIP without SNAT got ports")
	}
	e.leaves("as before", packet{protocol: lb.TCP, src: dip4, dst: far4, sport: 1, dport: 443, syn: true}, 0)
}

// snatModel is who has which port towards which far end, naively.
type snatModel struct {
	taken map[[4]uint16]uint16 // protocol, port, far end, far port -> the server's port
	flows map[[4]uint16]uint16 // protocol, server's port, far end, far port -> port
}

// TestHostSNATAgainstModel: whatever connections begin while ranges come and go, none has another's port or one that is not leased, none
// changes its port, and none is refused while a port is free.
func TestHostSNATAgainstModel(t *testing.T) {
	seed := rand.Uint64()
	if s := os.Getenv("SHUNT_TEST_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		must(t, err)
	}
	t.Logf("SHUNT_TEST_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	e := roomySNATEnv(t, 200)
	m := snatModel{map[[4]uint16]uint16{}, map[[4]uint16]uint16{}}
	usable := []snat.Range{200}
	refused := 0
	for i := range 3000 {
		if i%100 == 0 {
			usable = usable[:0]
			for range i / 100 % 7 { // none at first: what begins then is refused
				if r := snat.Range(200 + random.IntN(20)); !slices.Contains(usable, r) {
					usable = append(usable, r)
				}
			}
			slices.Sort(usable)
			must(t, e.host.SetRanges(holder4, slices.Clone(usable), nil))
			must(t, e.host.snat.release())
		}
		far, fport, sport := uint16(random.IntN(3)), uint16(443+random.IntN(2)), uint16(1000+random.IntN(60))
		protocol := lb.Protocol(6 + 11*random.IntN(2))
		p := packet{protocol: protocol, src: dip4, dst: fmt.Sprintf("192.0.2.%d", 80+far), sport: sport, dport: fport, syn: protocol == lb.TCP}
		v, got := e.run(e.host.objects.HostOut, frame(p.bytes(t)))
		name := [4]uint16{uint16(protocol), sport, far, fport}
		had, known := m.flows[name]
		if v == verdictDrop {
			refused++
			if known {
				t.Fatalf("step %d: a connection that has port %d is refused", i, had)
			}
			for _, r := range usable {
				for n := range uint16(8) {
					if _, in := m.taken[[4]uint16{uint16(protocol), r.Port() + n, far, fport}]; !in {
						t.Fatalf("step %d: refused, and port %d is free", i, r.Port()+n)
					}
				}
			}
			continue
		}
		port := binary.BigEndian.Uint16(got[34:])
		key := [4]uint16{uint16(protocol), port, far, fport}
		switch other, in := m.taken[key]; {
		case v != verdictNext:
			t.Fatalf("step %d: verdict %d", i, v)
		case known && had != port:
			t.Fatalf("step %d: port %d, it was %d", i, port, had)
		case in && other != sport:
			t.Fatalf("step %d: port %d is that of server port %d too", i, port, other)
		case !known && !slices.Contains(usable, snat.RangeOf(port)):
			t.Fatalf("step %d: port %d is not leased", i, port)
		}
		m.taken[key], m.flows[name] = sport, port
	}
	if refused == 0 {
		t.Error("nothing was refused: this test says nothing of ports that run out")
	}
}

// TestHostSNATOnAllCPUs: CPUs that begin connections to one far end at once never give one port to two of them, nor two to one.
func TestHostSNATOnAllCPUs(t *testing.T) {
	e := roomySNATEnv(t, leasedRanges(200, 64)...)
	const flows = 400
	frames := make([][]byte, flows)
	for i := range frames {
		p := packet{protocol: lb.TCP, src: dip4, dst: far4, sport: uint16(1000 + i), dport: 443, syn: true}
		frames[i] = frame(p.bytes(t))
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	got := make([]uint16, flows)
	errs := make(chan error, runtime.NumCPU())
	for cpu := range runtime.NumCPU() {
		wg.Go(func() {
			runtime.LockOSThread() // of the namespace, and not given back
			var set unix.CPUSet
			set.Set(cpu)
			if err := unix.SchedSetaffinity(0, &set); err != nil {
				errs <- err
				return
			}
			errs <- netdev.In(e.namespace, func() error {
				for i := range frames {
					opts := &ebpf.RunOptions{Data: frames[i], DataOut: make([]byte, 256), Context: skbContext{Ifindex: uint32(e.ifindex)}}
					verdict, err := e.host.objects.HostOut.Run(opts)
					if err != nil {
						return err
					}
					if int32(verdict) != verdictNext {
						continue // it gave way too often, which is counted
					}
					port := binary.BigEndian.Uint16(opts.DataOut[34:])
					mu.Lock()
					had := got[i]
					got[i] = port
					mu.Unlock()
					if had != 0 && had != port {
						return fmt.Errorf("connection %d has ports %d and %d", i, had, port)
					}
				}
				return nil
			})
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		must(t, err)
	}
	owner := map[uint16]int{}
	for i, port := range got {
		if port == 0 {
			continue
		}
		if other, taken := owner[port]; taken {
			t.Errorf("connections %d and %d have port %d", other, i, port)
		}
		owner[port] = i
	}
	if len(owner) < flows/2 {
		t.Errorf("%d of %d connections have a port", len(owner), flows)
	}
}

// leasedRanges are n ranges from the first one on.
func leasedRanges(first snat.Range, n int) []snat.Range {
	out := make([]snat.Range, n)
	for i := range out {
		out[i] = first + snat.Range(i)
	}
	return out
}

// TestHostSNATWalk: ports that were leased first are in use one beside the other; connections that begin anywhere among them find those that
// came later.
func TestHostSNATWalk(t *testing.T) {
	e := roomySNATEnv(t, leasedRanges(200, 25)...)
	syn := packet{protocol: lb.TCP, src: dip4, dst: far4, dport: 443, syn: true}
	used := map[uint16]bool{}
	open := func(sport uint16) bool {
		syn.sport = sport
		v, got := e.run(e.host.objects.HostOut, frame(syn.bytes(t)))
		if v != verdictNext {
			return false
		}
		port := binary.BigEndian.Uint16(got[34:])
		if used[port] {
			t.Fatalf("port %d serves two connections", port)
		}
		used[port] = true
		return true
	}
	for sport := uint16(1000); len(used) < 195; sport++ {
		open(sport)
	}
	must(t, e.host.SetRanges(holder4, leasedRanges(200, 128), nil))
	for sport := uint16(30000); sport < 30600; sport++ {
		if !open(sport) {
			t.Fatalf("connection %d of 600 found no port, and %d of 1024 are in use", sport-30000, len(used))
		}
	}
}
