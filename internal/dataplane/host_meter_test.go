package dataplane

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
)

// metered is the meter of a server.
func (e *hostEnv) metered(dip string) ServerMeter {
	e.t.Helper()
	c, err := e.host.Counters()
	must(e.t, err)
	for _, m := range c.Servers {
		if m.DIP == netip.MustParseAddr(dip) {
			return m
		}
	}
	e.t.Fatalf("server %s is not metered: %+v", dip, c.Servers)
	return ServerMeter{}
}

// meterModel is what should have been counted, added up packet by packet.
type meterModel struct {
	e    *hostEnv
	want map[string]*ServerMeter
}

func (m meterModel) of(dip string) *ServerMeter {
	if m.want[dip] == nil {
		m.want[dip] = &ServerMeter{DIP: netip.MustParseAddr(dip)}
	}
	return m.want[dip]
}

// in gives a frame to host_in, of which the server gets an IP packet of n bytes.
func (m meterModel) in(dip string, f []byte, n int) {
	m.e.t.Helper()
	if v, _ := m.e.run(m.e.host.objects.HostIn, f); v == verdictDrop {
		m.e.t.Fatalf("dropped: %v", m.e.reasons(nil))
	}
	w := m.of(dip)
	w.In.Packets++
	w.In.Bytes += uint64(n)
}

// out gives an IP packet of a server to host_out.
func (m meterModel) out(dip string, ip []byte) {
	m.e.t.Helper()
	m.e.run(m.e.host.objects.HostOut, frame(ip))
	w := m.of(dip)
	w.Out.Packets++
	w.Out.Bytes += uint64(len(ip))
}

func (m meterModel) check(when string) {
	m.e.t.Helper()
	for dip, want := range m.want {
		if got := m.e.metered(dip); got != *want {
			m.e.t.Errorf("%s: %+v, want %+v", when, got, *want)
		}
	}
}

