package dataplane

import (
	"net/netip"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/ring"
)

// TestHostAbandoned: a connection whose server owes an acknowledgement, or closed its side, and that was silent for longer than any retransmission takes, counts as
// none: it is untrusted until its client speaks again. Idle connections, and those whose server still retransmits, keep their class.
func TestHostAbandoned(t *testing.T) {
	e := newClockEnv(t)
	e.apply(bind(lb.TCP, vip4, dip4, dip4, true))
	const isn = 0x11223344
	key := lb.EndpointKey{VIP: netip.MustParseAddr(vip4), Protocol: lb.TCP, Port: 80}
	opened := func(p uint16) {
		e.in4(packet{sport: p, syn: true})
		e.out4(packet{dport: p, syn: true, ack: true, acked: isn + 1})
		e.in4(packet{sport: p, ack: true, seq: isn + 1, acked: isn + 1})
	}
	data := func(p uint16) { e.out4(packet{dport: p, ack: true, seq: isn + 1, acked: isn + 1, payload: "hello"}) }
	const idle, owes, pings, closed, acked, half = 1, 2, 3, 4, 5, 6
	for p := uint16(idle); p <= half; p++ {
		opened(p)
	}
	data(owes)
	data(pings)
	e.out4(packet{dport: closed, ack: true, fin: true, seq: isn + 1, acked: isn + 1})
	e.in4(packet{sport: closed, ack: true, seq: isn + 1, acked: isn + 2})
	data(acked)
	e.in4(packet{sport: acked, ack: true, seq: isn + 1, acked: isn + 6})
	e.in4(packet{sport: half, ack: true, fin: true, seq: isn + 1, acked: isn + 1})
	e.out4(packet{dport: half, ack: true, seq: isn + 1, acked: isn + 2})
	expect := func(when string, abandoned uint64, want map[uint16]FlowClass) {
		t.Helper()
		e.sweepAll()
		n := uint64(0)
		for p := uint16(idle); p <= half; p++ {
			class, known := want[p]
			if !known {
				class = FlowTrusted
			}
			if got := e.class(p); got != class {
				t.Errorf("%s: flow %d is of class %d, want %d", when, p, got, class)
			}
			if class == FlowTrusted {
				n++
			}
		}
		if got := e.connections()[key]; got != n || got != e.counted()[key] {
			t.Errorf("%s: %d connections, the table has %d, want %d", when, got, e.counted()[key], n)
		}
		if got := e.flowTotals().Abandoned; got != abandoned {
			t.Errorf("%s: %d were abandoned, want %d", when, got, abandoned)
		}
	}
	slack := lb.DefaultHostIdle.Established / flowIdleSlack
	e.later(abandonedAfter - 10*time.Second)
	expect("before its time", 0, nil)
	data(pings) // a retransmission, 20 s before the slack is over
	e.later(slack + 20*time.Second)
	gone := map[uint16]FlowClass{owes: FlowUntrusted, closed: FlowUntrusted}
	expect("after its time", 2, gone)
	expect("once more", 2, gone)
	// The server had paused.
	data(owes)
	expect("the server speaks", 2, gone)
	e.in4(packet{sport: owes, ack: true, seq: isn + 1, acked: isn + 6})
	expect("the client answers", 2, map[uint16]FlowClass{closed: FlowUntrusted})
	e.out4(packet{dport: closed, rst: true, seq: isn + 2})
	expect("the server refuses", 2, map[uint16]FlowClass{closed: FlowClosing})
}

// TestHostAbandonedRepairs: a packet whose cookie names another member goes there although a flow of its ports is known here, once the flow is closing or its server
// gave it up; of a flow whose client is there it does not.
func TestHostAbandonedRepairs(t *testing.T) {
	e := newClockEnv(t)
	b := baked(bind(lb.TCP, vip4, dip4, dip4, true))
	b.Member = 0
	f := e.baked4(40001)
	f.member = 0
	flow := packet{protocol: lb.TCP, src: client4, dst: vip4, sport: f.port, dport: 80, ack: true, payload: "x"}
	third := "10.20.9.12"
	r := displaced(b, flow, 0, 1, HostTarget{ID: 2, Outer: netip.MustParseAddr(third)})
	r.Turns = ring.Fold()
	must(t, e.host.Apply(HostState{
		TunnelSources: tunnelSources, MTU: 1500, Bindings: []plan.Binding{b}, Cookies: []plan.CookieKeys{bakedKeys(vip4, 1)}, Repairs: []*HostRepair{r},
	}))
	const isn = 0x11223344
	e.in4(packet{sport: f.port, syn: true, options: onSYN(7, 0)})
	e.out4(packet{dport: f.port, syn: true, ack: true, acked: isn + 1, options: onSYN(9, 7)})
	e.in4(packet{sport: f.port, ack: true, seq: isn + 1, acked: isn + 1})
	other := *f
	other.member = 2
	p := flow
	p.seq, p.options = 0x71234567, usual(8, f.n.Place(77, uint32(other.cookie(1)))) // outside the window of the connection
	in := tunnel(t, source4, dip4, p.bytes(t))
	if got := e.class(f.port); got != FlowTrusted {
		t.Fatalf("the flow is of class %d", got)
	}
	delivered := p
	delivered.dst, delivered.dport = dip4, 8080
	e.expect("of a flow whose client is there", in, verdictRedirect, frame(delivered.bytes(t)), "in_delivered", "cookie_foreign")
	e.out4(packet{dport: f.port, ack: true, seq: isn + 1, acked: isn + 1, options: usual(10, 7), payload: "hello"})
	e.later(abandonedAfter + lb.DefaultHostIdle.Established/flowIdleSlack + 10*time.Second)
	e.sweepAll()
	if got := e.class(f.port); got != FlowUntrusted {
		t.Fatalf("the flow is of class %d after the silence", got)
	}
	e.expect("given up", in, verdictRedirect, sentOn(in, host4, third, 2), "repaired_away")
	e.out4(packet{dport: f.port, rst: true, seq: isn + 1})
	if got := e.class(f.port); got != FlowClosing {
		t.Fatalf("the flow is of class %d after a RST", got)
	}
	e.expect("closing", in, verdictRedirect, sentOn(in, host4, third, 2), "repaired_away")
}

// TestAbandonedAfterTheSweepBegan: a flow whose last packet came after the sweep read the time is not abandoned.
func TestAbandonedAfterTheSweepBegan(t *testing.T) {
	const tick = 1 << 20
	table := &flowTable{binding: make([]hostBindingFlow, 1)}
	r := &hostFlowRecord{Scope: protocolTCP, Flags: uint16(hostFlowRecordFlagFLOW_FIN_OUT)}
	for seen, want := range map[uint32]bool{
		tick + 1: false, tick: false, tick - uint32(tagTick(abandonedAfter)): false, tick - uint32(tagTick(abandonedAfter)) - 2: true,
	} {
		if r.Seen = seen; table.abandoned(r, tick) != want {
			t.Errorf("last packet at tick %d of %d: abandoned is not %v", seen, tick, want)
		}
	}
}
