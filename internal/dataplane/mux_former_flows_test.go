package dataplane

import (
	"maps"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/wire"
)

// TestFlowWordWithMember: nothing but the member changes.
func TestFlowWordWithMember(t *testing.T) {
	w := flowWord(0x1abcde)<<muxFlowBitFLOW_FINGERPRINT_SHIFT | 5<<muxFlowBitFLOW_MEMBER_SHIFT | 2<<muxFlowBitFLOW_CLASS_SHIFT | 77
	if got := w.withMember(9); got.member() != 9 || got.withMember(5) != w || got.class() != FlowTrusted {
		t.Errorf("%#x with member 9 is %#x", w, got)
	}
}

// flowsIn counts the flows of members that a sweep sees.
func flowsIn(t *testing.T, m *Mux) map[MemberKey]uint64 {
	t.Helper()
	totals, err := m.Sweep()
	must(t, err)
	return totals.Members
}

// segment is one of flow i to port 80.
func segment(i int, flags uint8) []byte {
	p := tcp4(80)
	p.Payload = wire.TCP{SrcPort: uint16(20000 + i), DstPort: 80, Flags: flags}
	return p.Frame()
}

// TestMuxMigrationKeepsFlows: flows stay with members that are not the ring's choice, in tables of any size. One that
// the ring would send elsewhere is what tells.
func TestMuxMigrationKeepsFlows(t *testing.T) {
	for name, flows := range map[string]uint32{"same": 512, "half": 256, "four times": 2048} {
		t.Run(name, func(t *testing.T) {
			e := newMuxEnv(t)
			m, err := e.open(XDPNative)
			must(t, err)
			f := &muxFixture{t: t, mux: m}
			s := MuxState{RingKeys: testKeys, TunnelSources: sources, Endpoints: []MuxEndpoint{
				endpointOf(muxVIP4, lb.TCP, 80, "10.9.0.1", "10.9.0.2", "10.9.0.3"),
			}}
			s.Endpoints[0].Affinity, s.Endpoints[0].Idle = AffinityFlow, lb.Idle{Untrusted: time.Hour, Trusted: time.Hour}
			key := s.Endpoints[0].Key
			must(t, m.Apply(s))
			must(t, m.SetNextHops(hopsTo(s)))
			// Few stay untrusted: a fifth of those in a bucket takes another's place, and the table's random key says which flows meet in one.
			for port := range 40 {
				f.run(segment(port, wire.SYN))
				if port < 36 {
					f.run(segment(port, wire.ACK))
				}
			}
			before := flowsIn(t, m)
			// Every member drains but the first: what the ring gives now is another member for most flows.
			for i := range s.Endpoints[0].Members[1:] {
				s.Endpoints[0].Members[i+1].Choosable = false
			}
			must(t, m.Apply(s))
			must(t, m.Close())
			if len(before) < 2 {
				t.Fatalf("flows of %v: too few members", before)
			}

			limits := testLimits
			limits.Endpoints, limits.Flows = 2*limits.Endpoints, flows
			m, err = e.openSized(limits, nil)
			must(t, err)
			defer m.Close()
			must(t, e.applyIn(m, s))
			e.whole()
			copies := uint64(max(flows/testLimits.Flows, 1))
			after := flowsIn(t, m)
			for k, n := range before {
				if flows >= testLimits.Flows && after[k] != n*copies {
					t.Errorf("member %d: %d flows, expected %d", k.Member, after[k], n*copies)
				}
			}
			f = &muxFixture{t: t, mux: m}
			counted, err := m.Counters()
			must(t, err)
			for port := range 40 {
				f.run(segment(port, wire.ACK))
			}
			now, err := m.Counters()
			must(t, err)
			got := map[MemberKey]uint64{}
			for k, c := range now.Members {
				if n := c.Packets - counted.Members[k].Packets; n > 0 {
					got[k] = n
				}
			}
			if flows >= testLimits.Flows && !maps.Equal(got, before) {
				t.Errorf("after the migration members got %v packets, had %v flows", got, before)
			}
			if got[MemberKey{key, 1}]+got[MemberKey{key, 2}] == 0 {
				t.Error("no flow stayed on a draining member")
			}
		})
	}
}
