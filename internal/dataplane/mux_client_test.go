package dataplane

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/ring"
	"github.com/shuntlb/shunt/internal/wire"
)

// clientFixture is an endpoint that remembers flows and the /24 of their clients.
type clientFixture struct {
	policyFixture
	e MuxEndpoint
}

func newClientFixture(t *testing.T) *clientFixture {
	e := endpointOf(muxVIP4, lb.TCP, 80, threeServers...)
	e.Affinity, e.SourcePrefix4, e.SourceFor = AffinityFlow, 24, 5*time.Minute
	e.Idle = lb.Idle{Untrusted: 30 * time.Second, Trusted: 2 * time.Minute}
	return &clientFixture{newPolicyFixture(t, MuxState{Endpoints: []MuxEndpoint{e}}), e}
}

// send sends a segment of a flow of client i of the prefix: the member it went to.
func (f *clientFixture) send(prefix, i byte, port uint16, flags uint8) uint16 {
	f.t.Helper()
	p := tcp4(80)
	p.Src = netip.AddrFrom4([4]byte{198, 51, prefix, i})
	p.Payload = wire.TCP{SrcPort: port, DstPort: 80, Flags: flags}
	return f.sendTo(p)
}

// sendTo sends a packet that must be forwarded: the member it went to.
func (f *clientFixture) sendTo(p wire.Packet) uint16 {
	f.t.Helper()
	verdict, out := f.run(p.Frame())
	if verdict != xdpTX {
		f.t.Fatalf("verdict %d: %v", verdict, f.reasonsNow())
	}
	for _, m := range f.e.Members {
		if m.Outer == netip.AddrFrom4([4]byte(out[30:34])) {
			return m.ID
		}
	}
	f.t.Fatal("sent to no member")
	return 0
}

// weigh gives the endpoint a ring of these members; the others drain.
func (f *clientFixture) weigh(ids ...uint16) {
	f.t.Helper()
	var members []ring.Member
	for i := range f.e.Members {
		m := &f.e.Members[i]
		m.Choosable = false
		for _, id := range ids {
			if m.ID == id {
				m.Choosable = true
				members = append(members, ring.Member{ID: id, DIP: m.Outer, Port: 8080, Weight: 1})
			}
		}
	}
	f.e.Ring = ring.Build(f.e.RingCode, members)
	must(f.t, f.mux.Apply(f.with(MuxState{Endpoints: []MuxEndpoint{f.e}})))
}

// entries counts the flows and the clients that Flows tells of.
func (f *clientFixture) entries() string {
	f.t.Helper()
	all, err := f.mux.listFlows(f.e.Key, 1000)
	must(f.t, err)
	flows, clients := 0, 0
	for _, fl := range all {
		if fl.Source {
			clients++
		} else {
			flows++
		}
	}
	return fmt.Sprintf("%d flows, %d clients", flows, clients)
}

// pass lets seconds pass.
func (f *clientFixture) pass(seconds uint64) {
	f.setNow(f.model.policy.now + seconds*f.mux.tables.guards.hz)
}

// TestClientIsRemembered: new flows go where the client's flows went, though the ring says otherwise since; established
// flows stay with a draining member, new ones do not go there.
func TestClientIsRemembered(t *testing.T) {
	f := newClientFixture(t)
	f.weigh(0)
	if m := f.send(1, 1, 1000, wire.SYN); m != 0 {
		t.Fatalf("the only member is 0, the flow went to %d", m)
	}
	f.send(1, 1, 1000, wire.ACK)
	if got := f.entries(); got != "1 flows, 1 clients" {
		t.Error(got)
	}
	f.weigh(0, 1, 2)
	for port := range uint16(20) {
		if m := f.send(1, byte(port), 2000+port, wire.SYN); m != 0 {
			t.Fatalf("flow %d of the client went to %d", port, m)
		}
	}
	f.weigh(1, 2) // 0 drains
	if m := f.send(1, 1, 1000, wire.ACK); m != 0 {
		t.Errorf("the established flow went to %d", m)
	}
	next := f.send(1, 1, 3000, wire.SYN)
	if next == 0 {
		t.Error("a new flow went to the draining member")
	}
	f.weigh(0, 1, 2)
	for port := range uint16(20) {
		if m := f.send(1, byte(port), 4000+port, wire.SYN); m != next {
			t.Fatalf("the client is at %d since, flow %d went to %d", next, port, m)
		}
	}
	if m := f.send(1, 1, 1000, wire.ACK); m != 0 {
		t.Errorf("the established flow went to %d in the end", m)
	}
}

