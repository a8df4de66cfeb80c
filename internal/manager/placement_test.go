package manager

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

func TestNewVIPIsNowhereUntilItIsPlaced(t *testing.T) {
	r := newPlaced(t)
	r.join("mux1", "mux2", "mux3")
	r.service("web", 2, 10)
	if have := r.have(10); len(have) != 0 {
		t.Fatalf("%v have the VIP before it is placed", have)
	}
	r.round()
	if at := r.at(10); len(at.Muxes) != 2 || len(at.Leaving) != 0 {
		t.Fatalf("the VIP is on %v, leaves %v", at.Muxes, at.Leaving)
	}
	r.want("placed", 10, r.at(10).Muxes)
	// Many within a second: VIPs without a serving mux do not wait.
	r.service("more", 1, 11, 12)
	r.round()
	if len(r.at(11).Muxes) != 1 || len(r.at(12).Muxes) != 1 {
		t.Fatalf("the new VIPs are on %v, %v", r.at(11), r.at(12))
	}
}

func TestDrainMovesMakeBeforeBreak(t *testing.T) {
	r := newPlaced(t)
	r.join("mux1", "mux2", "mux3")
	r.service("web", 2, 10)
	r.round()
	r.say("mux1", "mux2", "mux3")
	was := r.at(10).Muxes
	gone, stays, comes := was[0], was[1], r.other(10)
	now := slices.Sorted(slices.Values([]string{stays, comes}))
	r.node(gone, func(n *lb.Node) { n.Drain = true })
	r.later(placePace)
	r.want("added", 10, now, gone)
	r.later(5 * time.Second)
	r.want("the new mux says nothing", 10, now, gone)
	r.say(comes)
	r.round()
	r.later(moveLinger - time.Millisecond)
	r.want("routers need a moment", 10, now, gone)
	r.later(time.Millisecond)
	r.want("over", 10, now)
}

func TestMoveEndsAfterPatience(t *testing.T) {
	r := newPlaced(t)
	r.join("mux1", "mux2", "mux3")
	r.service("web", 2, 10)
	r.round()
	r.say("mux1", "mux2", "mux3")
	was := r.at(10).Muxes
	comes := r.other(10)
	r.node(was[0], func(n *lb.Node) { n.Drain = true })
	r.later(placePace)
	r.later(movePatience)
	r.later(moveLinger)
	r.want("the one that stays announces it", 10, slices.Sorted(slices.Values([]string{was[1], comes})))
}

func TestVIPStaysWhereNobodyTakesItOver(t *testing.T) {
	r := newPlaced(t)
	r.join("mux1", "mux2")
	r.service("web", 1, 10)
	r.round()
	r.say("mux1", "mux2")
	was, comes := r.at(10).Muxes[0], r.other(10)
	r.node(was, func(n *lb.Node) { n.Drain = true })
	r.later(placePace)
	for range 100 {
		r.later(movePatience)
	}
	r.want("the new mux does not announce it", 10, []string{comes}, was)
	r.say(comes)
	r.round()
	r.later(moveLinger)
	r.want("it does", 10, []string{comes})
	// No mux is left to take it.
	r.node(comes, func(n *lb.Node) { n.Drain = true })
	r.later(placePace)
	for range 100 {
		r.later(movePatience)
	}
	r.want("no mux is left", 10, nil, comes)
	if got := r.m.placements("web", nil); len(got) != 1 || got[0].Missing == "" {
		t.Fatalf("placements %v: must say why", got)
	}
	if all, web := r.m.placements("*", nil), r.m.placements("web", nil); !slices.EqualFunc(all, web, func(a, b *apiv1.VIPPlacement) bool { return proto.Equal(a, b) }) {
		t.Fatalf("placements of all services %v: must be those of the only one, %v", all, web)
	}
	r.node(comes, nil)
	r.later(placePace)
	r.want("it is back", 10, []string{comes})
}

func TestMoveOfVIPThatNobodyAnnouncesDoesNotWait(t *testing.T) {
	r := newPlaced(t)
	r.join("mux1", "mux2")
	r.service("web", 1, 10)
	r.round()
	was, comes := r.at(10).Muxes[0], r.other(10)
	r.node(was, func(n *lb.Node) { n.Drain = true })
	r.later(placePace)
	r.want("added", 10, []string{comes}, was)
	r.m.reports.acked(r.muxes[comes], r.m.view.state.Revision, r.clock.Now())
	r.round()
	r.later(moveLinger)
	r.want("over", 10, []string{comes})
}

