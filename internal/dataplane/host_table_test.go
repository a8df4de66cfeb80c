package dataplane

import (
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
	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
)

// later moves the programs' time on.
func (e *hostEnv) later(d time.Duration) {
	e.t.Helper()
	var now uint64
	must(e.t, e.host.objects.HostTestNow.Get(&now))
	e.setClock(time.Duration(now) + d)
}

// class is that of the TCP flow of a client's port to port 8080 of dip4, 0: there is none.
func (e *hostEnv) class(port uint16) FlowClass {
	e.t.Helper()
	r := flowOf(e, client4, dip4, port)
	_, tag, ok := e.host.flows.find(&r, e.tick())
	if !ok {
		return 0
	}
	return tag.class()
}

// in4 and out4 give a TCP segment of a client, or of its server, to the programs.
func (e *hostEnv) in4(p packet) int32 {
	e.t.Helper()
	p.protocol, p.src, p.dst, p.dport = lb.TCP, client4, vip4, 80
	verdict, _ := e.run(e.host.objects.HostIn, tunnel(e.t, source4, dip4, p.bytes(e.t)))
	return verdict
}

func (e *hostEnv) out4(p packet) {
	e.t.Helper()
	p.protocol, p.src, p.dst, p.sport = lb.TCP, dip4, client4, 8080
	e.run(e.host.objects.HostOut, frame(p.bytes(e.t)))
}

