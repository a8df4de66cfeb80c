package mux

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/probe"
)

// onHosts puts the two members of heardWorld on machines.
func onHosts(e *plan.Endpoint) {
	e.Members[0].Host, e.Members[1].Host = netip.MustParseAddr("10.20.1.1"), netip.MustParseAddr("10.20.2.1")
}

// pings delivers probe results of machines, "10.20.1.1+" or "10.20.1.1-".
func (w *world) pings(answers ...string) {
	for _, answer := range answers {
		end := len(answer) - 1
		good := answer[end] == '+'
		w.agent.Probed([]probe.Result{{Target: probe.Machine(netip.MustParseAddr(answer[:end])), Good: good, Silent: !good, Words: "drawn"}})
		w.agent.StandIn()
		w.speak()
	}
}

// probed returns the addresses that the mux probes, sorted.
func (w *world) probed() (out []string) {
	for _, t := range w.prober.targets {
		out = append(out, t.Address.String())
	}
	slices.Sort(out)
	return out
}

func (w *world) expectProbed(want ...string) {
	w.t.Helper()
	if got := w.probed(); !slices.Equal(got, want) {
		w.t.Errorf("probes %v, want %v", got, want)
	}
}

const (
	machine1, machine2 = "10.20.1.1:0", "10.20.2.1:0"
	server1            = "10.20.1.11:8080"
)

// TestMuxDoesNotReachAHost: the host reports its server as alive, but no packet from this mux
// reaches it.
func TestMuxDoesNotReachAHost(t *testing.T) {
	w, p := heardWorld(t, lb.FromHost, onHosts)
	w.said(true, []uint16{1, 2}, nil, nil)
	w.take()
	w.expectProbed(machine1, machine2)
	w.pings("10.20.1.1+", "10.20.2.1+", "10.20.1.1-")
	w.expectProbed(machine1, machine2)
	w.pings("10.20.1.1-")
	w.expectProbed(server1, machine1, machine2)
	w.expect("the last verdict counts until the mux's own checks come to another")
	if st := w.agent.Status(); !slices.Equal(st.UnreachedHosts, []string{"10.20.1.1"}) {
		t.Errorf("unreached hosts %v", st.UnreachedHosts)
	}
	w.probe("10.20.1.11", false, "no answer")
	w.said(false, []uint16{1}, nil, nil) // correct, but the path is still lost
	w.probe("10.20.1.11", false, "no answer")
	w.expect("the mux does not reach it", "alive 203.0.113.10/1 false")
	// A change of the plan does not change that.
	p.Endpoints = slices.Clone(p.Endpoints)
	p.Endpoints[0].Members = slices.Clone(p.Endpoints[0].Members)
	p.Endpoints[0].Members[1].Weight++
	w.apply(p)
	w.take()
	w.expectProbed(server1, machine1, machine2)
	if w.agent.Status().Members[0].Alive {
		t.Error("alive after a change of the plan")
	}
	w.pings("10.20.1.1+", "10.20.1.1+")
	w.expect("the way is back", "alive 203.0.113.10/1 true")
	w.expectProbed(machine1, machine2)
	if st := w.agent.Status(); len(st.UnreachedHosts) != 0 {
		t.Errorf("unreached hosts %v", st.UnreachedHosts)
	}
}

// TestCutHostStillDenies: while the mux checks a server itself, a dead verdict of the host still
// applies.
func TestCutHostStillDenies(t *testing.T) {
	w, _ := heardWorld(t, lb.FromHost, onHosts)
	w.said(true, []uint16{1, 2}, nil, nil)
	w.take()
	w.pings("10.20.1.1+", "10.20.1.1-", "10.20.1.1-")
	w.probe("10.20.1.11", true, "connected")
	w.expect("its own check finds it alive")
	w.said(false, nil, []uint16{1}, nil)
	w.expect("the host says dead", "alive 203.0.113.10/1 false")
	w.pings("10.20.1.1+", "10.20.1.1+")
	w.expect("dead as before")
	w.said(false, []uint16{1}, nil, nil)
	w.expect("the host says alive", "alive 203.0.113.10/1 true")
}

// TestMachinesFollowThePlan: a machine has one probe however many members are on it, and none after
// the last one left. A mux that checks members itself probes no machines.
func TestMachinesFollowThePlan(t *testing.T) {
	w, p := heardWorld(t, lb.FromHost, func(e *plan.Endpoint) {
		onHosts(e)
		e.Members[1].Host = e.Members[0].Host
	})
	w.expectProbed(machine1)
	p.Endpoints = slices.Clone(p.Endpoints)
	p.Endpoints[0].Members = p.Endpoints[0].Members[:1]
	w.apply(p)
	w.expectProbed(machine1)
	if n := w.agent.roster.machines.byHost[netip.MustParseAddr("10.20.1.1")].members; n != 1 {
		t.Errorf("%d members on the machine, want 1", n)
	}
	for range 10 {
		w.pings("10.20.1.1-")
	}
	if st := w.agent.Status(); !slices.Equal(st.UnconfirmedHosts, []string{"10.20.1.1"}) || len(st.UnreachedHosts) != 0 {
		t.Errorf("a machine that never answers: unconfirmed %v, unreached %v", st.UnconfirmedHosts, st.UnreachedHosts)
	}
	w.expectProbed(machine1)
	p.Endpoints = slices.Clone(p.Endpoints)
	p.Endpoints[0].Health.From = lb.FromMux
	p.Endpoints[0].Members = []plan.Member{p.Endpoints[0].Members[0]}
	p.Endpoints[0].Members[0].Host = netip.Addr{}
	w.apply(p)
	w.expectProbed(server1)
}