func TestMuxThatIsAwayKeepsItsVIPs(t *testing.T) {
	r := newPlaced(t)
	r.join("mux1", "mux2", "mux3")
	r.service("web", 2, 10)
	r.round()
	r.say("mux1", "mux2", "mux3")
	was, comes := r.at(10).Muxes, r.other(10)
	r.disconnect(was[0])
	r.later(DefaultReplaceAfter - time.Second)
	r.want("away", 10, was)
	r.connect(was[0])
	r.say(was[0])
	r.later(DefaultReplaceAfter)
	r.want("back", 10, was)
	r.disconnect(was[0])
	r.later(DefaultReplaceAfter)
	r.want("replaced", 10, slices.Sorted(slices.Values([]string{was[1], comes})), was[0])
	r.say(was[1], comes)
	r.round()
	r.later(moveLinger)
	r.want("over", 10, slices.Sorted(slices.Values([]string{was[1], comes})))
}

// TestMuxIsReplacedWhenTheClockWentBack: the time of day of a mux's last report is in the future,
// which has no effect.
func TestMuxIsReplacedWhenTheClockWentBack(t *testing.T) {
	r := newPlaced(t)
	r.join("mux1", "mux2")
	r.service("web", 1, 10)
	r.round()
	was, comes := r.at(10).Muxes[0], r.other(10)
	r.disconnect(was)
	h := r.m.reports.heard[was]
	h.status.LastSeen = timestamppb.New(r.clock.Now().Add(time.Hour))
	r.later(DefaultReplaceAfter)
	if got := r.at(10).Muxes; !slices.Equal(got, []string{comes}) {
		t.Errorf("the VIP is on %v, want %s", got, comes)
	}
}

func TestNewLeaderWaitsForMuxes(t *testing.T) {
	r := newPlaced(t)
	r.join("mux1", "mux2", "mux3")
	r.service("web", 2, 10)
	r.round()
	was := r.at(10).Muxes
	// No node has reported to this leader.
	r.m.reports = newReports()
	r.clock.Advance(time.Hour)
	r.term()
	r.round()
	r.later(DefaultReplaceAfter - time.Second)
	r.want("unknown", 10, was)
	for _, name := range was {
		r.connect(name)
	}
	r.later(time.Hour)
	r.want("there", 10, was)
}

func TestNewLeaderGoesOnWithMoves(t *testing.T) {
	r := newPlaced(t)
	r.join("mux1", "mux2")
	r.service("web", 1, 10)
	r.round()
	r.say("mux1", "mux2")
	was, comes := r.at(10).Muxes[0], r.other(10)
	r.node(was, func(n *lb.Node) { n.Drain = true })
	r.later(placePace)
	r.want("added", 10, []string{comes}, was)
	r.m.reports = newReports()
	r.term()
	r.round()
	r.later(2 * moveLinger)
	r.want("the new leader has heard of nobody", 10, []string{comes}, was)
	r.connect(was)
	r.say(was)
	r.later(2 * moveLinger)
	r.want("the new mux may come yet", 10, []string{comes}, was)
	r.connect(comes)
	r.say(comes)
	r.round()
	r.later(moveLinger)
	r.want("over", 10, []string{comes})
}

func TestReplicasComeAndGo(t *testing.T) {
	r := newPlaced(t)
	r.join("mux1", "mux2", "mux3")
	r.service("web", 0, 10)
	r.round()
	every := []string{"mux1", "mux2", "mux3"}
	if have := r.have(10); !slices.Equal(have, every) {
		t.Fatalf("%v have the VIP, must be every mux", have)
	}
	r.say(every...)
	r.service("web", 2, 10)
	r.want("asked for", 10, nil, every...)
	r.later(placePace)
	if at := r.at(10); len(at.Muxes) != 2 || len(at.Leaving) != 1 {
		t.Fatalf("the VIP is on %v, leaves %v", at.Muxes, at.Leaving)
	}
	if have := r.have(10); !slices.Equal(have, every) {
		t.Fatalf("%v have the VIP, must be every mux for a moment", have)
	}
	r.say(every...)
	r.round()
	r.later(moveLinger)
	r.want("over", 10, r.at(10).Muxes)
	r.service("web", 0, 10)
	if have := r.have(10); !slices.Equal(have, every) {
		t.Fatalf("%v have the VIP, must be every mux at once", have)
	}
	r.round()
	if _, decided := r.m.view.place(plan.VIPKey(vipOf(10))); decided {
		t.Fatal("a place is left")
	}
	// By a policy, for a new service and for an existing one.
	s := &lb.Service{Name: "web", Policy: "two", VIPs: []netip.Addr{vipOf(10), vipOf(11)}, Endpoints: []lb.Endpoint{{Protocol: lb.TCP, Port: 80, Backends: []lb.Backend{{
		DIPs: []netip.Addr{netip.MustParseAddr("10.20.1.11")}, Port: 8080, Host: netip.MustParseAddr("10.20.1.1"), Weight: 1,
	}}}}}
	r.apply(&lb.Policy{Name: "two", Placement: &lb.Placement{Replicas: 2}}, s)
	r.want("policy", 10, nil, every...)
	r.want("policy, new VIP", 11, nil)
	r.apply(&lb.Policy{Name: "two", Placement: &lb.Placement{Replicas: 0}})
	if len(r.have(10)) != 3 || len(r.have(11)) != 3 {
		t.Fatalf("%v, %v have the VIPs, must be every mux", r.have(10), r.have(11))
	}
	r.later(placePace)
	if r.p.todo[plan.VIPKey(vipOf(10))] || len(r.m.view.state.Places) > 0 {
		t.Fatalf("places %v are left", r.m.view.state.Places)
	}
}