// TestHostFlowClasses: what a TCP flow's segments make of it.
func TestHostFlowClasses(t *testing.T) {
	e := newClockEnv(t)
	e.apply(bind(lb.TCP, vip4, dip4, dip4, true))
	const isn = 0x11223344 // of every segment that says no other
	opened := func(p uint16) {
		e.in4(packet{sport: p, syn: true})
		e.out4(packet{dport: p, syn: true, ack: true, acked: isn + 1})
		e.in4(packet{sport: p, ack: true, seq: isn + 1, acked: isn + 1})
	}
	for i, c := range []struct {
		name string
		do   func(port uint16)
		want FlowClass
	}{
		{"a SYN", func(p uint16) { e.in4(packet{sport: p, syn: true}) }, FlowUntrusted},
		{"SYNs", func(p uint16) { e.in4(packet{sport: p, syn: true}); e.in4(packet{sport: p, syn: true}) }, FlowUntrusted},
		{"SYN, SYN-ACK", func(p uint16) {
			e.in4(packet{sport: p, syn: true})
			e.out4(packet{dport: p, syn: true, ack: true})
		}, FlowUntrusted},
		{"SYN, SYN-ACK, an ACK that knows nothing", func(p uint16) {
			e.in4(packet{sport: p, syn: true})
			e.out4(packet{dport: p, syn: true, ack: true, acked: isn + 1})
			e.in4(packet{sport: p, ack: true, seq: isn + 1, acked: isn + 2})
			e.in4(packet{sport: p, ack: true, seq: isn + 1, acked: isn + 1 - 1<<16})
			e.in4(packet{sport: p, ack: true, seq: isn, acked: isn + 1})
			e.in4(packet{sport: p, ack: true, seq: isn + 1<<21, acked: isn + 1})
		}, FlowUntrusted},
		{"a challenge of the server is not an answer", func(p uint16) {
			e.in4(packet{sport: p, syn: true})
			e.out4(packet{dport: p, syn: true, ack: true, acked: isn + 1})
			e.out4(packet{dport: p, ack: true, seq: isn + 1, acked: isn + 1})
		}, FlowUntrusted},
		{"SYN, SYN-ACK, ACK", func(p uint16) { opened(p) }, FlowTrusted},
		{"a SYN-ACK again", func(p uint16) {
			opened(p)
			e.out4(packet{dport: p, syn: true, ack: true, acked: isn + 1})
		}, FlowTrusted},
		{"a stranger's SYN between SYN-ACK and ACK", func(p uint16) {
			e.in4(packet{sport: p, syn: true})
			e.out4(packet{dport: p, syn: true, ack: true, acked: isn + 1})
			e.in4(packet{sport: p, syn: true, seq: 77})
			e.out4(packet{dport: p, ack: true, seq: isn + 1, acked: isn + 1})
			e.in4(packet{sport: p, ack: true, seq: isn + 1, acked: isn + 1})
		}, FlowTrusted},
		{"SYN cookies: the server answers a stranger's SYN too", func(p uint16) {
			e.in4(packet{sport: p, syn: true})
			e.out4(packet{dport: p, syn: true, ack: true, acked: isn + 1})
			e.in4(packet{sport: p, syn: true, seq: 77})
			e.out4(packet{dport: p, syn: true, ack: true, seq: 0xf0000000, acked: 78})
			e.in4(packet{sport: p, ack: true, seq: isn + 1, acked: isn + 1})
			e.out4(packet{dport: p, ack: true, seq: isn + 1, acked: isn + 1, payload: "hello"})
			e.in4(packet{sport: p, ack: true, seq: isn + 1, acked: isn + 6})
		}, FlowTrusted},
		{"met half way", func(p uint16) { e.in4(packet{sport: p, ack: true}) }, FlowUntrusted},
		{"met half way, answered", func(p uint16) {
			e.in4(packet{sport: p, ack: true})
			e.out4(packet{dport: p, ack: true})
		}, FlowTrusted},
		{"met half way, refused", func(p uint16) {
			e.in4(packet{sport: p, ack: true})
			e.out4(packet{dport: p, rst: true})
		}, FlowClosing},
		{"a RST of the client", func(p uint16) {
			e.in4(packet{sport: p, ack: true})
			e.out4(packet{dport: p, ack: true, acked: isn})
			e.in4(packet{sport: p, rst: true, seq: isn})
		}, FlowClosing},
		{"a RST one ahead", func(p uint16) { opened(p); e.in4(packet{sport: p, rst: true, seq: isn + 2}) }, FlowTrusted},
		{"a RST one behind", func(p uint16) { opened(p); e.in4(packet{sport: p, rst: true, seq: isn}) }, FlowTrusted},
		{"a RST behind data", func(p uint16) {
			opened(p)
			e.in4(packet{sport: p, ack: true, seq: isn + 1, acked: isn + 1, payload: "data"})
			e.in4(packet{sport: p, rst: true, seq: isn + 5})
		}, FlowClosing},
		{"a RST behind data with a gap before it", func(p uint16) {
			opened(p)
			e.in4(packet{sport: p, ack: true, seq: isn + 11, acked: isn + 1, payload: "data"})
			e.in4(packet{sport: p, rst: true, seq: isn + 15})
		}, FlowTrusted},
		{"a RST behind data that acknowledges too much", func(p uint16) {
			opened(p)
			e.in4(packet{sport: p, ack: true, seq: isn + 1, acked: isn + 2, payload: "data"})
			e.in4(packet{sport: p, rst: true, seq: isn + 5})
		}, FlowTrusted},
		{"a RST where a gap was closed", func(p uint16) {
			opened(p)
			e.in4(packet{sport: p, ack: true, seq: isn + 11, acked: isn + 1, payload: "data"})
			e.in4(packet{sport: p, ack: true, seq: isn + 1, acked: isn + 1, payload: "0123456789"})
			e.out4(packet{dport: p, ack: true, seq: isn + 1, acked: isn + 15})
			e.in4(packet{sport: p, rst: true, seq: isn + 15})
		}, FlowClosing},
		{"met with a RST", func(p uint16) { e.in4(packet{sport: p, rst: true, seq: isn}) }, FlowClosing},
		{"met with a RST that the server does not accept", func(p uint16) {
			e.in4(packet{sport: p, rst: true, seq: isn})
			e.out4(packet{dport: p, ack: true, acked: isn + 9})
		}, FlowTrusted},
		{"met with a RST that it accepts, data crosses", func(p uint16) {
			e.in4(packet{sport: p, rst: true, seq: isn})
			e.out4(packet{dport: p, ack: true, acked: isn, payload: "data"})
		}, FlowClosing},
		{"a RST of the server to a stranger", func(p uint16) {
			e.in4(packet{sport: p, syn: true})
			e.out4(packet{dport: p, syn: true, ack: true, acked: isn + 1})
			e.in4(packet{sport: p, ack: true, seq: isn + 1, acked: 77})
			e.out4(packet{dport: p, rst: true, seq: 77})
		}, FlowUntrusted},
		{"a RST of the server", func(p uint16) { opened(p); e.out4(packet{dport: p, rst: true, seq: isn + 1}) }, FlowClosing},
		{"the server refuses", func(p uint16) {
			e.in4(packet{sport: p, syn: true})
			e.out4(packet{dport: p, rst: true, ack: true, acked: isn + 1})
		}, FlowClosing},
		{"FINs, the client's before its data", func(p uint16) {
			opened(p)
			e.in4(packet{sport: p, ack: true, seq: isn + 5, acked: isn + 1, fin: true})
			e.in4(packet{sport: p, ack: true, seq: isn + 1, acked: isn + 1, payload: "data"})
			e.out4(packet{dport: p, ack: true, seq: isn + 1, acked: isn + 6, fin: true})
		}, FlowClosing},
		{"FINs, the client's forged", func(p uint16) {
			opened(p)
			e.in4(packet{sport: p, ack: true, seq: isn + 5, acked: isn + 1, fin: true})
			e.in4(packet{sport: p, ack: true, seq: isn, acked: isn + 1, fin: true})
			e.in4(packet{sport: p, ack: true, seq: isn + 1, acked: isn + 9, fin: true})
			e.in4(packet{sport: p, seq: isn + 1, fin: true})
			e.out4(packet{dport: p, ack: true, seq: isn + 1, acked: isn + 1, fin: true})
		}, FlowTrusted},
		{"a FIN one way", func(p uint16) {
			e.in4(packet{sport: p, ack: true})
			e.out4(packet{dport: p, ack: true, acked: isn})
			e.in4(packet{sport: p, ack: true, fin: true})
			e.out4(packet{dport: p, ack: true, payload: "more"})
		}, FlowTrusted},
		{"a FIN each way", func(p uint16) {
			e.in4(packet{sport: p, ack: true})
			e.out4(packet{dport: p, ack: true, acked: isn, fin: true})
			e.in4(packet{sport: p, ack: true, acked: isn + 1, fin: true})
		}, FlowClosing},
		{"a SYN after the end", func(p uint16) {
			e.in4(packet{sport: p, ack: true})
			e.out4(packet{dport: p, rst: true})
			e.in4(packet{sport: p, syn: true})
		}, FlowClosing},
		{"a SYN after the end, answered", func(p uint16) {
			e.in4(packet{sport: p, ack: true})
			e.out4(packet{dport: p, rst: true})
			e.in4(packet{sport: p, syn: true})
			e.out4(packet{dport: p, syn: true, ack: true, acked: isn + 1})
		}, FlowUntrusted},
		{"a SYN into a flow that the server takes for over", func(p uint16) {
			opened(p)
			e.in4(packet{sport: p, syn: true, seq: 77})
			e.out4(packet{dport: p, syn: true, ack: true, seq: 99, acked: 78})
		}, FlowUntrusted},
		{"a SYN into a flow that goes on", func(p uint16) {
			e.in4(packet{sport: p, ack: true})
			e.out4(packet{dport: p, ack: true})
			e.in4(packet{sport: p, syn: true})
		}, FlowTrusted},
	} {
		port := uint16(1000 + i)
		c.do(port)
		if got := e.class(port); got != c.want {
			t.Errorf("%s: class %d, want %d", c.name, got, c.want)
		}
	}
}

