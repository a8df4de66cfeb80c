package mux

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/probe"
)

// dead returns a world with three members, of which none is alive any more.
func dead(t *testing.T) *world {
	w := newWorld(t)
	w.apply(planOf([]string{"203.0.113.10"}, "10.20.1.11", "10.20.2.11", "10.20.3.11"))
	for _, good := range []bool{true, false, false} {
		for _, dip := range []string{"10.20.1.11", "10.20.2.11", "10.20.3.11"} {
			w.probe(dip, good, "")
		}
	}
	w.take()
	if n := len(w.speaker.State().Routes); n != 0 {
		t.Fatalf("%d routes with all members dead", n)
	}
	return w
}

// TestComebackWaitsForTheOthers: a mux that was cut off announces a VIP after all members have a
// new result.
func TestComebackWaitsForTheOthers(t *testing.T) {
	w := dead(t)
	w.probe("10.20.1.11", true, "connected")
	w.probe("10.20.2.11", true, "connected")
	w.probe("10.20.1.11", true, "connected")
	w.expect("one is back, one comes, one was not asked", "alive 203.0.113.10/1 true")
	w.probe("10.20.3.11", false, "connection refused")
	w.expect("one comes still")
	w.probe("10.20.2.11", true, "connected")
	w.expect("all are known", "alive 203.0.113.10/2 true", "routes [203.0.113.10]")
	w.probe("10.20.3.11", true, "connected")
	w.expect("what is announced is not taken back")
}

// TestComebackEnds: a flapping member does not hold a VIP down without limit.
func TestComebackEnds(t *testing.T) {
	w := dead(t)
	w.probe("10.20.1.11", true, "connected")
	w.probe("10.20.2.11", true, "connected")
	w.probe("10.20.1.11", true, "connected")
	w.take()
	w.clock.Advance(comebackWait)
	w.agent.Speak(context.Background())
	w.expect("in time", "routes [203.0.113.10]")
}

// TestFirstAnnouncementWaitsForAll: a VIP that moves here has flows to all of its members.
func TestFirstAnnouncementWaitsForAll(t *testing.T) {
	w := newWorld(t)
	w.apply(planOf([]string{"203.0.113.10"}, "10.20.1.11", "10.20.2.11"))
	w.probe("10.20.1.11", true, "connected")
	w.expect("the other was not asked", "tables [203.0.113.10]", "alive 203.0.113.10/1 true")
	w.probe("10.20.2.11", false, "connection refused")
	w.expect("it is dead", "routes [203.0.113.10]")
	w.apply(planOf([]string{"203.0.113.10"}, "10.20.1.11", "10.20.2.11", "10.20.3.11"))
	w.expect("what is announced is not taken back", "tables [203.0.113.10]")
	silent := newWorld(t)
	silent.apply(planOf([]string{"203.0.113.10"}, "10.20.1.11", "10.20.2.11"))
	silent.probe("10.20.1.11", true, "connected")
	silent.take()
	silent.clock.Advance(comebackWait)
	silent.agent.Speak(context.Background())
	silent.expect("nobody is waited for for ever", "routes [203.0.113.10]")
}

// TestNewMemberWaitsForNobody: a member that was never dead is no evidence of a cut, so that its
// VIP is announced immediately.
func TestNewMemberWaitsForNobody(t *testing.T) {
	w := dead(t)
	w.apply(planOf([]string{"203.0.113.10"}, "10.20.1.11", "10.20.4.11"))
	w.take()
	w.probe("10.20.4.11", true, "connected")
	w.expect("announced at once", "alive 203.0.113.10/2 true", "routes [203.0.113.10]")
}

// TestCutLinkKillsNobody: probes that fail while the interface has no carrier, or began then, do
// not count.
func TestCutLinkKillsNobody(t *testing.T) {
	w := newWorld(t)
	w.apply(planOf([]string{"203.0.113.10"}, "10.20.1.11"))
	w.probe("10.20.1.11", true, "connected")
	w.take()
	fail := func() {
		for range 3 {
			w.probe("10.20.1.11", false, "no connection")
		}
	}
	w.agent.LinkChanged(false)
	fail()
	w.expect("no carrier")
	w.agent.LinkChanged(true)
	fail()
	w.expect("just back")
	w.clock.Advance(time.Minute)
	w.take()
	fail()
	w.expect("long back", "alive 203.0.113.10/1 false", "routes []")
	w.agent.LinkChanged(false)
	w.probe("10.20.1.11", true, "connected")
	w.probe("10.20.1.11", true, "connected")
	w.expect("good ones count always", "alive 203.0.113.10/1 true", "routes [203.0.113.10]")
}

// TestVoidProbesCountForNothing: a mux that runs out of file descriptors does not remove servers.
func TestVoidProbesCountForNothing(t *testing.T) {
	w := newWorld(t)
	w.apply(planOf([]string{"203.0.113.10"}, "10.20.1.11"))
	w.probe("10.20.1.11", true, "connected")
	w.take()
	for range 3 {
		w.agent.Probed([]probe.Result{{Target: w.prober.targets[0], Void: true, Words: "too many open files"}})
	}
	w.expect("nothing")
	if got := w.agent.Status().Members[0].LastCheck; got != "too many open files (does not count)" {
		t.Errorf("last check %q", got)
	}
}

