package host

import (
	"net/netip"
	"testing"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// TestSpreads checks that a ring of an endpoint's members here has those that take new flows, by
// weight, without dead ones, and that unchanged spreads keep their pointers.
func TestSpreads(t *testing.T) {
	own := []netip.Addr{netip.MustParseAddr("10.20.1.1")}
	key := lb.EndpointKey{VIP: netip.MustParseAddr("203.0.113.10"), Protocol: lb.TCP, Port: 80}
	var bindings []plan.Binding
	for i, share := range []uint16{0, 1, 2, 1} {
		dip := netip.AddrFrom4([4]byte{10, 20, 1, byte(11 + i)})
		bindings = append(bindings, plan.Binding{Key: key, Member: uint16(i), Outer: dip, DIP: dip, DIPPort: 80, Rewrite: true, Share: share})
	}
	gone := plan.Binding{Key: key, Member: 9, Outer: netip.MustParseAddr("10.20.1.19"), DIP: netip.MustParseAddr("10.20.1.19"), DIPPort: 80, Rewrite: true, Share: 5}
	dead := map[uint16]bool{}
	var s spreads
	follow := func() *dataplane.HostSpread {
		t.Helper()
		out := s.follow(bindings, []leaver{{Binding: gone}}, own, func(r memberRef) bool { return dead[r.member] })
		if len(out) != 1 || out[0].Key != key || !out[0].Rewrite || len(out[0].Members) != 5 {
			t.Fatalf("%+v", out)
		}
		return out[0]
	}
	// shares counts the slots of each member, by its outer address.
	shares := func(h *dataplane.HostSpread) map[netip.Addr]int {
		out := map[netip.Addr]int{}
		for _, at := range h.Ring {
			out[h.Members[at].Outer]++
		}
		return out
	}
	whole := follow()
	got := shares(whole)
	if len(got) != 3 || got[bindings[0].Outer] != 0 || got[gone.Outer] != 0 {
		t.Errorf("slots are of %v", got)
	}
	if most, least := got[bindings[2].Outer], got[bindings[1].Outer]; most < least*18/10 || most > least*22/10 {
		t.Errorf("a weight of 2 has %d slots, one of 1 has %d", most, least)
	}
	if again := follow(); again != whole {
		t.Error("what is the same was made again")
	}
	dead[2] = true
	half := follow()
	if got := shares(half); len(got) != 2 || got[bindings[2].Outer] != 0 || got[netip.Addr{}] != 0 {
		t.Errorf("with a dead member slots are of %v", got)
	}
	for i, m := range half.Members {
		if m.Outer == bindings[2].Outer {
			t.Errorf("member %d is dead and there", i)
		}
	}
	dead[1], dead[3] = true, true
	if nobody := follow(); len(nobody.Ring) != 0 {
		t.Errorf("slots are of %v, though nobody takes new flows", shares(nobody))
	}
}

// TestSpreadsThatFit checks that among more members than fit those that take new flows are
// included.
func TestSpreadsThatFit(t *testing.T) {
	var s spreads
	var bindings []plan.Binding
	for i := range 2 * dataplane.MaxSpread {
		dip := netip.AddrFrom4([4]byte{10, 20, 1, byte(i)})
		bindings = append(bindings, plan.Binding{Key: lb.EndpointKey{Port: 80}, Member: uint16(i), Outer: dip, DIP: dip, DIPPort: 80, Share: uint16(i % 2)})
	}
	out := s.follow(bindings, nil, nil, func(memberRef) bool { return false })[0]
	if len(out.Members) != dataplane.MaxSpread {
		t.Fatalf("%d members", len(out.Members))
	}
	for i, m := range out.Members {
		if m.Outer.As4()[3]%2 == 0 {
			t.Errorf("member %d, %s, takes no new flows", i, m.Outer)
		}
	}
}
