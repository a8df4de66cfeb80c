package mux

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/bgp"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/netdev"
)

func TestVIPsComeAndGoInOrder(t *testing.T) {
	w := newWorld(t)
	w.apply(planOf([]string{"203.0.113.10"}, "10.20.1.11", "10.20.2.11"))
	w.expect("a new VIP", "tables [203.0.113.10]")
	w.probe("10.20.1.11", true, "connected")
	w.expect("the first backend comes up, the other was not asked", "alive 203.0.113.10/1 true")
	w.probe("10.20.2.11", true, "connected")
	w.expect("the second does", "alive 203.0.113.10/2 true", "routes [203.0.113.10]")

	w.apply(planOf([]string{"203.0.113.10", "2001:db8:f::10"}, "10.20.1.11", "10.20.2.11"))
	w.expect("a second VIP of known backends is served at once",
		"tables [203.0.113.10 2001:db8:f::10]", "routes [203.0.113.10 2001:db8:f::10]")

	w.probe("10.20.1.11", false, "connection refused")
	w.probe("10.20.2.11", false, "connection refused")
	w.probe("10.20.1.11", false, "connection refused")
	w.expect("one backend dies", "alive 203.0.113.10/1 false", "alive 2001:db8:f::10/1 false")
	w.probe("10.20.2.11", false, "connection refused")
	w.expect("the last backend dies", "alive 203.0.113.10/2 false", "alive 2001:db8:f::10/2 false", "routes []")
	w.probe("10.20.2.11", true, "connected")
	w.expect("one good probe is not enough")
	w.probe("10.20.2.11", true, "connected")
	w.expect("two are, but the other was not asked since", "alive 203.0.113.10/2 true", "alive 2001:db8:f::10/2 true")
	w.probe("10.20.1.11", false, "connection refused")
	w.expect("it is dead indeed", "routes [203.0.113.10 2001:db8:f::10]")

	w.apply(planOf([]string{"203.0.113.10"}, "10.20.1.11", "10.20.2.11"))
	w.expect("a VIP goes: routers first", "routes [203.0.113.10]", "tables [203.0.113.10]")
	w.apply(planOf(nil))
	w.expect("the last goes", "routes []", "tables []")

	s := w.speaker.State()
	if s.ASN != 65010 || s.RouterID != netip.MustParseAddr("10.10.0.11") || s.Peers[0].Password != "secret" || s.Peers[0].BFD == nil {
		t.Errorf("speaker was told %+v", s)
	}
}