// TestServerMeters: each packet of a client to a server and each of its answers is counted once, by its length between the two, whatever
// way it comes: both families, TCP and UDP, IPIP and GUE, fragments, ICMP errors, VIPs that servers own. What is none of a VIP is not.
func TestServerMeters(t *testing.T) {
	e := newClockEnv(t)
	second := "203.0.113.77"
	e.apply(bind(lb.TCP, vip4, dip4, dip4, true), bind(lb.UDP, vip4, dip4, dip4, true), bind(lb.TCP, second, dip4, dip4, true),
		gue(5, bind(lb.UDP, vip6, host6, dip6, true)), bind(lb.UDP, owned4, host4, host4, false))
	m := meterModel{e, map[string]*ServerMeter{}}

	syn := packet{protocol: lb.TCP, src: client4, dst: vip4, sport: 1, dport: 80, syn: true}
	answer := packet{protocol: lb.TCP, src: dip4, dst: client4, sport: 8080, dport: 1, syn: true, ack: true}
	m.in(dip4, tunnel(t, source4, dip4, syn.bytes(t)), 40)
	m.of(dip4).FlowsIn++
	m.in(dip4, tunnel(t, source4, dip4, syn.bytes(t)), 40)
	m.out(dip4, answer.bytes(t))
	answer.syn, answer.payload = false, "an answer"
	m.out(dip4, answer.bytes(t))
	// By another VIP: another flow, by another port of the client.
	other := packet{protocol: lb.TCP, src: client4, dst: second, sport: 1, dport: 80, ack: true, payload: "abc"}
	m.in(dip4, tunnel(t, source4, dip4, other.bytes(t)), 43)
	m.of(dip4).FlowsIn++
	m.check("tcp")

	datagram := packet{protocol: lb.UDP, src: client6, dst: vip6, sport: 7, dport: 53, payload: "question"}
	m.in(dip6, gueTunnel(t, source6, host6, 5, datagram.bytes(t)), 56)
	m.of(dip6).FlowsIn++
	m.out(dip6, packet{protocol: lb.UDP, src: dip6, dst: client6, sport: 5353, dport: 7, payload: "an answer"}.bytes(t))
	m.check("udp")

	big := packet{protocol: lb.UDP, src: client4, dst: vip4, sport: 9, dport: 53, payload: string(make([]byte, 200))}
	for _, f := range cut(big.bytes(t), 77, 64, 128) {
		m.in(dip4, tunnel(t, source4, dip4, f), len(f))
	}
	m.of(dip4).FlowsIn++
	large := packet{protocol: lb.UDP, src: dip4, dst: client4, sport: 5353, dport: 9, payload: string(make([]byte, 100))}
	for _, f := range cut(large.bytes(t), 78, 64) {
		m.out(dip4, f)
	}
	m.check("fragments")

	sent := packet{protocol: lb.UDP, src: vip4, dst: client4, sport: 53, dport: 9, payload: "late"}
	problem := icmp(t, router4, vip4, 3, 1, 0, sent.bytes(t))
	m.in(dip4, tunnel(t, source4, dip4, problem), len(problem))
	m.out(dip4, icmp(t, dip4, client4, 3, 3, 0, packet{protocol: lb.UDP, src: client4, dst: dip4, sport: 9, dport: 5353}.bytes(t)))
	m.check("icmp")

	m.in(host4, tunnel(t, source4, host4, packet{protocol: lb.UDP, src: client4, dst: owned4, sport: 5, dport: 53}.bytes(t)), 28)
	m.check("a VIP that its server owns")

	e.run(e.host.objects.HostOut, frame(packet{protocol: lb.UDP, src: dip4, dst: client4, sport: 1234, dport: 99}.bytes(t)))
	e.run(e.host.objects.HostIn, frame(packet{protocol: lb.UDP, src: client4, dst: dip4, sport: 99, dport: 1234}.bytes(t)))
	m.check("what is of no VIP")

	e.open()
	e.quiet()
	e.apply(bind(lb.TCP, vip4, dip4, dip4, true))
	if got := e.metered(dip4); got != *m.want[dip4] {
		t.Errorf("after another start, with fewer endpoints: %+v, want %+v", got, *m.want[dip4])
	}
}

// gsoContext is struct __sk_buff up to gso_size.
type gsoContext struct {
	skbContext
	_        [30]uint32
	Segments uint32
	_        [2]uint32
	Size     uint32
	_        [3]uint32
}

// TestServerMeterSegments: a packet that stands for several counts as those, each with headers of its own.
func TestServerMeterSegments(t *testing.T) {
	e := newClockEnv(t)
	e.apply(bind(lb.TCP, vip4, dip4, dip4, true))
	e.in4(packet{sport: 1, ack: true})
	const size, payload, headers = 100, 350, 40
	p := packet{protocol: lb.TCP, src: dip4, dst: client4, sport: 8080, dport: 1, ack: true, payload: string(make([]byte, payload))}
	super := &gsoContext{Segments: 4, Size: size}
	super.Ifindex = uint32(e.ifindex)
	run := func(program *ebpf.Program, f []byte) {
		must(t, netdev.In(e.namespace, func() error {
			_, err := program.Run(&ebpf.RunOptions{Data: f, DataOut: make([]byte, len(f)+2048), Context: super})
			return err
		}))
	}
	run(e.host.objects.HostOut, frame(p.bytes(t)))
	if got, want := e.metered(dip4).Out, (Counter{Packets: 4, Bytes: payload + 4*headers}); got != want {
		t.Errorf("sent %+v, want %+v", got, want)
	}
	// The size that the kernel says is not of what the packet has beyond its headers.
	super.Size = 1448
	run(e.host.objects.HostOut, frame(p.bytes(t)))
	if got, want := e.metered(dip4).Out, (Counter{Packets: 5, Bytes: 2*payload + 5*headers}); got != want {
		t.Errorf("sent %+v, want %+v", got, want)
	}
	super.Size = size
	before := e.metered(dip4).In
	run(e.host.objects.HostIn, tunnel(t, source4, dip4, packet{protocol: lb.TCP, src: client4, dst: vip4, sport: 1, dport: 80, ack: true, payload: p.payload}.bytes(t)))
	got := e.metered(dip4).In
	if got.Packets-before.Packets != 4 || got.Bytes-before.Bytes != payload+4*headers {
		t.Errorf("got %+v after %+v", got, before)
	}
}