// TestHostFlowExpires: a flow ends with its idle time, a packet either way makes it live on, and sweeps take out what is over.
func TestHostFlowExpires(t *testing.T) {
	e := newClockEnv(t)
	e.apply(bind(lb.TCP, vip4, dip4, dip4, true))
	idle := lb.DefaultHostIdle
	const tick = time.Second << 30 / 1e9
	e.in4(packet{sport: 1, syn: true})
	e.in4(packet{sport: 2, ack: true})
	e.out4(packet{dport: 2, ack: true})
	e.later(idle.Opening - 2*tick)
	if e.class(1) != FlowUntrusted {
		t.Error("an opening flow ended too early")
	}
	e.later(4 * tick)
	if e.class(1) != 0 || e.class(2) != FlowTrusted {
		t.Errorf("after a minute: classes %d, %d", e.class(1), e.class(2))
	}
	// Halfway an answer, and later a packet of the client.
	e.later(idle.Established / 2)
	e.out4(packet{dport: 2, ack: true})
	e.later(idle.Established * 3 / 4)
	e.in4(packet{sport: 2, ack: true})
	e.later(idle.Established * 3 / 4)
	if e.class(2) != FlowTrusted {
		t.Error("a flow with packets ended")
	}
	if tags := e.tags(); tags != 2 {
		t.Errorf("%d tags before the sweep, want 2", tags)
	}
	e.sweepAll()
	if got := e.flowTotals(); got.ByClass[FlowTrusted] != 1 || got.ByClass[FlowUntrusted] != 0 || got.Expired != 1 || e.tags() != 1 {
		t.Errorf("after a sweep: %+v, %d tags", got, e.tags())
	}
	e.later(idle.Established/4 + 2*tick)
	before := e.reasons(nil)
	answer := packet{protocol: lb.TCP, src: dip4, dst: client4, sport: 8080, dport: 2, ack: true}
	if _, out := e.run(e.host.objects.HostOut, frame(answer.bytes(t))); string(out) != string(frame(answer.bytes(t))) {
		t.Error("the answer of a flow that is over was translated")
	}
	if got := e.reasons(before); got["pass_not_ours"] != 1 {
		t.Errorf("reasons %v", got)
	}
	e.sweepAll()
	if got := e.flowTotals(); got.Expired != 2 || e.tags() != 0 {
		t.Errorf("after all: %+v, %d tags", got, e.tags())
	}
}

