package dataplane

import (
	"bytes"
	"encoding/binary"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// Verdicts of tcx programs.
const (
	verdictNext     = -1
	verdictPass     = 0
	verdictDrop     = 2
	verdictRedirect = 7
)

// hostCase is one packet and what must become of it. A nil frame stays as it was (or does not matter when dropped).
type hostCase struct {
	name    string
	in      []byte
	verdict int32
	out     []byte
	reasons map[string]uint64
}

func one(names ...string) map[string]uint64 {
	m := map[string]uint64{}
	for _, n := range names {
		m[n] = 1
	}
	return m
}

func TestHostIn(t *testing.T) {
	e := newHostEnv(t).quiet()
	e.apply(
		bind(lb.TCP, vip4, dip4, dip4, true), bind(lb.UDP, vip4, dip4, dip4, true),
		bind(lb.TCP, vip6, dip6, dip6, true), bind(lb.UDP, vip6, dip6, dip6, true),
		bind(lb.TCP, vip4, host6, dip4, true), bind(lb.TCP, vip6, host4, dip6, true),
		bind(lb.TCP, "203.0.113.11", host4, host4, true), bind(lb.TCP, "2001:db8:f::11", host6, host6, true),
		bind(lb.TCP, "203.0.113.12", dip4, dip4, false), bind(lb.TCP, "2001:db8:f::12", dip6, dip6, false),
		bind(lb.TCP, "203.0.113.13", host4, host4, false),
		bind(lb.TCP, "203.0.113.14", lost4, lost4, true),
		bind(lb.TCP, owned4, host4, host4, false), bind(lb.UDP, "203.0.113.16", narrow4, narrow4, true),
	)
	for _, c := range append(deliveredCases(t), refusedCases(t)...) {
		t.Run(c.name, func(t *testing.T) {
			e.t = t
			before := e.reasons(nil)
			verdict, out := e.run(e.host.objects.HostIn, c.in)
			if got := e.reasons(before); verdict != c.verdict || !maps.Equal(got, c.reasons) {
				t.Errorf("verdict %d, reasons %v, want %d, %v", verdict, got, c.verdict, c.reasons)
			}
			want := c.out
			if want == nil {
				want = c.in
			}
			if c.verdict != verdictDrop && !bytes.Equal(out, want) {
				t.Errorf("frame\n% x, want\n% x", out, want)
			}
		})
	}
}

// deliveredCases: packets of every kind of tunnel and what the server gets.
func deliveredCases(t *testing.T) []hostCase {
	var cases []hostCase
	add := func(name, source, outer string, in, out packet, verdict int32, reasons ...string) {
		cases = append(cases, hostCase{name, tunnel(t, source, outer, in.bytes(t)), verdict, frame(out.bytes(t)), one(reasons...)})
	}
	data4 := packet{protocol: lb.TCP, src: client4, dst: vip4, sport: 40001, dport: 80, ack: true, payload: "odd"}
	to4 := data4
	to4.dst, to4.dport = dip4, 8080
	data6 := packet{protocol: lb.TCP, src: client6, dst: vip6, sport: 40002, dport: 80, ack: true, payload: "even"}
	to6 := data6
	to6.dst, to6.dport = dip6, 8080
	add("4in4", source4, dip4, data4, to4, verdictRedirect, "in_delivered")
	add("6in6", source6, dip6, data6, to6, verdictRedirect, "in_delivered")
	add("4in6", source6, host6, data4, to4, verdictRedirect, "in_delivered")
	add("6in4", source4, host4, data6, to6, verdictRedirect, "in_delivered")

	// 1500 - 20 - 40, 1500 - 40 - 60, 1500 - 40 - 40, 1500 - 20 - 60.
	for _, c := range []struct {
		name, source, outer string
		in, out             packet
		mss                 uint16
	}{
		{"4in4", source4, dip4, data4, to4, 1440}, {"6in6", source6, dip6, data6, to6, 1400},
		{"4in6", source6, host6, data4, to4, 1420}, {"6in4", source4, host4, data6, to6, 1420},
	} {
		for nops := range 3 {
			syn, to := c.in, c.out
			syn.syn, syn.ack, syn.payload, syn.options = true, false, "", mssOption(nops, 1460)
			to.syn, to.ack, to.payload, to.options = true, false, "", mssOption(nops, c.mss)
			add("SYN clamped "+c.name, c.source, c.outer, syn, to, verdictRedirect, "in_delivered", "mss_clamped")
		}
		syn, to := c.in, c.out
		syn.syn, syn.options = true, mssOption(1, 536)
		to.syn, to.options = true, mssOption(1, 536)
		add("small MSS left "+c.name, c.source, c.outer, syn, to, verdictRedirect, "in_delivered")
	}

	udp4 := packet{protocol: lb.UDP, src: client4, dst: vip4, sport: 40003, dport: 53, payload: "question"}
	to4 = udp4
	to4.dst, to4.dport = dip4, 5353
	add("UDP 4in4", source4, dip4, udp4, to4, verdictRedirect, "in_delivered")
	udp4.noSum, to4.noSum = true, true
	add("UDP without checksum", source4, dip4, udp4, to4, verdictRedirect, "in_delivered")
	udp6 := packet{protocol: lb.UDP, src: client6, dst: vip6, sport: 40004, dport: 53, payload: "question"}
	to6 = udp6
	to6.dst, to6.dport = dip6, 5353
	add("UDP 6in6", source6, dip6, udp6, to6, verdictRedirect, "in_delivered")

	local := packet{protocol: lb.TCP, src: client4, dst: "203.0.113.11", sport: 1, dport: 80, syn: true}
	toLocal := local
	toLocal.dst, toLocal.dport = host4, 8080
	add("DIP of the host 4", source4, host4, local, toLocal, verdictPass, "in_delivered")
	local.src, local.dst = client6, "2001:db8:f::11"
	toLocal.src, toLocal.dst = client6, host6
	add("DIP of the host 6", source6, host6, local, toLocal, verdictPass, "in_delivered")

	owned := packet{protocol: lb.TCP, src: client4, dst: "203.0.113.12", sport: 2, dport: 80, ack: true}
	add("rewrite none 4", source4, dip4, owned, owned, verdictRedirect, "in_untouched")
	owned.src, owned.dst = client6, "2001:db8:f::12"
	add("rewrite none 6", source6, dip6, owned, owned, verdictRedirect, "in_untouched")
	owned = packet{protocol: lb.TCP, src: client4, dst: owned4, sport: 3, dport: 80, ack: true}
	add("rewrite none, VIP of the host", source4, host4, owned, owned, verdictPass, "in_untouched")

	// The stack cuts it, or says why not.
	big := packet{protocol: lb.UDP, src: client4, dst: "203.0.113.16", sport: 4, dport: 53, payload: strings.Repeat("x", 1300)}
	cut := big
	cut.dst, cut.dport = narrow4, 5353
	add("too big for the way to the DIP", source4, narrow4, big, cut, verdictPass, "in_delivered")
	return cases
}

// refusedCases: packets that are not ours, and packets that lie.
func refusedCases(t *testing.T) []hostCase {
	var cases []hostCase
	good := packet{protocol: lb.TCP, src: client4, dst: vip4, sport: 40005, dport: 80, ack: true, payload: "x"}
	good6 := packet{protocol: lb.TCP, src: client6, dst: vip6, sport: 40005, dport: 80, ack: true, payload: "x"}
	udp := packet{protocol: lb.UDP, src: client4, dst: vip4, sport: 40005, dport: 53, payload: "x"}
	add := func(name string, in []byte, verdict int32, reason string) {
		cases = append(cases, hostCase{name: name, in: in, verdict: verdict, reasons: one(reason)})
	}
	// change tells what is wrong with a tunnel packet; offsets count from the frame's start, 34 is the inner header.
	change := func(name string, p packet, reason string, f func(b []byte) []byte) {
		source, outer := source4, dip4
		if p.src == client6 {
			source, outer = source6, dip6
		}
		add(name, f(tunnel(t, source, outer, p.bytes(t))), verdictDrop, reason)
	}
	set := func(at int, v ...byte) func([]byte) []byte {
		return func(b []byte) []byte { copy(b[at:], v); return b }
	}

	add("plain packet", frame(good.bytes(t)), verdictNext, "pass_not_ours")
	add("ARP", append(append(append([]byte{}, macB...), macA...), 8, 6, 0, 1, 8, 0, 6, 4, 0, 1), verdictNext, "pass_not_ours")
	add("tunnel of others", tunnel(t, source4, "10.20.1.99", good.bytes(t)), verdictNext, "pass_not_ours")
	add("tunnel of others, strange source", tunnel(t, client4, "10.20.1.99", good.bytes(t)), verdictNext, "pass_not_ours")
	add("bad source 4", tunnel(t, client4, dip4, good.bytes(t)), verdictDrop, "in_bad_source")
	add("bad source 6", tunnel(t, client6, dip6, good6.bytes(t)), verdictDrop, "in_bad_source")
	add("source beyond prefix 6", tunnel(t, "fd53:6875:6e74:1::1", dip6, good6.bytes(t)), verdictDrop, "in_bad_source")

	other := good
	other.dport = 81
	add("no binding: port", tunnel(t, source4, dip4, other.bytes(t)), verdictDrop, "in_no_binding")
	other = good
	other.dst = vip4[:len(vip4)-1] + "9"
	add("no binding: VIP", tunnel(t, source4, dip4, other.bytes(t)), verdictDrop, "in_no_binding")
	add("no binding: outer", tunnel(t, source4, host4, good.bytes(t)), verdictDrop, "in_no_binding")
	change("no binding: protocol", good, "in_no_binding", set(34+9, 1))
	lost := good
	lost.dst = "203.0.113.14"
	add("no route", tunnel(t, source4, lost4, lost.bytes(t)), verdictDrop, "in_no_route")
	lost.dst = "203.0.113.13"
	add("VIP that nobody owns", tunnel(t, source4, host4, lost.bytes(t)), verdictDrop, "in_no_route")

	change("outer IHL", good, "in_malformed", set(14, 0x44))
	change("outer length beyond frame", good, "in_malformed", set(16, 0x7f))
	change("outer fragment", good, "in_fragment", set(20, 0x20, 0))
	change("inner version", good, "in_malformed", set(34, 0x65))
	change("inner IHL", good, "in_malformed", set(34, 0x44))
	change("inner IHL beyond packet", good, "in_malformed", set(34, 0x4f))
	change("inner length beyond outer", good, "in_malformed", set(36, 0x05))
	change("inner length below header", good, "in_malformed", set(36, 0, 19))
	change("inner later fragment", good, "in_fragment", set(40, 0, 1))
	change("inner first fragment without its TCP header", good, "in_malformed", func(b []byte) []byte {
		return set(36, 0, 36, 0x12, 0x34, 0x20, 0)(b)
	})
	change("inner truncated", good, "in_malformed", func(b []byte) []byte {
		binary.BigEndian.PutUint16(b[16:], 30)
		return b[:44]
	})
	change("TCP offset below 5", good, "in_malformed", set(54+12, 0x40))
	change("TCP offset beyond segment", good, "in_malformed", set(54+12, 0xf0))
	change("TCP cut", good, "in_malformed", set(36, 0, 39))
	change("UDP length below 8", udp, "in_malformed", set(54+4, 0, 7))
	change("UDP length beyond packet", udp, "in_malformed", set(54+4, 0, 10))
	syn := good
	syn.syn, syn.options, syn.payload = true, mssOption(2, 1460), ""
	for name, v := range map[string][]byte{"0": {2, 0}, "1": {2, 1}, "beyond header": {3, 9}, "MSS of 3": {2, 3}} {
		change("TCP option length "+name, syn, "in_malformed", set(54+20, v...))
	}
	change("IPv6 payload beyond outer", good6, "in_malformed", set(54+4, 0, 200))
	change("IPv6 jumbogram", good6, "in_malformed", set(54+4, 0, 0))
	change("IPv6 fragment", good6, "in_fragment", set(54+6, byte(layers.IPProtocolIPv6Fragment)))
	change("IPv6 extension cut", good6, "in_malformed", func(b []byte) []byte {
		b[54+6] = byte(layers.IPProtocolIPv6Destination)
		b[94+1] = 200
		return b
	})
	return cases
}

// TestHostInExtensions: a TCP segment behind destination options, its own or the tunnel's, is translated like any other.
func TestHostInExtensions(t *testing.T) {
	e := newHostEnv(t)
	e.apply(bind(lb.TCP, vip6, dip6, dip6, true))
	with := func(p packet) []byte {
		b := p.bytes(t)
		b[6] = byte(layers.IPProtocolIPv6Destination)
		binary.BigEndian.PutUint16(b[4:], binary.BigEndian.Uint16(b[4:])+8)
		return append(append(append([]byte{}, b[:40]...), byte(layers.IPProtocolTCP), 0, 1, 4, 0, 0, 0, 0), b[40:]...)
	}
	in := packet{protocol: lb.TCP, src: client6, dst: vip6, sport: 7, dport: 80, syn: true, options: mssOption(1, 1460)}
	out := in
	out.dst, out.dport, out.options = dip6, 8080, mssOption(1, 1400)
	// The second tunnel has destination options of its own, as RFC 2473 section 5.1 has it.
	limited := tunnel(t, source6, dip6, with(in))
	limited[14+6] = byte(layers.IPProtocolIPv6Destination)
	binary.BigEndian.PutUint16(limited[14+4:], binary.BigEndian.Uint16(limited[14+4:])+8)
	limited = slices.Insert(limited, 14+40, byte(layers.IPProtocolIPv6), 0, 4, 1, 4, 1, 1, 0)
	for _, f := range [][]byte{tunnel(t, source6, dip6, with(in)), limited} {
		verdict, got := e.run(e.host.objects.HostIn, f)
		if want := frame(with(out)); verdict != verdictRedirect || !bytes.Equal(got, want) {
			t.Errorf("verdict %d, frame\n% x, want\n% x", verdict, got, want)
		}
	}
}

func TestHostOut(t *testing.T) {
	e := newHostEnv(t).quiet()
	e.apply(bind(lb.TCP, vip4, dip4, dip4, true), bind(lb.UDP, vip4, dip4, dip4, true),
		bind(lb.TCP, vip6, host4, dip6, true), bind(lb.TCP, "203.0.113.12", dip4, dip4, false))
	requests := []packet{
		{protocol: lb.TCP, src: client4, dst: vip4, sport: 40001, dport: 80, syn: true},
		{protocol: lb.UDP, src: client4, dst: vip4, sport: 40001, dport: 53, payload: "q"},
	}
	for _, p := range requests {
		e.run(e.host.objects.HostIn, tunnel(t, source4, dip4, p.bytes(t)))
	}
	six := packet{protocol: lb.TCP, src: client6, dst: vip6, sport: 40001, dport: 80, syn: true}
	e.run(e.host.objects.HostIn, tunnel(t, source4, host4, six.bytes(t)))

	answer := func(p packet, from string, port uint16) packet {
		return packet{protocol: p.protocol, src: from, dst: p.src, sport: port, dport: p.sport, ack: true, payload: "answer"}
	}
	synAck := func(p packet, mss uint16) packet {
		p.syn, p.payload, p.options = true, "", mssOption(1, mss)
		return p
	}
	cut := func(ip []byte) []byte { ip[6] = 0x20; return ip }
	tcp4, udp4 := requests[0], requests[1]
	quiet := answer(udp4, dip4, 5353)
	quiet.noSum = true
	quietOut := answer(udp4, vip4, 53)
	quietOut.noSum = true
	direct := answer(tcp4, dip4, 8080)
	direct.dport = 40009
	owned := synAck(answer(tcp4, "203.0.113.12", 80), 1460)
	next := func(name string, in, out packet, reasons ...string) hostCase {
		return hostCase{name, frame(in.bytes(t)), verdictNext, frame(out.bytes(t)), one(reasons...)}
	}
	for _, c := range []hostCase{
		next("TCP 4", answer(tcp4, dip4, 8080), answer(tcp4, vip4, 80), "out_returned"),
		next("UDP 4", answer(udp4, dip4, 5353), answer(udp4, vip4, 53), "out_returned"),
		next("UDP without checksum", quiet, quietOut, "out_returned"),
		next("TCP 6", answer(six, dip6, 8080), answer(six, vip6, 80), "out_returned"),
		next("SYN-ACK 4", synAck(answer(tcp4, dip4, 8080), 1460), synAck(answer(tcp4, vip4, 80), 1440), "out_returned", "mss_clamped"),
		next("SYN-ACK 6", synAck(answer(six, dip6, 8080), 1440), synAck(answer(six, vip6, 80), 1420), "out_returned", "mss_clamped"),
		next("SYN-ACK small", synAck(answer(tcp4, dip4, 8080), 900), synAck(answer(tcp4, vip4, 80), 900), "out_returned"),
		next("direct", direct, direct, "pass_not_ours"),
		next("owned VIP", answer(tcp4, "203.0.113.12", 80), answer(tcp4, "203.0.113.12", 80), "pass_not_ours"),
		next("owned VIP SYN-ACK", owned, synAck(owned, 1440), "pass_not_ours", "mss_clamped"),
		{"first fragment of an answer", frame(cut(answer(udp4, dip4, 5353).bytes(t))), verdictNext, frame(cut(answer(udp4, vip4, 53).bytes(t))), one("out_returned")},
		{"fragment of others", frame(cut(direct.bytes(t))), verdictNext, frame(cut(direct.bytes(t))), one("pass_not_ours")},
	} {
		t.Run(c.name, func(t *testing.T) {
			e.t = t
			before := e.reasons(nil)
			verdict, out := e.run(e.host.objects.HostOut, c.in)
			if got := e.reasons(before); verdict != c.verdict || !maps.Equal(got, c.reasons) {
				t.Errorf("verdict %d, reasons %v, want %d, %v", verdict, got, c.verdict, c.reasons)
			}
			if c.out != nil && !bytes.Equal(out, c.out) {
				t.Errorf("frame\n% x, want\n% x", out, c.out)
			}
		})
	}
}

// TestHostCollision: two VIPs lead to one DIP:port, and a client uses one port for both (design section 9.8).
func TestHostCollision(t *testing.T) {
	e := newHostEnv(t).quiet()
	second := "203.0.113.77"
	e.apply(bind(lb.TCP, vip4, dip4, dip4, true), bind(lb.TCP, second, dip4, dip4, true))
	send := func(vip string) (port uint16) {
		t.Helper()
		p := packet{protocol: lb.TCP, src: client4, dst: vip, sport: 40001, dport: 80, ack: true, payload: "x"}
		verdict, out := e.run(e.host.objects.HostIn, tunnel(t, source4, dip4, p.bytes(t)))
		port = binary.BigEndian.Uint16(out[34:])
		want := p
		want.dst, want.dport, want.sport = dip4, 8080, port
		if verdict != verdictRedirect || !bytes.Equal(out, frame(want.bytes(t))) {
			t.Fatalf("verdict %d, frame\n% x, want\n% x", verdict, out, frame(want.bytes(t)))
		}
		return port
	}
	returns := func(port uint16, vip string) {
		t.Helper()
		p := packet{protocol: lb.TCP, src: dip4, dst: client4, sport: 8080, dport: port, ack: true, payload: "y"}
		want := p
		want.src, want.sport, want.dport = vip, 80, 40001
		if _, out := e.run(e.host.objects.HostOut, frame(p.bytes(t))); !bytes.Equal(out, frame(want.bytes(t))) {
			t.Fatalf("answer\n% x, want\n% x", out, frame(want.bytes(t)))
		}
	}
	if p := send(vip4); p != 40001 {
		t.Fatalf("first flow has client port %d, want its own", p)
	}
	substitute := send(second)
	if substitute == 40001 || substitute < 1024 {
		t.Fatalf("second flow has client port %d", substitute)
	}
	for range 2 {
		if p := send(second); p != substitute {
			t.Fatalf("second flow changed from port %d to %d", substitute, p)
		}
		if p := send(vip4); p != 40001 {
			t.Fatalf("first flow changed to port %d", p)
		}
		returns(40001, vip4)
		returns(substitute, second)
	}
	// The first flow's state goes: the second keeps its port.
	e.forget(flowOf(e, client4, dip4, 40001))
	if p := send(second); p != substitute {
		t.Fatalf("second flow changed to port %d when the first went", p)
	}
	// A client's own flow from the substitute port collides in turn.
	if c, _ := e.host.Counters(); c.Reasons["client_port_mapped"] != 4 {
		t.Errorf("client_port_mapped %d, want 4", c.Reasons["client_port_mapped"])
	}
}

// flowOf is the record of a TCP flow to port 8080 of a DIP, as far as it is its name.
func flowOf(e *hostEnv, client, dip string, port uint16) hostFlowRecord {
	return hostFlowRecord{Client: netip.MustParseAddr(client).As16(), Dip: e.number(dip), DipPortBe: be16(8080), PeerPortBe: be16(port), Scope: 6}
}

// number is that of an address in the flow table.
func (e *hostEnv) number(addr string) uint32 {
	e.t.Helper()
	n, err := e.host.flows.addrs.number(netip.MustParseAddr(addr).As16())
	must(e.t, err)
	return n
}

// forget takes a flow out of the table.
func (e *hostEnv) forget(r hostFlowRecord) {
	e.t.Helper()
	place, _, ok := e.host.flows.find(&r, e.tick())
	if !ok {
		e.t.Fatalf("no flow %+v", r)
	}
	store(&e.host.flows.tags[place/flowWays].Tags[place%flowWays], 0)
}

// tick is the programs' present tick.
func (e *hostEnv) tick() uint64 {
	e.t.Helper()
	if !e.testClock {
		return tagTick(monotonic())
	}
	var now uint64
	must(e.t, e.host.objects.HostTestNow.Get(&now))
	return tagTick(time.Duration(now))
}

// TestHostNoPort: every substitute port is taken.
func TestHostNoPort(t *testing.T) {
	e := newHostEnv(t)
	e.flows = 1 << 18
	e.open()
	e.quiet()
	e.apply(bind(lb.TCP, vip4, dip4, dip4, true))
	taken := e.number(vip6)
	for port := 1; port < 65536; port++ {
		r := flowOf(e, client4, dip4, uint16(port))
		r.Vip = taken
		if !e.host.flows.insert(r, hostEvc{}, FlowTrusted, e.tick()+100, e.tick()) {
			t.Fatalf("no room for port %d", port)
		}
	}
	p := packet{protocol: lb.TCP, src: client4, dst: vip4, sport: 40001, dport: 80, syn: true}
	before := e.reasons(nil)
	verdict, _ := e.run(e.host.objects.HostIn, tunnel(t, source4, dip4, p.bytes(t)))
	if got := e.reasons(before); verdict != verdictDrop || !maps.Equal(got, one("in_no_port")) {
		t.Errorf("verdict %d, reasons %v", verdict, got)
	}
}

// TestHostApply: bindings are added, changed and pruned; counters and flow state survive a new agent.
func TestHostApply(t *testing.T) {
	e := newHostEnv(t)
	a, b := bind(lb.TCP, vip4, dip4, dip4, true), bind(lb.UDP, vip4, dip4, dip4, true)
	e.apply(a, b)
	p := packet{protocol: lb.TCP, src: client4, dst: vip4, sport: 40001, dport: 80, syn: true}
	q := tunnel(t, source4, dip4, p.bytes(t))
	e.run(e.host.objects.HostIn, q)
	e.open()
	moved := a
	moved.DIPPort = 9090
	e.apply(moved)
	e.run(e.host.objects.HostIn, q)
	c, err := e.host.Counters()
	must(t, err)
	if len(c.Bindings) != 1 || !reflect.DeepEqual(c.Bindings[0].Binding, moved) || c.Bindings[0].Packets != 2 || c.Bindings[0].Bytes != 80 {
		t.Errorf("bindings %+v, want one with 2 packets, 80 bytes", c.Bindings)
	}
	answer := packet{protocol: lb.TCP, src: dip4, dst: client4, sport: 8080, dport: 40001, ack: true}
	want := answer
	want.src, want.sport = vip4, 80
	if _, out := e.run(e.host.objects.HostOut, frame(answer.bytes(t))); !bytes.Equal(out, frame(want.bytes(t))) {
		t.Error("flow state did not survive the new agent and the changed binding")
	}
	attached, err := HostAttached(e.dir)
	if err != nil || !attached {
		t.Errorf("attached %v, %v", attached, err)
	}
	must(t, e.host.Apply(HostState{}))
	left, err := readAll[hostBindingKey, hostBinding](e.host.objects.BoundMembers)
	if err != nil || len(left) != 0 {
		t.Errorf("bindings left %v, %v", left, err)
	}
	must(t, DetachHost(e.dir))
	if attached, err = HostAttached(e.dir); err != nil || attached {
		t.Errorf("after detaching: attached %v, %v", attached, err)
	}
}

func TestHostRefusesState(t *testing.T) {
	good := bind(lb.TCP, vip4, dip4, dip4, true)
	change := func(f func(*plan.Binding)) plan.Binding { b := good; f(&b); return b }
	for want, s := range map[string]HostState{
		"binding tcp 203.0.113.10:80 at 10.20.1.11: outer destination 10.20.1.11 is another member's already": {Bindings: []plan.Binding{good, good}},
		"binding tcp 203.0.113.10:80 at 10.20.1.11: vni: 1: not supported by this version, must be 0":         {Bindings: []plan.Binding{change(func(b *plan.Binding) { b.Key.VNI = 1 })}},
		"binding tcp 203.0.113.10:80 at 2001:db8:20:1::11: dip: 2001:db8:20:1::11: must be of the VIP's family": {Bindings: []plan.Binding{
			bind(lb.TCP, vip4, dip6, dip6, true)}},
		"binding tcp 203.0.113.10:80 at 10.20.1.11: port: 0: must be 1 to 65535": {Bindings: []plan.Binding{change(func(b *plan.Binding) { b.DIPPort = 0 })}},
		"65 tunnel sources beyond one of each family: at most 64 fit":            {TunnelSources: manyTunnelSources(66)},
	} {
		if _, err := wantedTables(s); err == nil || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}