// TestClientOfDeadMember: a client whose member died gets another for all its flows, and keeps that.
func TestClientOfDeadMember(t *testing.T) {
	f := newClientFixture(t)
	first := f.send(1, 1, 1000, wire.SYN)
	f.send(1, 1, 1000, wire.ACK)
	f.mux.SetAlive([]MemberAlive{{f.e.Key, first, false}})
	next := f.send(1, 2, 1001, wire.SYN)
	if next == first {
		t.Fatal("a new flow went to the dead member")
	}
	if m := f.send(1, 1, 1000, wire.ACK); m != next {
		t.Errorf("the flow of the dead member went to %d, the client's new one to %d", m, next)
	}
	f.mux.SetAlive([]MemberAlive{{f.e.Key, first, true}})
	if m := f.send(1, 3, 1002, wire.SYN); m != next {
		t.Errorf("after it came back a new flow went to %d, not to %d", m, next)
	}
}

// TestClientIsForgotten: after SourceFor without packets, not before; packets of its flows count.
func TestClientIsForgotten(t *testing.T) {
	f := newClientFixture(t)
	f.weigh(0)
	f.send(1, 1, 1000, wire.SYN)
	f.send(1, 1, 1000, wire.ACK)
	f.weigh(1, 2)
	f.weigh(0, 1, 2) // the ring has others for most
	for range 4 {
		f.pass(100)
		f.send(1, 1, 1000, wire.ACK)
	}
	f.pass(290)
	if m := f.send(1, 2, 2000, wire.SYN); m != 0 {
		t.Errorf("known for less than five minutes: went to %d", m)
	}
	moved := 0
	for prefix := range byte(10) {
		f.weigh(0)
		f.send(100+prefix, 1, 1000, wire.SYN)
		f.weigh(0, 1, 2)
		f.pass(310)
		if f.send(100+prefix, 1, 1001, wire.SYN) != 0 {
			moved++
		}
	}
	if moved == 0 {
		t.Error("no client of ten was forgotten")
	}
	totals, err := f.mux.Sweep()
	must(t, err)
	if got := f.entries(); totals.Expired == 0 || got != "1 flows, 1 clients" {
		t.Errorf("%s after a sweep that found %+v", got, totals)
	}
	var flows uint64
	for _, n := range totals.Members {
		flows += n
	}
	if flows != 1 {
		t.Errorf("the sweep counted %d flows of members, with a client beside the flow", flows)
	}
}

// TestTraceOfClients: a trace of a new flow says where the client's flows go.
func TestTraceOfClients(t *testing.T) {
	f := newClientFixture(t)
	trace := func() Trace {
		t.Helper()
		got, err := f.mux.Trace(Packet{Client: netip.AddrFrom4([4]byte{198, 51, 1, 7}), VIP: muxVIP4, Protocol: lb.TCP, ClientPort: 9, Port: 80})
		must(t, err)
		return got
	}
	if got := trace(); !slices.Contains(got.Steps, "the flow table does not know the client") {
		t.Errorf("before the client: %+v", got)
	}
	f.weigh(0)
	f.send(1, 1, 1000, wire.SYN)
	f.weigh(0, 1, 2)
	if got := trace(); got.Member != 0 || !slices.Contains(got.Steps, "the flow table knows the client: member 0, last refreshed 0s ago") {
		t.Errorf("of the client: %+v", got)
	}
	f.weigh(1, 2)
	want := trace()
	if got := f.send(1, 7, 9, wire.SYN); got == 0 || got != want.Member {
		t.Errorf("sent to %d, traced %+v", got, want)
	}
}