func (e *hostEnv) tags() (n int) {
	for b := range e.host.flows.tags {
		for _, tag := range e.host.flows.tags[b].Tags {
			if tag != 0 {
				n++
			}
		}
	}
	return n
}

// sweepAll is a whole pass at the programs' time.
func (e *hostEnv) sweepAll() {
	e.t.Helper()
	e.host.now = func() time.Duration { return time.Duration(e.tick() << hostFlowTagFLOW_TAG_TICK_SHIFT) }
	must(e.t, e.host.SweepStep())
	for e.host.sweep.at != 0 {
		must(e.t, e.host.SweepStep())
	}
}

func (e *hostEnv) flowTotals() HostFlows {
	e.t.Helper()
	c, err := e.host.Counters()
	must(e.t, err)
	return c.Flows
}

// TestHostFlood: SYNs and packets out of nowhere, however many, take no place of a flow that is trusted; the next flow then is refused or takes the
// place of one of them, and is served.
func TestHostFlood(t *testing.T) {
	e := newClockEnv(t)
	e.apply(bind(lb.TCP, vip4, dip4, dip4, true))
	const kept = 2000
	must(t, netdev.In(e.namespace, func() error {
		for port := range uint16(kept) {
			e.in4(packet{sport: port + 1, ack: true})
			e.out4(packet{dport: port + 1, ack: true})
		}
		syn := tunnel(t, source4, dip4, packet{protocol: lb.TCP, src: client4, dst: vip4, sport: 1, dport: 80, syn: true}.bytes(t))
		ack := tunnel(t, source4, dip4, packet{protocol: lb.TCP, src: client4, dst: vip4, sport: 1, dport: 80, ack: true}.bytes(t))
		for i := range uint32(4 * MinHostFlows) {
			f := syn
			if i%2 == 1 {
				f = ack
			}
			// Another client: what the checksum says of it is nobody's business here.
			f[34+12], f[34+13], f[34+14], f[34+15] = 100, byte(i>>16), byte(i>>8), byte(i)
			if _, err := e.host.objects.HostIn.Run(&ebpf.RunOptions{Data: f, Context: skbContext{Ifindex: uint32(e.ifindex)}}); err != nil {
				return err
			}
		}
		return nil
	}))
	for port := range uint16(kept) {
		if e.class(port+1) != FlowTrusted {
			t.Fatalf("flow %d was lost to a flood", port)
		}
	}
	e.sweepAll()
	got, reasons := e.flowTotals(), e.reasons(nil)
	if got.ByClass[FlowTrusted] != kept || got.ByClass[FlowUntrusted] > uint64(MinHostFlows)/2 || got.ByClass[FlowUntrusted] < uint64(MinHostFlows)*2/5 {
		t.Errorf("flows %+v: want %d trusted, and nearly half of %d untrusted", got.ByClass, kept, MinHostFlows)
	}
	if reasons["flow_evicted"] == 0 {
		t.Errorf("reasons %v: nothing was evicted", reasons)
	}
	if v := e.in4(packet{sport: 50000, syn: true}); v != verdictRedirect || e.class(50000) != FlowUntrusted {
		t.Errorf("a new flow after the flood: verdict %d, class %d", v, e.class(50000))
	}
}