// TestServerMeterOfAnother: a server whose address gets the number of one that left begins at zero.
func TestServerMeterOfAnother(t *testing.T) {
	e := newClockEnv(t)
	e.apply(bind(lb.UDP, vip4, dip4, dip4, true))
	e.run(e.host.objects.HostIn, tunnel(t, source4, dip4, packet{protocol: lb.UDP, src: client4, dst: vip4, sport: 1, dport: 53}.bytes(t)))
	number := e.host.flows.addrs.numbers[netip.MustParseAddr(dip4).As16()]
	if got := e.metered(dip4); got.In.Packets != 1 || got.FlowsIn != 1 {
		t.Fatalf("%+v", got)
	}
	e.apply()
	e.later(lb.DefaultHostIdle.UDP * 2)
	for range 3 {
		e.sweepAll()
	}
	free := e.host.flows.addrs.free
	at := slices.Index(free, number)
	if at < 0 {
		t.Fatalf("number %d is not free", number)
	}
	last := len(free) - 1
	free[at], free[last] = free[last], free[at]
	e.apply(bind(lb.UDP, vip4, narrow4, narrow4, true))
	if got := e.host.flows.addrs.numbers[netip.MustParseAddr(narrow4).As16()]; got != number {
		t.Fatalf("the next server has number %d, want %d", got, number)
	}
	if got := e.metered(narrow4); got != (ServerMeter{DIP: got.DIP}) {
		t.Errorf("%+v before anything was sent", got)
	}
}

// TestServersBeyondMeters: a server whose number is beyond the meters is served, and told as not metered.
func TestServersBeyondMeters(t *testing.T) {
	e := newClockEnv(t)
	free := e.host.flows.addrs.free
	e.host.flows.addrs.free = free[:len(free)-int(hostMaxMeters)]
	e.apply(bind(lb.UDP, vip4, dip4, dip4, true))
	f := tunnel(t, source4, dip4, packet{protocol: lb.UDP, src: client4, dst: vip4, sport: 1, dport: 53}.bytes(t))
	if v, _ := e.run(e.host.objects.HostIn, f); v != verdictRedirect {
		t.Errorf("verdict %d", v)
	}
	c, err := e.host.Counters()
	must(t, err)
	if len(c.Servers) != 0 || c.Unmetered != 1 {
		t.Errorf("servers %+v, %d not metered", c.Servers, c.Unmetered)
	}
}

// TestServerMetersSNAT: what a server opens by itself, with a VIP, counts as begun by the server, both ways, and as no client's connection.
func TestServerMetersSNAT(t *testing.T) {
	e := newSNATEnv(t, 200)
	syn := packet{protocol: lb.TCP, src: dip4, dst: far4, sport: 40001, dport: 443, syn: true}
	port := e.leaves("SYN", syn, 0)
	ack := packet{protocol: lb.TCP, src: dip4, dst: far4, sport: 40001, dport: 443, ack: true, payload: "hello"}
	e.returns("SYN-ACK", packet{protocol: lb.TCP, src: far4, dst: vip4, sport: 443, dport: port, syn: true, ack: true, acked: 0x11223345}, 40001, e.byIPIP)
	e.leaves("ACK", ack, 0)
	want := ServerMeter{DIP: netip.MustParseAddr(dip4), In: Counter{Packets: 1, Bytes: 40}, Out: Counter{Packets: 2, Bytes: 85}, FlowsOut: 1}
	if got := e.metered(dip4); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	for key, n := range e.connections() {
		if n != 0 {
			t.Errorf("%s %s has %d connections of clients", key.Protocol, key.VIP, n)
		}
	}
}
