package host

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/probe"
)

// TestNothingIsSentToLostMachines lets the machine of a removed backend die within the repair
// window, and return, and checks that the agent detects both.
func TestNothingIsSentToLostMachines(t *testing.T) {
	own, other, left := netip.MustParseAddr("10.20.1.1"), netip.MustParseAddr("10.20.2.1"), netip.MustParseAddr("10.20.3.1")
	seats := func(ids ...uint16) plan.Seats {
		s := plan.Seats{Generation: int64(len(ids)), RingCode: 7}
		for _, id := range ids {
			s.Seats = append(s.Seats, plan.Seat{ID: id, Weight: 1})
		}
		return s
	}
	repair := plan.Repair{
		Key: lb.EndpointKey{VIP: netip.MustParseAddr("203.0.113.10"), Protocol: lb.TCP, Port: 80}, Memberships: []plan.Seats{seats(0, 1, 2), seats(0, 1)},
	}
	for id, host := range []netip.Addr{own, other, left} {
		repair.Targets = append(repair.Targets, plan.Target{ID: uint16(id), DIP: host.Next(), Port: 80, Outer: host.Next(), Host: host})
	}
	p := plan.Plan{Node: lb.Node{Addresses: []netip.Addr{own}}, Repairs: []plan.Repair{repair}}
	var tables dataplane.FakeHost
	asked := &prober{}
	a := New(&tables, settings(forwarding), asked, clock.NewFake(time.Now()), nil)
	apply := func() {
		t.Helper()
		if err := a.Apply(context.Background(), p); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(when string, want ...uint16) {
		t.Helper()
		state, _ := tables.State()
		var ids []uint16
		for _, target := range state.Repairs[0].Targets {
			ids = append(ids, target.ID)
		}
		if !slices.Equal(ids, want) {
			t.Errorf("%s: packets are sent on to members %v, want %v", when, ids, want)
		}
	}
	answers := func(pings string) {
		for _, ping := range pings {
			a.Probed([]probe.Result{{Target: probe.Machine(left), Good: ping == '+', Silent: ping != '+', Words: "drawn"}})
		}
	}
	apply()
	if want := []probe.Target{probe.Machine(left)}; !slices.Equal(asked.targets, want) {
		t.Fatalf("probes %v, want the machine of the member that left alone", asked.targets)
	}
	expect("at first", 0, 1, 2)
	answers("--")
	expect("a machine that never answered", 0, 1, 2)
	answers("+-")
	expect("one lost probe", 0, 1, 2)
	answers("-")
	expect("it is dead", 0, 1)
	apply()
	expect("the plan is applied again", 0, 1)
	answers("++")
	expect("it is back", 0, 1, 2)
	// A backend that was dead when it was removed gets no packets and no probes.
	p.Repairs = slices.Clone(p.Repairs)
	p.Repairs[0].Targets = slices.Clone(p.Repairs[0].Targets)
	p.Repairs[0].Targets[2].Fallen = true
	apply()
	expect("it left dead", 0, 1)
	if len(asked.targets) != 0 {
		t.Errorf("probes %v", asked.targets)
	}
}
