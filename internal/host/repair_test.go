package host

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/ring"
)

// TestRepairsAreFolded checks that a plan yields the slots of both rings, targets without those
// that are down, and peers; that unchanged repairs keep their pointers; and that an endpoint
// without a member here has no source and is left out.
func TestRepairsAreFolded(t *testing.T) {
	own, other, third := netip.MustParseAddr("10.20.1.1"), netip.MustParseAddr("10.20.2.1"), netip.MustParseAddr("10.20.3.1")
	seats := func(n int) plan.Seats {
		s := plan.Seats{Generation: int64(n), RingCode: 7}
		for id := range n {
			s.Seats = append(s.Seats, plan.Seat{ID: uint16(id), Weight: 1})
		}
		return s
	}
	in := plan.Repair{Key: lb.EndpointKey{VIP: netip.MustParseAddr("203.0.113.10"), Protocol: lb.TCP, Port: 80}, Memberships: []plan.Seats{seats(3), seats(2)}}
	for id, host := range []netip.Addr{own, other, third} {
		in.Targets = append(in.Targets, plan.Target{ID: uint16(id), DIP: host.Next(), Port: 80, Outer: host.Next(), Host: host})
	}
	p := plan.Plan{Node: lb.Node{Addresses: []netip.Addr{own}}, Repairs: []plan.Repair{in}}
	var r repairs
	got := r.follow(&p, nil)
	if len(got) != 1 || got[0].Source != own || len(got[0].Targets) != 3 || !got[0].Targets[0].Here || got[0].Targets[1].Here || len(got[0].Peers) != 2 {
		t.Fatalf("%+v", got)
	}
	moved := 0
	for _, turns := range got[0].Turns.Slots {
		switch {
		case turns.Current() > 1 || turns.Former() != 2 && turns.Former() != ring.NoFormer && turns.Former() > 1:
			t.Fatalf("slot %d after %d", turns.Current(), turns.Former())
		case turns.Former() == 2:
			moved++
		}
	}
	if moved < 128/3 {
		t.Errorf("%d of 128 slots were the third member's", moved)
	}
	if again := r.follow(&p, nil); again[0] != got[0] {
		t.Error("what is the same was folded again")
	}
	moving := in
	moving.Key.Port = 81
	in.Memberships = []plan.Seats{seats(3)}
	p.Repairs = []plan.Repair{in, moving}
	rest := r.follow(&p, nil)
	if len(rest) != 2 || rest[0].Key.Port != 81 || len(rest[1].Targets) != 3 || slices.ContainsFunc(rest[1].Turns.Slots, func(t ring.Turns) bool { return t.Former() != ring.NoFormer }) {
		t.Errorf("of what nothing was displaced of: %+v", rest)
	}
	in.Memberships = []plan.Seats{seats(3), seats(3)}
	in.Memberships[1].Generation, in.Memberships[1].Seats[1].Down = 4, true
	p.Repairs = []plan.Repair{in}
	if next := r.follow(&p, nil); next[0] == got[0] || len(next[0].Targets) != 2 {
		t.Errorf("a member that is down is a target: %+v", next[0].Targets)
	}
	p.Node.Addresses = []netip.Addr{netip.MustParseAddr("10.20.4.1")}
	if next := r.follow(&p, nil); len(next) != 0 {
		t.Errorf("nothing is here, but %+v", next)
	}
}

// TestRepairAfterRotation checks that after a rotation of the ring key an unknown flow is forwarded
// to the owner of its slot under the previous key, and not forwarded if that is the member that
// received it.
func TestRepairAfterRotation(t *testing.T) {
	own, other := netip.MustParseAddr("10.20.1.1"), netip.MustParseAddr("10.20.2.1")
	in := plan.Repair{
		Key: lb.EndpointKey{VIP: netip.MustParseAddr("203.0.113.10"), Protocol: lb.TCP, Port: 80}, Hash: plan.Key{ID: 2, Key: [16]byte{7}}, Rotated: true,
		Memberships: []plan.Seats{{RingCode: 7, Seats: []plan.Seat{{ID: 0, Weight: 1}, {ID: 1, Weight: 1}, {ID: 2, Weight: 1}}}},
	}
	for id, host := range []netip.Addr{own, other, other} {
		in.Targets = append(in.Targets, plan.Target{ID: uint16(id), DIP: netip.AddrFrom4([4]byte{10, 20, 9, byte(id)}), Port: 80, Outer: host, Host: host})
	}
	cookies := in
	cookies.Key.Port, cookies.Rotated = 81, false
	p := plan.Plan{Node: lb.Node{Addresses: []netip.Addr{own}}, Repairs: []plan.Repair{cookies, in}}
	got := new(repairs).follow(&p, nil)
	if len(got) != 2 || got[0].Key.Port != 80 || got[0].Hash != in.Hash.Key {
		t.Fatalf("records %+v: want that of the rotation first", got)
	}
	var members []ring.Member
	for _, to := range in.Targets {
		members = append(members, ring.Member{ID: to.ID, DIP: to.DIP, Port: to.Port, Weight: 1})
	}
	want := ring.Build(7, members)
	owners := map[uint16]bool{}
	for i, turns := range got[0].Turns.Slots {
		if turns.Former() != want[i] || turns.Current() != ring.NoFormer {
			t.Fatalf("slot %d: former %d, current %d, want %d and none", i, turns.Former(), turns.Current(), want[i])
		}
		owners[turns.Former()] = true
	}
	if len(owners) != 3 {
		t.Errorf("owners %v: want all three", owners)
	}
}