func TestNextHopsAreOfTheVIPsFamily(t *testing.T) {
	w := newWorld(t)
	w.apply(planOf([]string{"203.0.113.10", "2001:db8:f::10"}, "10.20.1.11"))
	w.probe("10.20.1.11", true, "connected")
	for i, want := range []string{"10.10.0.11", "2001:db8:10::11"} {
		if got := w.speaker.State().Routes[i].NextHop; got != netip.MustParseAddr(want) {
			t.Errorf("route %d: next hop %v, want %s", i, got, want)
		}
	}
	p := planOf([]string{"203.0.113.10", "2001:db8:f::10"}, "10.20.1.11")
	p.Node.Addresses = p.Node.Addresses[:1]
	err := w.agent.Apply(context.Background(), p)
	const want = "announce 2001:db8:f::10: the node has no address of its family"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestRestartDisturbsNothing(t *testing.T) {
	w := newWorld(t)
	p := planOf([]string{"203.0.113.10", "203.0.113.11"}, "10.20.1.11", "10.20.2.11")
	w.apply(p)
	w.probe("10.20.1.11", true, "connected")
	w.probe("10.20.2.11", false, "connection refused")
	w.take()

	w.restart()
	w.agent.Speak(context.Background())
	w.expect("before a plan nothing is said")
	w.apply(p)
	w.expect("the same plan", "tables [203.0.113.10 203.0.113.11]")

	w.restart()
	w.apply(planOf([]string{"203.0.113.11"}, "10.20.1.11", "10.20.2.11"))
	w.expect("a VIP went while the agent was away", "routes [203.0.113.11]", "tables [203.0.113.11]")
	w.probe("10.20.1.11", false, "connection refused")
	w.expect("adopted health needs all bad probes")
	w.probe("10.20.1.11", false, "connection refused")
	w.expect("and falls then", "alive 203.0.113.11/1 false", "routes []")
}

func TestRestartGoesOnWithTheTablesHealth(t *testing.T) {
	w := newWorld(t)
	p := planOf([]string{"203.0.113.10"}, "10.20.1.11", "10.20.2.11")
	w.apply(p)
	w.probe("10.20.2.11", false, "connection refused")
	w.probe("10.20.1.11", true, "connected")
	w.take()
	w.restart() // immediately: only the tables have the new health
	w.apply(p)
	w.expect("the flip is known", "tables [203.0.113.10]")
	w.probe("10.20.1.11", false, "connection refused")
	w.expect("and one bad probe does not undo it")
}

func TestFlipDuringApplyIsNotLost(t *testing.T) {
	w := newWorld(t)
	w.apply(planOf([]string{"203.0.113.10"}, "10.20.1.11"))
	w.take()
	w.tables.during = func() { w.probe("10.20.1.11", true, "connected") }
	w.apply(planOf([]string{"203.0.113.10", "203.0.113.11"}, "10.20.1.11"))
	w.tables.during = nil
	for k, alive := range w.tables.alive {
		if !alive {
			t.Errorf("%v is dead in the tables", k)
		}
	}
}

func TestPlanThatDoesNotFitChangesNothing(t *testing.T) {
	w := newWorld(t)
	old := planOf([]string{"203.0.113.10"}, "10.20.1.11")
	w.apply(old)
	w.probe("10.20.1.11", true, "connected")
	w.take()
	w.tables.fail = errors.New("endpoints: 65537: must be at most 65536")
	err := w.agent.Apply(context.Background(), planOf([]string{"203.0.113.11"}, "10.20.2.11"))
	if err == nil || err.Error() != "apply tables: endpoints: 65537: must be at most 65536" {
		t.Fatalf("got %v", err)
	}
	w.tables.fail = nil
	w.agent.Speak(context.Background())
	w.expect("routes come back", "routes []", "routes [203.0.113.10]")
	w.probe("10.20.1.11", false, "connection refused")
	w.probe("10.20.1.11", false, "connection refused")
	w.expect("the old plan's health goes on", "alive 203.0.113.10/1 false", "routes []")
}

func TestDrain(t *testing.T) {
	w := newWorld(t)
	p := planOf([]string{"203.0.113.10"}, "10.20.1.11")
	w.apply(p)
	w.probe("10.20.1.11", true, "connected")
	w.take()
	p.Node.Drain = true
	w.apply(p)
	w.expect("graceful first", "tables [203.0.113.10]", "routes [203.0.113.10 graceful]")
	w.clock.Advance(2*time.Second - 1)
	w.agent.Speak(context.Background())
	w.expect("routers still move")
	w.clock.Advance(1)
	w.agent.Speak(context.Background())
	w.expect("then gone", "routes []")
	w.restart()
	w.apply(p)
	w.expect("a restarted agent stays drained", "tables [203.0.113.10]")
	w.probe("10.20.1.11", true, "connected")
	w.take()
	p.Node.Drain = false
	w.apply(p)
	w.expect("undrained", "tables [203.0.113.10]", "routes [203.0.113.10]")
}

func TestLocalDrainOutlivesTheAgent(t *testing.T) {
	w := newWorld(t)
	p := planOf([]string{"203.0.113.10"}, "10.20.1.11")
	w.apply(p)
	w.probe("10.20.1.11", true, "connected")
	if err := w.agent.SetDrain(true); err != nil {
		t.Fatal(err)
	}
	w.restart()
	w.apply(p)
	w.probe("10.20.1.11", true, "connected")
	if routes := w.speaker.State().Routes; len(routes) != 0 {
		t.Errorf("announced %v", routes)
	}
	if err := w.agent.SetDrain(false); err != nil {
		t.Fatal(err)
	}
	if routes := w.speaker.State().Routes; len(routes) != 1 || routes[0].Graceful {
		t.Errorf("announced %v", routes)
	}
}

func TestLeaveIsForGood(t *testing.T) {
	w := newWorld(t)
	w.apply(planOf([]string{"203.0.113.10"}, "10.20.1.11"))
	w.probe("10.20.1.11", true, "connected")
	w.take()
	left := make(chan error)
	go func() { left <- w.agent.Leave(context.Background()) }()
	for done := false; !done; {
		select {
		case err := <-left:
			if err != nil {
				t.Fatal(err)
			}
			done = true
		default:
			if w.clock.Waiting() > 0 {
				w.clock.Advance(time.Second)
			}
		}
	}
	w.expect("way out", "routes [203.0.113.10 graceful]", "routes []")
	before := len(w.speaker.History())
	w.agent.Speak(context.Background())
	if len(w.speaker.History()) != before {
		t.Error("spoke after leaving")
	}
}

func TestOnlyChangedRingsAreBuilt(t *testing.T) {
	w := newWorld(t)
	p := planOf([]string{"203.0.113.10", "203.0.113.11"}, "10.20.1.11")
	w.apply(p)
	w.apply(p)
	p.Endpoints = slices.Clone(p.Endpoints) // applied plans are never changed in place
	p.Endpoints[1].Generation, p.Endpoints[1].RingCode = 2, 7
	w.apply(p)
	if want := []string{"64 of 1", "64 of 1", "128 of 1"}; !slices.Equal(w.built, want) {
		t.Errorf("built %q, want %q", w.built, want)
	}
	e := w.tables.state.Endpoints[1]
	if len(e.Ring) != 128 || e.KeySlot != 1 || w.tables.state.RingKeys[1] != [16]byte{1} || e.Members[0].MTU != 1500 {
		t.Errorf("tables got %+v", e)
	}
}

func TestNextHopsAndPathMTUReachTheTables(t *testing.T) {
	w := newWorld(t)
	p := planOf([]string{"203.0.113.10"}, "10.20.1.11", "10.20.2.11")
	w.apply(p)
	w.take()
	one, two := netip.MustParseAddr("10.20.1.11"), netip.MustParseAddr("10.20.2.11")
	if !slices.Equal(w.hops.want, []netip.Addr{one, two}) {
		t.Errorf("wanted %v", w.hops.want)
	}
	w.agent.HopsChanged(map[netip.Addr]netdev.NextHop{
		one: {MAC: [6]byte{2}, Ifindex: 4, MTU: 1400, Resolved: true}, two: {MTU: 9000, Ifindex: 4},
	})
	w.expect("a smaller MTU", "tables [203.0.113.10]")
	m := w.tables.state.Endpoints[0].Members
	if m[0].MTU != 1400 || m[1].MTU != 1500 {
		t.Errorf("MTUs %d, %d", m[0].MTU, m[1].MTU)
	}
	if w.tables.hops[one] != (dataplane.NextHop{MAC: [6]byte{2}, Ifindex: 4}) || w.tables.hops[two] != (dataplane.NextHop{}) {
		t.Errorf("next hops %v", w.tables.hops)
	}
}

func TestRestartKeepsNextHopsUntilAllAreKnownAgain(t *testing.T) {
	w := newWorld(t)
	p := planOf([]string{"203.0.113.10"}, "10.20.1.11")
	one := netip.MustParseAddr("10.20.1.11")
	way := netdev.NextHop{MAC: [6]byte{2}, Ifindex: 4, MTU: 1500, Resolved: true}
	w.apply(p)
	w.agent.HopsChanged(map[netip.Addr]netdev.NextHop{one: way})
	kept := w.tables.hops
	w.restart()
	w.agent.HopsChanged(map[netip.Addr]netdev.NextHop{})
	w.apply(p)
	w.agent.HopsChanged(map[netip.Addr]netdev.NextHop{netip.MustParseAddr("10.20.9.9"): way})
	if len(kept) != 1 || w.tables.hops[one] != kept[one] {
		t.Errorf("next hops %v, want %v", w.tables.hops, kept)
	}
	w.agent.HopsChanged(map[netip.Addr]netdev.NextHop{one: {}})
	if w.tables.hops[one] != (dataplane.NextHop{}) {
		t.Errorf("next hops %v, want an unresolved one", w.tables.hops)
	}
}

func TestUnreadablePasswordLeavesThePeerOut(t *testing.T) {
	w := newWorld(t)
	delete(w.files, "/etc/md5")
	err := w.agent.Apply(context.Background(), planOf([]string{"203.0.113.10"}, "10.20.1.11"))
	const want = "bgp peer 10.10.0.1: read passwordFile: no such file"
	if err == nil || err.Error() != want {
		t.Fatalf("got %v, want %s", err, want)
	}
	w.probe("10.20.1.11", true, "connected")
	if s := w.speaker.State(); len(s.Peers) != 0 || len(s.Routes) != 1 {
		t.Errorf("got %+v", s)
	}
}

// TestUnreadablePasswordKeepsTheSession: a running session keeps its password.
func TestUnreadablePasswordKeepsTheSession(t *testing.T) {
	w := newWorld(t)
	p := planOf([]string{"203.0.113.10"}, "10.20.1.11")
	w.apply(p)
	w.files["/etc/md5"] = ""
	if err := w.agent.Apply(context.Background(), p); err == nil || !strings.Contains(err.Error(), "its first line is empty") {
		t.Errorf("error %v", err)
	}
	w.agent.Speak(context.Background())
	if s := w.speaker.State(); len(s.Peers) != 1 || s.Peers[0].Password != "secret" {
		t.Errorf("%d peers", len(s.Peers))
	}
	w.files["/etc/md5"] = "other"
	w.apply(p)
	if s := w.speaker.State(); len(s.Peers) != 1 || s.Peers[0].Password != "other" {
		t.Errorf("%d peers", len(s.Peers))
	}
}

func TestStatusAndTrace(t *testing.T) {
	w := newWorld(t)
	w.speaker.RunAs(bgp.Process{PID: 790, Version: "v1.2.2", Commit: "89ef0123"})
	w.apply(planOf([]string{"203.0.113.10"}, "10.20.1.11", "10.20.2.11"))
	w.probe("10.20.1.11", true, "status 200")
	w.clock.Advance(comebackWait)
	w.agent.Speak(context.Background())
	s := w.agent.Status()
	if len(s.Members) != 2 || !s.Members[0].Alive || s.Members[0].LastCheck != "status 200" || s.Members[0].Service != "web" ||
		s.Members[1].Alive || s.Members[1].LastCheck != "not checked yet" {
		t.Errorf("members %v", s.Members)
	}
	if len(s.Routes) != 1 || !s.Routes[0].Advertised || s.Routes[0].Prefix != "203.0.113.10/32" {
		t.Errorf("routes %v", s.Routes)
	}
	if len(s.Peers) != 1 || s.Peers[0].State != "established" || s.Peers[0].Bfd != "up" {
		t.Errorf("peers %v", s.Peers)
	}
	if len(s.Processes) != 1 || s.Processes[0].Process != "speaker" || s.Processes[0].Pid != 790 || s.Processes[0].Version != "v1.2.2" || s.Processes[0].Commit != "89ef0123" {
		t.Errorf("processes %v", s.Processes)
	}
	r := w.agent.Trace(&apiv1.TraceRequest{Client: "198.51.100.11", ClientPort: 4242, Vip: "203.0.113.10", Port: 80, Protocol: "tcp"})
	if r.Verdict != "forwarded" || r.Dip != "10.20.1.11" || r.DipPort != 8080 || r.Service != "web" || r.OuterDestination != "10.20.1.11" {
		t.Errorf("trace %v", r)
	}
	r = w.agent.Trace(&apiv1.TraceRequest{Client: "2001:db8::1", Vip: "203.0.113.10"})
	if r.Error != "trace: client: 2001:db8::1: must be of the VIP's family" {
		t.Errorf("trace %v", r)
	}
}