// TestHostFull: where both buckets are full of trusted flows a new one is refused and counted.
func TestHostFull(t *testing.T) {
	e := newClockEnv(t)
	e.apply(bind(lb.TCP, vip4, dip4, dip4, true))
	for i := range uint32(10 * MinHostFlows) {
		r := flowOf(e, client4, dip4, uint16(i))
		r.Client[15], r.Client[14] = byte(i>>16), 9
		e.host.flows.insert(r, hostEvc{}, FlowTrusted, e.tick()+1000, e.tick())
	}
	if n := e.tags(); n != int(MinHostFlows) {
		t.Fatalf("%d flows, want %d", n, MinHostFlows)
	}
	p := packet{protocol: lb.TCP, src: client4, dst: vip4, sport: 40001, dport: 80, syn: true}
	e.expect("full", tunnel(t, source4, dip4, p.bytes(t)), verdictDrop, nil, "in_state_full")
	e.later(1100 << hostFlowTagFLOW_TAG_TICK_SHIFT)
	got := p
	got.dst, got.dport = dip4, 8080
	e.expect("when all are over", tunnel(t, source4, dip4, p.bytes(t)), verdictRedirect, frame(got.bytes(t)), "in_delivered")
}

// TestHostAddresses: the address of a binding that left keeps its number while a flow names it, and gives it up after.
func TestHostAddresses(t *testing.T) {
	e := newClockEnv(t)
	a, b := bind(lb.TCP, vip4, dip4, dip4, true), bind(lb.TCP, "203.0.113.77", dip4, dip4, true)
	e.apply(a, b)
	e.in4(packet{sport: 1, ack: true})
	e.apply(b)
	n := e.host.flows.addrs.numbers[a.Key.VIP.As16()]
	answer := packet{protocol: lb.TCP, src: dip4, dst: client4, sport: 8080, dport: 1, ack: true}
	want := answer
	want.src, want.sport = vip4, 80
	for range 3 {
		e.sweepAll()
		e.answered("while its flow lives", frame(answer.bytes(t)), verdictNext, frame(want.bytes(t)), "out_returned")
	}
	e.open()
	e.quiet()
	e.setClock(8 * time.Hour)
	for range 2 {
		if e.host.flows.addrs.cells[n] != a.Key.VIP.As16() {
			t.Fatal("the address is gone before two sweeps missed it")
		}
		e.sweepAll()
	}
	if got := e.host.flows.addrs.cells[n]; got != [16]byte{} {
		t.Errorf("the address %v is still there", netip.AddrFrom16(got))
	}
	c := bind(lb.TCP, "203.0.113.78", dip4, dip4, true)
	e.apply(b, c)
	if got := e.host.flows.addrs.numbers[c.Key.VIP.As16()]; got != n {
		t.Errorf("the next address has number %d, want %d", got, n)
	}
}

// hostModelFlow is a flow in the naive model: who it is for, and its port at the server.
type hostModelFlow struct {
	vip    string
	port   uint16 // the client's
	server uint16
	until  uint64
	// answered says that its server did: its class is another one then, which is written with the time.
	answered bool
}

