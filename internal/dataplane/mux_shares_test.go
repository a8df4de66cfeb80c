package dataplane

import (
	"math"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/wire"
)

// TestShareOf compares the share with a naive one: room is handed out one by one, in turn, to whoever wants more.
func TestShareOf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		held := rapid.SliceOfN(rapid.Uint64Range(0, 40), 1, 12).Draw(t, "held")
		room := rapid.Uint64Range(1, 200).Draw(t, "room")
		share, sum := shareOf(held, room), uint64(0)
		for _, n := range held {
			sum += n
		}
		if sum <= room {
			if share != math.MaxUint64 {
				t.Fatalf("share %d of %v in %d: all fit", share, held, room)
			}
			return
		}
		given, left := make([]uint64, len(held)), room
		for round := true; round; {
			wants := 0
			for i, n := range held {
				if given[i] < n {
					wants++
				}
			}
			if round = left >= uint64(wants); !round {
				break
			}
			for i, n := range held {
				if given[i] < n {
					given[i]++
					left--
				}
			}
		}
		if want := max(slices.Max(given), 1); share != want {
			t.Fatalf("share %d of %v in %d: naive %d", share, held, room, want)
		}
	})
}

// sharedEndpoint is an endpoint of another VIP, which remembers flows as flowEndpoint does.
func sharedEndpoint(vip netip.Addr) MuxEndpoint {
	e := flowEndpoint(80, "10.20.1.11", "10.20.2.11", "10.20.3.11")
	e.Key.VIP = vip
	return e
}

// over sweeps, and gives the model the VIPs that are over their share afterwards.
func (f flowFixture) over() []netip.Addr {
	f.t.Helper()
	f.model.sweep()
	totals, err := f.mux.Sweep()
	must(f.t, err)
	var vips []netip.Addr
	for _, s := range totals.Over {
		vips = append(vips, s.VIP.VIP)
	}
	f.model.setOver(totals.Over)
	f.checkFlows()
	return vips
}

// flood sends segments of n flows from a port on to a VIP.
func (f flowFixture) flood(vip netip.Addr, from uint16, n int, flags ...uint8) {
	f.t.Helper()
	for port := range uint16(n) {
		for _, flag := range flags {
			p := tcpSegment(80, from+port, flag)
			p.Dst = vip
			f.check(p.Frame())
		}
	}
	f.checkFlows()
}

// holds is how many trusted entries a VIP has.
func (f flowFixture) holds(vip netip.Addr) (n int) {
	f.model.eachFlow(func(e *modelFlow) {
		if !e.gone && e.member.Endpoint.VIP == vip && e.class == FlowTrusted {
			n++
		}
	})
	return n
}

// TestFlowTableShares: a VIP whose flows fill the table gives entries to new flows of VIPs within their share, and takes none of theirs. Below half of the
// capacity nobody gives any.
func TestFlowTableShares(t *testing.T) {
	big, small := muxVIP4, netip.MustParseAddr("203.0.113.77")
	f := newFlowFixture(t, flowEndpoint(80, "10.20.1.11", "10.20.2.11", "10.20.3.11"), sharedEndpoint(small))
	f.flood(small, 1, 10, wire.SYN, wire.ACK)
	f.flood(big, 1, 100, wire.SYN, wire.ACK)
	if over := f.over(); over != nil {
		t.Fatalf("of a table that is not half full %v are over their share", over)
	}
	f.flood(big, 1000, 3000, wire.SYN, wire.ACK)
	if got := f.reasonsNow(); got["flow_table_full"] == 0 || got["flow_displaced"] != 0 {
		t.Fatalf("before a sweep: %v", got)
	}
	if over := f.over(); !slices.Equal(over, []netip.Addr{big}) {
		t.Fatalf("%v are over their share", over)
	}
	before, full := f.holds(small), f.reasonsNow()["flow_table_full"]
	for port, opened := uint16(20_000), 0; opened < 100; port++ {
		if f.ownBucket(small, port) {
			continue // the small VIP gives no entry to itself
		}
		f.flood(small, port, 1, wire.SYN, wire.ACK)
		opened++
	}
	if got := f.reasonsNow(); got["flow_table_full"] != full || got["flow_displaced"] == 0 || f.holds(small) != before+100 {
		t.Errorf("the small VIP holds %d flows after %d and 100 more: %v", f.holds(small), before, got)
	}
	// Neither trusted nor other flows of the small VIP give way to those of the big one.
	f.flood(small, 30_000, 30, wire.SYN)
	held, untrusted := f.holds(small), f.untrustedOf(small)
	f.flood(big, 40_000, 3000, wire.SYN, wire.ACK)
	if f.holds(small) != held || f.untrustedOf(small) != untrusted {
		t.Errorf("the small VIP had %d trusted and %d other flows, now %d and %d", held, untrusted, f.holds(small), f.untrustedOf(small))
	}
	// Once the big VIP's flows are idle everything is as it was.
	f.pass(303 * time.Second)
	if over := f.over(); over != nil {
		t.Errorf("of an empty table %v are over their share", over)
	}
	f.flood(big, 50_000, 10, wire.SYN, wire.ACK)
}

// ownBucket reports whether the bucket of a flow from a port to a VIP has nothing but trusted entries of the VIP.
func (f flowFixture) ownBucket(vip netip.Addr, port uint16) bool {
	hash := modelIdentity{0, tcpSegment(80, port, wire.SYN).Src, vip, 6, port, 80}.entry(f.model.flows.key)
	bucket := f.model.flows.buckets[hash%uint64(len(f.model.flows.buckets))]
	return !slices.ContainsFunc(bucket[:], func(e modelFlow) bool { return e.gone || e.class != FlowTrusted || e.member.Endpoint.VIP != vip })
}

// untrustedOf is how many entries of a VIP are not trusted.
func (f flowFixture) untrustedOf(vip netip.Addr) (n int) {
	f.model.eachFlow(func(e *modelFlow) {
		if e.member.Endpoint.VIP == vip && e.class != FlowTrusted {
			n++
		}
	})
	return n
}

// TestFlowTableSharesAlone: a VIP that shares the table with no other may fill it.
func TestFlowTableSharesAlone(t *testing.T) {
	f := newFlowFixture(t, flowServers())
	f.flood(muxVIP4, 1, 3000, wire.SYN, wire.ACK)
	if over := f.over(); over != nil {
		t.Errorf("%v are over their share", over)
	}
}

// TestSharesOfMembersThatMove: members of a VIP over its share keep the mark when they move at the next sweep, and a block that is given up has none.
func TestSharesOfMembersThatMove(t *testing.T) {
	f := newFlowFixture(t, flowServers(), sharedEndpoint(netip.MustParseAddr("203.0.113.77")))
	f.flood(muxVIP4, 1, 3000, wire.SYN, wire.ACK)
	if over := f.over(); len(over) != 1 {
		t.Fatalf("%v are over their share", over)
	}
	e := f.mux.tables.entries[lb.EndpointKey{VIP: muxVIP4, Protocol: lb.TCP, Port: 80}]
	for i := range e.block.words {
		if at := e.block.first + i; f.mux.memory.shareMarks[at/64]>>(at%64)&1 == 0 {
			t.Errorf("member word %d has no mark", at)
		}
	}
	f.to()
	for i, word := range f.mux.memory.shareMarks {
		if word != 0 {
			t.Errorf("marks %d: %#x without endpoints", i, word)
		}
	}
}
