package dataplane

import (
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/wire"
)

// newUDPFixture is an endpoint whose pseudo-connections last 30 s, 120 s once trusted.
func newUDPFixture(t *testing.T) *clientFixture {
	e := endpointOf(muxVIP4, lb.UDP, 53, threeServers...)
	e.Affinity, e.Idle = AffinityFlow, lb.Idle{Untrusted: 30 * time.Second, Trusted: 120 * time.Second}
	return &clientFixture{newPolicyFixture(t, MuxState{Endpoints: []MuxEndpoint{e}}), e}
}

// TestPseudoConnections: a datagram's flow is remembered for 30 s, for 120 s after its second one.
func TestPseudoConnections(t *testing.T) {
	for _, c := range []struct {
		name      string
		datagrams int
		seconds   uint64
		known     bool
	}{
		{"one datagram, 25 s", 1, 25, true},
		{"one datagram, 35 s", 1, 35, false},
		{"two datagrams, 35 s", 2, 35, true},
		{"two datagrams, 115 s", 2, 115, true},
		{"two datagrams, 125 s", 2, 125, false},
		{"ten datagrams, 115 s", 10, 115, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newUDPFixture(t)
			f.weigh(0)
			const flows = 20
			for port := range uint16(flows) {
				for range c.datagrams {
					f.datagram(port, 0)
				}
			}
			f.weigh(1, 2) // 0 drains: only what is remembered goes there
			f.pass(c.seconds)
			stayed := 0
			for port := range uint16(flows) {
				if f.datagram(port) == 0 {
					stayed++
				}
			}
			if want := map[bool]int{true: flows, false: 0}[c.known]; stayed != want {
				t.Errorf("%d of %d flows were remembered, expected %d", stayed, flows, want)
			}
		})
	}
}

// datagram sends a datagram of a flow: the member it went to, which must be one of `expected` if any are given.
func (f *clientFixture) datagram(port uint16, expected ...uint16) uint16 {
	f.t.Helper()
	p := udp4(53)
	p.Payload = wire.UDP{SrcPort: 1000 + port, DstPort: 53, Data: []byte("query")}
	m := f.sendTo(p)
	for _, e := range expected {
		if m != e {
			f.t.Fatalf("flow %d went to %d, expected %d", port, m, e)
		}
	}
	return m
}

// TestPseudoConnectionsTrust: the classes that Flows tells of.
func TestPseudoConnectionsTrust(t *testing.T) {
	f := newUDPFixture(t)
	f.datagram(1)
	f.datagram(2)
	f.datagram(2)
	classes := map[FlowClass]int{}
	flows, err := f.mux.listFlows(f.e.Key, 10)
	must(t, err)
	for _, fl := range flows {
		classes[fl.Class]++
	}
	if classes[FlowUntrusted] != 1 || classes[FlowTrusted] != 1 || len(flows) != 2 {
		t.Errorf("flows %+v", flows)
	}
}

// TestOnePacketRemembersNothing: whatever the affinity, no entry is made, and ring changes show at once.
func TestOnePacketRemembersNothing(t *testing.T) {
	e := endpointOf(muxVIP4, lb.UDP, 53, threeServers...)
	e.Affinity, e.OnePacket, e.Idle = AffinityFlow, true, lb.Idle{Untrusted: time.Minute, Trusted: time.Minute}
	f := &clientFixture{newPolicyFixture(t, MuxState{Endpoints: []MuxEndpoint{e}}), e}
	for range 50 {
		f.datagram(1)
	}
	for i, b := range f.mux.memory.flows {
		if b != (muxFlowBucket{}) {
			t.Fatalf("bucket %d holds %x", i, b)
		}
	}
	f.weigh(2)
	for range 20 {
		f.datagram(1, 2)
	}
}
