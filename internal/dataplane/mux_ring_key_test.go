package dataplane

import (
	"math/rand/v2"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/wire"
)

// TestRingKeyIsReplaced: flows that the table remembers stay at their members when the endpoint gets another ring key, as those of other endpoints
// do; new ones, and all of an endpoint without a flow table, go where the ring says under the new key.
func TestRingKeyIsReplaced(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	outers := []string{"10.20.1.11", "10.20.1.12", "10.20.1.13", "10.20.1.14", "10.20.1.15"}
	flows, hashed, other := flowEndpoint(80, outers...), endpointOf(muxVIP4, lb.TCP, 81, outers...), endpointOf(muxVIP4, lb.TCP, 82, outers...)
	hashed.Affinity, other.Affinity = AffinityHash, AffinityHash
	other.RingTweak = r.Uint64() | 1
	f := newFlowFixture(t, flows, hashed, other)
	members := func(to uint16, from, count int) (out []uint16) {
		for port := from; port < from+count; port++ {
			got := f.check(tcpSegment(to, uint16(port), wire.SYN).Frame())
			if got.member == nil {
				t.Fatalf("port %d: %s", port, got.reason)
			}
			if to == 80 {
				f.send(uint16(port), wire.ACK)
			}
			out = append(out, got.member.Member)
		}
		return out
	}
	differ := func(a, b []uint16) (n int) {
		for i := range a {
			if a[i] != b[i] {
				n++
			}
		}
		return n
	}
	const count = 40
	was, wasHashed, wasOther := members(80, 1000, count), members(81, 1000, count), members(82, 1000, count)
	for range 3 {
		flows.RingTweak, hashed.RingTweak = r.Uint64()|1, r.Uint64()|1
		f.to(flows, hashed, other)
		if n := differ(was, members(80, 1000, count)); n != 0 {
			t.Errorf("%d of %d connections moved", n, count)
		}
		if n := differ(wasOther, members(82, 1000, count)); n != 0 {
			t.Errorf("%d of %d flows of another endpoint moved", n, count)
		}
	}
	// 4 of 5 are to move: that at most 15 of 40 do has odds below 1e-8.
	if n := differ(wasHashed, members(81, 1000, count)); n <= 15 {
		t.Errorf("only %d of %d flows without a table moved", n, count)
	}
	// Back to the slot's own key.
	hashed.RingTweak = 0
	f.to(flows, hashed, other)
	if n := differ(wasHashed, members(81, 1000, count)); n != 0 {
		t.Errorf("%d of %d flows are elsewhere under the first key", n, count)
	}
}