// TestNoRouteNoAnnouncement: a VIP whose live members are unreachable for the kernel is not
// announced.
func TestNoRouteNoAnnouncement(t *testing.T) {
	w := newWorld(t)
	w.apply(planOf([]string{"203.0.113.10"}, "10.20.1.11", "10.20.2.11"))
	w.probe("10.20.1.11", true, "connected")
	w.clock.Advance(comebackWait)
	w.agent.Speak(context.Background())
	w.take()
	one, two := netip.MustParseAddr("10.20.1.11"), netip.MustParseAddr("10.20.2.11")
	hear := func(hops map[netip.Addr]netdev.NextHop) {
		w.agent.HopsChanged(hops)
		w.agent.Speak(context.Background())
	}
	hear(map[netip.Addr]netdev.NextHop{one: {}, two: {Ifindex: 2}})
	w.expect("no way to the one that lives", "routes []")
	w.probe("10.20.2.11", true, "connected")
	w.expect("a way to another", "alive 203.0.113.10/2 true", "routes [203.0.113.10]")
	hear(map[netip.Addr]netdev.NextHop{one: {}, two: {}})
	w.expect("no way at all", "routes []")
	hear(map[netip.Addr]netdev.NextHop{one: {Ifindex: 2}, two: {}})
	w.expect("a way, not resolved yet", "routes [203.0.113.10]")
}

// TestTendTells: the status has the interface's faults until they are repaired.
func TestTendTells(t *testing.T) {
	w := newWorld(t)
	w.apply(planOf(nil))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	answers := make(chan error)
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.agent.Tend(ctx, func() (string, error) { return "", <-answers })
	}()
	step := func(err error) {
		for {
			select {
			case answers <- err:
				return
			default:
				w.clock.Advance(tendInterval)
			}
		}
	}
	step(errors.New("no such device"))
	step(errors.New("no such device"))
	if got := w.agent.Status().Error; got != "interface: no such device" {
		t.Errorf("status says %q", got)
	}
	step(nil)
	step(nil)
	if got := w.agent.Status().Error; got != "" {
		t.Errorf("status says %q", got)
	}
	cancel()
	<-done
}

// TestAnnouncedBeforeSaysNothingOfLater: a VIP that a previous agent announced, and that this one's
// first plan does not have, waits for all of its members when it comes back.
func TestAnnouncedBeforeSaysNothingOfLater(t *testing.T) {
	w := newWorld(t)
	both := planOf([]string{"203.0.113.10", "203.0.113.11"}, "10.20.1.11")
	both.Endpoints[1].Members = planOf([]string{"203.0.113.11"}, "10.20.1.11", "10.20.2.11").Endpoints[0].Members
	w.apply(both)
	w.probe("10.20.1.11", true, "connected")
	w.probe("10.20.2.11", true, "connected")
	w.restart()
	w.apply(planOf([]string{"203.0.113.10"}, "10.20.1.11"))
	w.take()
	w.apply(both)
	w.expect("one of its members serves the other VIP, one was not asked", "tables [203.0.113.10 203.0.113.11]")
	w.probe("10.20.2.11", true, "connected")
	w.expect("all are known", "alive 203.0.113.11/2 true", "routes [203.0.113.10 203.0.113.11]")
}

// TestUnaskableHoldsNothingBack: a member that this mux cannot probe is unknown, and neither its
// VIP nor its endpoint's decision waits for it.
func TestUnaskableHoldsNothingBack(t *testing.T) {
	const words = "cannot be asked here: no programs"
	begin := func(failOpen bool) *world {
		w := newWorld(t)
		p := planOf([]string{"203.0.113.10"}, "10.20.1.11", "10.20.2.11")
		p.Endpoints[0].FailOpen = failOpen
		w.apply(p)
		w.take()
		return w
	}
	unaskable := func(w *world) {
		for _, target := range w.prober.targets {
			if target.Address.Addr() == netip.MustParseAddr("10.20.2.11") {
				w.agent.Probed([]probe.Result{{Target: target, Void: true, Unaskable: true, Words: words}})
			}
		}
		w.agent.Speak(context.Background())
	}
	w := begin(false)
	unaskable(w)
	w.expect("nobody is known")
	w.probe("10.20.1.11", true, "connected")
	w.expect("the other is", "alive 203.0.113.10/1 true", "routes [203.0.113.10]")
	m := w.agent.Status().Members[1]
	if m.Alive || !m.Unknown || m.LastCheck != words+" (does not count)" {
		t.Errorf("it is %v", m)
	}
	w.probe("10.20.2.11", true, "connected")
	w.expect("it can be asked", "alive 203.0.113.10/2 true")
	if m := w.agent.Status().Members[1]; !m.Alive || m.Unknown {
		t.Errorf("asked, it is %v", m)
	}

	w = begin(false)
	w.probe("10.20.1.11", true, "connected")
	w.expect("it may be asked still", "alive 203.0.113.10/1 true")
	unaskable(w)
	w.expect("it is not waited for", "routes [203.0.113.10]")

	w = begin(true)
	w.probe("10.20.1.11", false, "connection refused")
	w.expect("it may be alive")
	unaskable(w)
	w.expect("no member is healthy", "alive 203.0.113.10/1 true", "alive 203.0.113.10/2 true", "routes [203.0.113.10]")
}