func TestPlacesOfDeletedServicesGo(t *testing.T) {
	r := newPlaced(t)
	r.join("mux1")
	r.service("web", 1, 10, 11)
	r.round()
	if _, _, err := r.m.remove(t.Context(), []ref{{lb.KindService, "web"}}, false, false); err != nil {
		t.Fatal(err)
	}
	r.round()
	if len(r.m.view.state.Places) > 0 || len(r.p.placed) > 0 || len(r.p.todo) > 0 {
		t.Fatalf("left: places %v, placed %v, to do %v", r.m.view.state.Places, r.p.placed, r.p.todo)
	}
}

func TestCapacityAndLoad(t *testing.T) {
	r := newPlaced(t)
	r.node("mux1", func(n *lb.Node) { n.Capacity.VIPs = 1 })
	r.connect("mux1")
	r.service("web", 1, 10, 11)
	r.round()
	if n := len(r.at(10).Muxes) + len(r.at(11).Muxes); n != 1 {
		t.Fatalf("%d VIPs are placed, must be 1", n)
	}
	missing := ""
	for _, p := range r.m.placements("web", nil) {
		missing += p.Missing
	}
	if missing != "muxes that are up and do not drain: 1, none with room for it" {
		t.Fatalf("missing: %q", missing)
	}
	// A VIP that exceeds the capacity of its mux moves to one with room.
	r.node("mux1", func(n *lb.Node) { n.Capacity.Packets = 1000 })
	r.later(placePace)
	r.join("mux2")
	count := func(packets uint64) {
		for name, s := range r.muxes {
			st := &apiv1.NodeStatus{}
			for i := 10; i <= 11; i++ {
				if slices.Contains(r.have(i), name) {
					st.Members = append(st.Members, &apiv1.MemberStatus{Service: "web", Vip: vipOf(i).String(), Protocol: "tcp", Port: 80, Member: 1, Packets: packets})
				}
			}
			r.m.reports.report(s, st, r.clock.Now())
			r.m.reports.acked(s, r.m.view.state.Revision, r.clock.Now())
		}
	}
	r.later(placePace)
	count(0)
	r.round()
	r.later(moveLinger)
	count(0)
	r.later(loadSpan)
	count(900 * 30)
	r.later(loadSpan)
	for i := 10; i <= 11; i++ {
		if got := r.p.loads.told[plan.VIPKey(vipOf(i))]; got != 900 {
			t.Fatalf("VIP %d: load %d, must be 900", i, got)
		}
	}
	if a, b := r.at(10).Muxes, r.at(11).Muxes; slices.Equal(a, b) {
		t.Fatalf("both VIPs are on %v", a)
	}
}

// TestCapacityWithoutPlacement: services without placement are on every mux regardless of its
// capacity. A user who sets a capacity gets a warning, and a mux that receives more packets is
// reported.
func TestCapacityWithoutPlacement(t *testing.T) {
	r := newPlaced(t)
	r.node("mux1", func(n *lb.Node) { n.Capacity.Packets = 200 })
	r.connect("mux1")
	r.service("web", 0, 10)
	r.round()
	count := func(packets uint64) {
		r.m.reports.report(r.muxes["mux1"], &apiv1.NodeStatus{Members: []*apiv1.MemberStatus{
			{Service: "web", Vip: vipOf(10).String(), Protocol: "tcp", Port: 80, Member: 1, Packets: packets},
		}}, r.clock.Now())
		r.round()
	}
	count(0)
	r.later(loadSpan)
	count(100 * 30)
	if got := r.p.overloaded; len(got) != 0 {
		t.Fatalf("half of the capacity: %v are overloaded", got)
	}
	r.later(loadSpan)
	count(1000 * 30)
	r.later(loadSpan)
	count(2000 * 30)
	if got := r.p.overloaded; !slices.Equal(got, []string{"mux1"}) {
		t.Errorf("five times the capacity: %v are overloaded, want mux1", got)
	}
}
