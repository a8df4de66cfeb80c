package mux

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// lingeringWorld has two VIPs of two services, with their own and a policy's sources, both
// announced.
func lingeringWorld(t *testing.T) (w *world, both plan.Plan) {
	w = newWorld(t)
	o := w.agent.o
	o.Linger = 5 * time.Second
	var err error
	if w.agent, err = New(o); err != nil {
		t.Fatal(err)
	}
	both = planOf([]string{"203.0.113.10", "203.0.113.11"}, "10.20.1.11")
	allow := func(prefix string) lb.Sources {
		return lb.Sources{Allow: []netip.Prefix{netip.MustParsePrefix(prefix)}}
	}
	both.Services = []plan.Service{
		{Name: "api", VIPs: []netip.Addr{netip.MustParseAddr("203.0.113.11")}, SourcesOf: "inside"},
		{Name: "web", VIPs: []netip.Addr{netip.MustParseAddr("203.0.113.10")}, Sources: allow("198.51.100.0/24")},
	}
	both.Sources = []plan.Sources{{Policy: "inside", Sources: allow("10.0.0.0/8")}}
	w.apply(both)
	w.probe("10.20.1.11", true, "connected")
	w.take()
	return w, both
}

// none returns a plan without VIPs.
func none(p plan.Plan) plan.Plan {
	p.Endpoints, p.Services, p.Sources = nil, nil, nil
	return p
}

// TestWithdrawnVIPLingers: a VIP first leaves the routes, and the tables after its grace period.
// Its sources apply meanwhile.
func TestWithdrawnVIPLingers(t *testing.T) {
	w, both := lingeringWorld(t)
	w.apply(none(both))
	w.expect("withdrawn", "routes []", "tables [203.0.113.10 203.0.113.11]")
	if n := len(w.agent.Status().Routes); n != 0 {
		t.Errorf("%d VIPs are called the mux's", n)
	}
	for _, v := range w.tables.state.VIPs {
		if v.Sources == nil {
			t.Errorf("%v lingers for everybody", v.VIP)
		}
	}
	w.clock.Advance(5*time.Second - 1)
	w.agent.forgetLingering(context.Background())
	w.expect("not yet", "tables [203.0.113.10 203.0.113.11]")
	w.clock.Advance(1)
	w.agent.forgetLingering(context.Background())
	w.expect("over", "tables []")
}

// TestLingeringVIPReturns: it is announced immediately, because the tables have it and its members
// have health.
func TestLingeringVIPReturns(t *testing.T) {
	w, both := lingeringWorld(t)
	w.apply(none(both))
	w.clock.Advance(time.Second)
	one := both
	one.Endpoints = both.Endpoints[:1]
	w.take()
	w.apply(one)
	w.expect("one is back", "tables [203.0.113.10 203.0.113.11]", "routes [203.0.113.10]")
	w.clock.Advance(4 * time.Second)
	w.agent.forgetLingering(context.Background())
	w.expect("the other is over", "tables [203.0.113.10]")
}

// TestChangeOfWhatStaysDoesNotLinger: an endpoint is removed immediately if its VIP stays.
func TestChangeOfWhatStaysDoesNotLinger(t *testing.T) {
	w, both := lingeringWorld(t)
	other := both
	other.Endpoints = slices.Clone(both.Endpoints)
	other.Endpoints[0].Key.Port = 443
	w.apply(other)
	for _, e := range w.tables.state.Endpoints {
		if e.Key.VIP == other.Endpoints[0].Key.VIP && e.Key.Port == 80 {
			t.Errorf("%v is left", e.Key)
		}
	}
}

// TestNoRoomForWhatLingers: new VIPs take precedence over retired ones.
func TestNoRoomForWhatLingers(t *testing.T) {
	w, both := lingeringWorld(t)
	next := none(both)
	next.Endpoints = planOf([]string{"203.0.113.12"}, "10.20.1.11").Endpoints
	w.tables.room = 2
	w.apply(next)
	w.expect("no room", "routes []", "tables [203.0.113.12]", "routes [203.0.113.12]")
	w.tables.room, w.tables.fail = 0, errors.New("does not fit")
	if err := w.agent.Apply(context.Background(), none(both)); err == nil {
		t.Error("a plan that does not fit is obeyed")
	}
	w.tables.fail = nil
	w.agent.Speak(context.Background())
	w.expect("nothing changed", "routes []", "routes [203.0.113.12]")
}

// TestLingerLooksByItself runs the loop.
func TestLingerLooksByItself(t *testing.T) {
	w, both := lingeringWorld(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); w.agent.Linger(ctx) }()
	w.apply(none(both))
	for !slices.Contains(w.take(), "tables []") {
		if w.clock.Waiting() > 0 {
			w.clock.Advance(time.Second)
		}
	}
	cancel()
	<-done
}