// TestHostTableModel compares long random sequences of packets with a naive map: UDP of few clients by two VIPs to one DIP, in an order and with
// pauses that make flows collide, end and come back.
func TestHostTableModel(t *testing.T) {
	e := newClockEnv(t)
	second := "203.0.113.77"
	e.apply(bind(lb.UDP, vip4, dip4, dip4, true), bind(lb.UDP, second, dip4, dip4, true))
	seed := rand.Uint64()
	if s := os.Getenv("SHUNT_TEST_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		must(t, err)
	}
	t.Logf("SHUNT_TEST_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 2))
	idle := uint64(idleTicks(lb.DefaultHostIdle.UDP))
	byServer := map[uint16]*hostModelFlow{}
	live := func(f *hostModelFlow) bool { return f != nil && f.until >= e.tick() }
	touch := func(f *hostModelFlow) {
		// As coarse as the table.
		if left := f.until - e.tick(); left+idle>>6 < idle {
			f.until = e.tick() + idle
		}
	}
	find := func(vip string, port uint16) *hostModelFlow {
		for _, f := range byServer {
			if live(f) && f.vip == vip && f.port == port {
				return f
			}
		}
		return nil
	}
	for step := range 6000 {
		if random.IntN(8) == 0 {
			e.later(time.Duration(random.IntN(40)) * time.Second)
		}
		port := uint16(1 + random.IntN(60))
		vip := []string{vip4, second}[random.IntN(2)]
		if random.IntN(3) > 0 {
			p := packet{protocol: lb.UDP, src: client4, dst: vip, sport: port, dport: 53, payload: "q"}
			verdict, out := e.run(e.host.objects.HostIn, tunnel(t, source4, dip4, p.bytes(t)))
			server := uint16(out[34])<<8 | uint16(out[35])
			f := find(vip, port)
			switch {
			case verdict != verdictRedirect:
				t.Fatalf("step %d: verdict %d", step, verdict)
			case f != nil && server != f.server:
				t.Fatalf("step %d: %s port %d goes by %d, before by %d", step, vip, port, server, f.server)
			case f == nil && live(byServer[server]):
				t.Fatalf("step %d: %s port %d goes by %d, which is of %+v", step, vip, port, server, *byServer[server])
			case f == nil && server != port && !live(byServer[port]):
				t.Fatalf("step %d: %s port %d goes by %d without need", step, vip, port, server)
			case f == nil:
				f = &hostModelFlow{vip: vip, port: port, server: server, until: e.tick() + idle}
				byServer[server] = f
			}
			touch(f)
			continue
		}
		// An answer to some server port, known or not.
		server := port
		if n := random.IntN(len(byServer) + 1); n > 0 {
			server = slices.Sorted(maps.Keys(byServer))[n-1]
		}
		p := packet{protocol: lb.UDP, src: dip4, dst: client4, sport: 5353, dport: server, payload: "a"}
		want := p
		if f := byServer[server]; live(f) {
			want.src, want.sport, want.dport = f.vip, 53, f.port
			if !f.answered {
				f.answered, f.until = true, e.tick()+idle
			}
			touch(f)
		}
		if _, out := e.run(e.host.objects.HostOut, frame(p.bytes(t))); string(out) != string(frame(want.bytes(t))) {
			t.Fatalf("step %d: answer to %d\n% x, want\n% x", step, server, out, frame(want.bytes(t)))
		}
	}
}

// TestHostTableRaces: two CPUs begin the same flows at the same time. Each flow is in the table once, with the client port that both gave it, and no two
// have one.
func TestHostTableRaces(t *testing.T) {
	e := newHostEnv(t)
	e.flows = 1 << 16 // nothing is evicted
	e.open()
	e.quiet()
	second := "203.0.113.77"
	e.apply(bind(lb.TCP, vip4, dip4, dip4, true), bind(lb.TCP, second, dip4, dip4, true))
	const flows = 1500
	frames := map[string][][]byte{}
	for _, vip := range []string{vip4, second} {
		for port := range uint16(flows) {
			p := packet{protocol: lb.TCP, src: client4, dst: vip, sport: port + 1, dport: 80, ack: true}
			frames[vip] = append(frames[vip], tunnel(t, source4, dip4, p.bytes(t)))
		}
	}
	ports := map[string][]uint16{vip4: make([]uint16, flows), second: make([]uint16, flows)}
	var wg sync.WaitGroup
	errs := make(chan error, 2*runtime.NumCPU())
	var mu sync.Mutex
	for cpu := range runtime.NumCPU() {
		order := []string{vip4, second}
		if cpu%2 == 1 {
			order = []string{second, vip4}
		}
		wg.Go(func() {
			runtime.LockOSThread() // of the namespace, and not given back
			var set unix.CPUSet
			set.Set(cpu)
			if err := unix.SchedSetaffinity(0, &set); err != nil {
				errs <- err
				return
			}
			errs <- netdev.In(e.namespace, func() error {
				for i := range flows {
					for _, vip := range order {
						opts := &ebpf.RunOptions{Data: frames[vip][i], DataOut: make([]byte, 256), Context: skbContext{Ifindex: uint32(e.ifindex)}}
						verdict, err := e.host.objects.HostIn.Run(opts)
						if err != nil {
							return err
						}
						if int32(verdict) != verdictRedirect {
							continue // counted: too many gave way
						}
						port := uint16(opts.DataOut[34])<<8 | uint16(opts.DataOut[35])
						mu.Lock()
						if had := ports[vip][i]; had != 0 && had != port {
							mu.Unlock()
							return fmt.Errorf("%s port %d goes by %d and by %d", vip, i+1, had, port)
						}
						ports[vip][i] = port
						mu.Unlock()
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
	seen := map[flowName]bool{}
	inbound := 0
	e.host.flows.all(e.tick(), func(_ flowTag, r *hostFlowRecord) {
		if n := nameOf(r); seen[n] {
			t.Errorf("%+v is there twice", n)
		} else {
			seen[n] = true
		}
		if r.Kind == uint8(hostFlowKindFLOW_INBOUND) {
			inbound++
		}
	})
	if inbound != 2*flows {
		t.Errorf("%d flows, want %d", inbound, 2*flows)
	}
}
