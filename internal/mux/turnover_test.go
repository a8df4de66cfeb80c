package mux

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/bgp"
)

// TestSpeakerTurnover: a speaker of another build is replaced only if no router loses a route by
// that.
func TestSpeakerTurnover(t *testing.T) {
	own, other := bgp.Process{Version: "v2", Commit: "b"}, bgp.Process{PID: 790, Version: "v1", Commit: "a"}
	routes := func(vips ...string) (out []bgp.Route) {
		for _, v := range vips {
			a := netip.MustParseAddr(v)
			out = append(out, bgp.Route{Prefix: netip.PrefixFrom(a, a.BitLen())})
		}
		return out
	}
	peer := func(address, state string, keeps bool) bgp.PeerStatus {
		return bgp.PeerStatus{Address: netip.MustParseAddr(address), State: state, GracefulRestart: keeps}
	}
	good, bad, away := peer("10.10.0.1", "established", true), peer("10.10.0.2", "established", false), peer("10.10.0.2", "active", false)
	two := routes("203.0.113.10", "2001:db8:f::10")
	for name, c := range map[string]struct {
		own  bgp.Process
		want []bgp.Route
		have bgp.Status
		how  turnover
		kept string
	}{
		"the same build":                   {own, two, bgp.Status{Process: bgp.Process{PID: 790, Version: "v2", Commit: "b"}, Routes: two, Peers: []bgp.PeerStatus{good}}, turnoverNone, ""},
		"the same version, another commit": {own, two, bgp.Status{Process: bgp.Process{PID: 790, Version: "v2"}, Routes: two, Peers: []bgp.PeerStatus{good}}, turnoverKeep, ""},
		"a speaker in this process":        {own, two, bgp.Status{Routes: two, Peers: []bgp.PeerStatus{good}}, turnoverNone, ""},
		"an agent without a build":         {bgp.Process{}, two, bgp.Status{Process: other, Routes: two, Peers: []bgp.PeerStatus{good}}, turnoverNone, ""},
		"all routers keep the routes":      {own, two, bgp.Status{Process: other, Routes: routes("2001:db8:f::10", "203.0.113.10"), Peers: []bgp.PeerStatus{good, away}}, turnoverKeep, ""},
		"one router would lose them":       {own, two, bgp.Status{Process: other, Routes: two, Peers: []bgp.PeerStatus{good, bad}}, turnoverNone, "10.10.0.2; it is replaced once the mux is drained"},
		"no session":                       {own, two, bgp.Status{Process: other, Routes: two, Peers: []bgp.PeerStatus{away}}, turnoverKeep, ""},
		"drained":                          {own, nil, bgp.Status{Process: other, Peers: []bgp.PeerStatus{bad}}, turnoverClose, ""},
		"being drained":                    {own, nil, bgp.Status{Process: other, Routes: two, Peers: []bgp.PeerStatus{good}}, turnoverNone, "not the wanted ones yet"},
		"an agent that has just begun":     {own, two[:1], bgp.Status{Process: other, Routes: two, Peers: []bgp.PeerStatus{good}}, turnoverNone, "not the wanted ones yet"},
		"as many, but others":              {own, routes("203.0.113.11", "2001:db8:f::10"), bgp.Status{Process: other, Routes: two, Peers: []bgp.PeerStatus{good}}, turnoverNone, "not the wanted ones yet"},
		"withheld":                         {own, two, bgp.Status{Process: other, Withheld: "the data plane is not attached", Peers: []bgp.PeerStatus{bad}}, turnoverNone, "10.10.0.2"},
	} {
		how, kept := speakerTurnover(c.own, bgp.State{Routes: c.want}, c.have)
		if how != c.how || (c.kept == "") != (kept == "") || !strings.Contains(kept, c.kept) {
			t.Errorf("%s: %d, kept because %q; want %d, %q", name, how, kept, c.how, c.kept)
		}
	}
}

// TestSpeakerIsTurnedOver: the agent replaces a speaker of another build once, sends its state to
// the new one in the same call, and reports the reason if it keeps one.
func TestSpeakerIsTurnedOver(t *testing.T) {
	w := newWorld(t)
	w.agent.o.Build = bgp.Process{Version: "v2"}
	w.speaker.RunAs(bgp.Process{PID: 790, Version: "v2"})
	var replaced []bool
	w.agent.o.Replace = func(_ context.Context, keep bool) error {
		replaced = append(replaced, keep)
		w.speaker.RunAs(bgp.Process{PID: 812, Version: "v3"}) // the file was replaced meanwhile
		return w.speaker.Fake.Set(context.Background(), bgp.State{})
	}
	w.apply(planOf([]string{"203.0.113.10"}, "10.20.1.11"))
	w.probe("10.20.1.11", true, "status 200")
	speak := func() {
		w.agent.forgetSaid()
		w.agent.Speak(context.Background())
	}
	w.speaker.RunAs(bgp.Process{PID: 790, Version: "v1"})
	speak()
	if len(replaced) != 0 {
		t.Fatalf("replaced %v, though the router would lose the routes", replaced)
	}
	if p := w.agent.Status().Processes; len(p) != 1 || !strings.Contains(p[0].Kept, "graceful restart") || !strings.Contains(p[0].Kept, "10.10.0.1") {
		t.Errorf("processes %v, want one that is kept for 10.10.0.1", p)
	}
	w.speaker.KeepRoutes()
	for range 3 {
		speak()
	}
	if len(replaced) != 1 || !replaced[0] {
		t.Errorf("replaced %v, want once, with the routes kept", replaced)
	}
	if s := w.speaker.State(); len(s.Routes) != 1 || len(s.Peers) != 1 {
		t.Errorf("the next speaker has state %+v", s)
	}
	if p := w.agent.Status().Processes; len(p) != 1 || p[0].Pid != 812 || p[0].Kept != "" {
		t.Errorf("processes %v, want 812", p)
	}
}
