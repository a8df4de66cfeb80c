package mux

import (
	"slices"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/probe"
)

const heardVIP = "203.0.113.10"

// heardWorld returns an agent with a plan of two members, 1 and 2, which their hosts check, alone
// or in addition to the mux.
func heardWorld(t *testing.T, from string, change func(*plan.Endpoint)) (*world, plan.Plan) {
	w := newWorld(t)
	p := planOf([]string{heardVIP}, "10.20.1.11", "10.20.2.11")
	p.Endpoints[0].Health.From = from
	if change != nil {
		change(&p.Endpoints[0])
	}
	w.apply(p)
	w.take()
	return w, p
}

// said delivers host reports on the plan's members.
func (w *world) said(full bool, alive, dead, unknown []uint16) {
	key := planOf([]string{heardVIP}).Endpoints[0].Key
	w.agent.Heard(plan.Verdicts{Full: full, Endpoints: []plan.EndpointVerdicts{{Key: key, Alive: alive, Dead: dead, Unknown: unknown}}})
	w.agent.StandIn()
	w.speak()
}

func (w *world) speak() {
	w.agent.Speak(w.t.Context())
}

// pass advances the clock and applies the changes that are due.
func (w *world) pass(d time.Duration) {
	w.clock.Advance(d)
	w.agent.StandIn()
	w.agent.Tick()
	w.speak()
}

func TestHostDecides(t *testing.T) {
	w, _ := heardWorld(t, lb.FromHost, nil)
	if len(w.prober.targets) != 0 {
		t.Fatalf("probes %v, which is the hosts' business", w.prober.targets)
	}
	w.said(true, []uint16{1}, []uint16{2}, nil)
	w.expect("first account", "alive 203.0.113.10/1 true", "routes [203.0.113.10]")
	w.said(false, []uint16{2}, nil, nil)
	w.expect("the other one is up", "alive 203.0.113.10/2 true")
	w.said(false, nil, []uint16{1, 2}, nil)
	w.expect("both are down", "alive 203.0.113.10/1 false", "alive 203.0.113.10/2 false", "routes []")
	for _, m := range w.agent.Status().Members {
		if m.Alive || m.Unknown || m.LastCheck != wordsDead {
			t.Errorf("status %v", m)
		}
	}
	if len(w.prober.targets) != 0 {
		t.Errorf("probes %v", w.prober.targets)
	}
}

// TestHostsOwnWords: statuses and health transitions have the reason that the host sent, whether
// the host decides or only denies, and also for a member that the plan gets after the report.
// Reports without a reason are unchanged.
func TestHostsOwnWords(t *testing.T) {
	for _, from := range []string{lb.FromHost, lb.FromBoth} {
		w, p := heardWorld(t, from, nil)
		key := p.Endpoints[0].Key
		say := func(e plan.EndpointVerdicts) {
			e.Key = key
			w.agent.Heard(plan.Verdicts{Endpoints: []plan.EndpointVerdicts{e}})
		}
		expect := func(id uint32, want string) {
			t.Helper()
			for _, m := range w.agent.Status().Members {
				if m.Member == id && m.LastCheck != want {
					t.Errorf("from %s: status of %d: %q, want %q", from, id, m.LastCheck, want)
				}
			}
		}
		say(plan.EndpointVerdicts{Dead: []uint16{1, 3}, Words: map[uint16]string{1: "connection refused", 3: "status 503"}})
		expect(1, "its host says that it is dead: connection refused")
		if h, _ := w.agent.HealthOf(key, 1); h.Words != "its host says that it is dead: connection refused" {
			t.Errorf("from %s: %+v", from, h)
		}
		say(plan.EndpointVerdicts{Dead: []uint16{1}})
		expect(1, "its host says that it is dead")
		if from == lb.FromHost {
			say(plan.EndpointVerdicts{Alive: []uint16{1}, Words: map[uint16]string{1: "status 200"}})
			expect(1, "its host says that it is alive: status 200")
			h, _ := w.agent.HealthOf(key, 1)
			if n := len(h.Turns); n == 0 || h.Turns[n-1].Words != "its host says that it is alive: status 200" {
				t.Errorf("turns %v", h.Turns)
			}
			say(plan.EndpointVerdicts{Unknown: []uint16{1}})
			expect(1, wordsSilent)
		}
		third := p.Endpoints[0].Members[1]
		third.ID, third.DIP = 3, third.DIP.Next()
		third.Outer = third.DIP
		p.Endpoints = slices.Clone(p.Endpoints)
		p.Endpoints[0].Members = append(p.Endpoints[0].Members[:2:2], third)
		w.apply(p)
		expect(3, "its host says that it is dead: status 503")
	}
}

// TestVerdictsBeforeThePlan: reports on a member may arrive before the plan has it.
func TestVerdictsBeforeThePlan(t *testing.T) {
	w, p := heardWorld(t, lb.FromHost, nil)
	w.said(true, []uint16{1, 2, 3}, nil, nil)
	w.take()
	third := p.Endpoints[0].Members[1]
	third.ID, third.DIP = 3, third.DIP.Next()
	third.Outer = third.DIP
	p.Endpoints = slices.Clone(p.Endpoints)
	p.Endpoints[0].Members = append(p.Endpoints[0].Members[:2:2], third)
	w.apply(p)
	if alive, known := w.tables.Alive(p.Endpoints[0].Key, 3); !alive || !known {
		t.Errorf("a member of which its host spoke before: alive %v, known %v", alive, known)
	}
	for _, m := range w.agent.Status().Members {
		if m.Member == 3 && (!m.Alive || m.Unknown || m.LastCheck != wordsAlive) {
			t.Errorf("status of a member of which its host spoke before: %v", m)
		}
	}
}

// TestVetoBeforeTheFirstCheck: the status has a member that its host reports as dead before the mux
// has checked it.
func TestVetoBeforeTheFirstCheck(t *testing.T) {
	w, _ := heardWorld(t, lb.FromBoth, nil)
	w.said(true, nil, []uint16{1}, nil)
	for _, m := range w.agent.Status().Members {
		if dead := m.Member == 1; m.Unknown == dead || dead && (m.Alive || m.LastCheck != wordsDead) {
			t.Errorf("status %v", m)
		}
	}
}

func TestHostVerdictsDecideForAllAtOnce(t *testing.T) {
	w, _ := heardWorld(t, lb.FromHost, func(e *plan.Endpoint) { e.FailOpen = true })
	w.said(true, []uint16{1, 2}, nil, nil)
	w.take()
	w.said(false, nil, []uint16{1, 2}, nil)
	w.expect("all are down: it fails open, and never was without a member")
	w.said(false, []uint16{2}, nil, nil)
	w.expect("one is back", "alive 203.0.113.10/1 false")
	b, _ := heardWorld(t, lb.FromHost, func(e *plan.Endpoint) { e.Members[1].Backup, e.BackupBelow = true, 50 })
	b.said(true, []uint16{1, 2}, nil, nil)
	b.take()
	b.said(false, nil, []uint16{1}, nil)
	b.expect("backups take part", "alive 203.0.113.10/1 false", "backup 203.0.113.10 true")
}

func TestMuxChecksWhenTheHostIsSilent(t *testing.T) {
	w, _ := heardWorld(t, lb.FromHost, nil)
	w.said(true, []uint16{1, 2}, nil, nil)
	w.take()
	w.said(false, nil, nil, []uint16{1})
	if len(w.prober.targets) != 1 {
		t.Fatalf("probes %v, want the member whose host is silent", w.prober.targets)
	}
	w.expect("silence is no verdict")
	w.probe("10.20.1.11", false, "refused")
	w.probe("10.20.1.11", false, "refused")
	w.expect("its own check", "alive 203.0.113.10/1 false")
	stale := w.prober.targets[0]
	w.said(false, []uint16{1}, nil, nil)
	w.expect("the host is back", "alive 203.0.113.10/1 true")
	if len(w.prober.targets) != 0 {
		t.Errorf("still probes %v", w.prober.targets)
	}
	for range 2 {
		w.agent.Probed([]probe.Result{result(stale, false)})
	}
	w.expect("a probe that was under way does not count")
}

// TestAccountWithoutAMember: a manager that has just started does not have the reports of all hosts
// yet.
func TestAccountWithoutAMember(t *testing.T) {
	w, _ := heardWorld(t, lb.FromHost, nil)
	w.said(true, []uint16{1, 2}, nil, nil)
	w.take()
	w.said(true, []uint16{1}, nil, nil)
	w.pass(keepMissing - time.Millisecond)
	w.expect("its last verdict counts")
	if len(w.prober.targets) != 0 {
		t.Fatalf("probes %v before the host had time to come back", w.prober.targets)
	}
	w.pass(time.Millisecond)
	if len(w.prober.targets) != 1 || w.prober.targets[0].Address.Addr().String() != "10.20.2.11" {
		t.Fatalf("probes %v, want the member that nobody speaks of", w.prober.targets)
	}
}

// TestRestartWithoutAManager: the health in tables and host reports stays in force for as long as
// there is no manager.
func TestRestartWithoutAManager(t *testing.T) {
	w, p := heardWorld(t, lb.FromHost, nil)
	w.said(true, []uint16{1}, []uint16{2}, nil)
	w.take()
	w.restart()
	w.prober.targets = nil
	w.apply(p)
	w.take()
	w.pass(time.Hour)
	w.expect("nothing changed")
	if len(w.prober.targets) != 0 {
		t.Fatalf("probes %v, though no manager said that hosts are silent", w.prober.targets)
	}
	w.said(true, nil, nil, nil)
	if w.pass(keepMissing - time.Millisecond); len(w.prober.targets) != 0 {
		t.Fatalf("probes %v before the hosts had time to come back", w.prober.targets)
	}
	w.pass(time.Millisecond)
	if len(w.prober.targets) != 2 {
		t.Errorf("probes %v, want all that no host speaks of", w.prober.targets)
	}
}

// TestNobodySpeaksForNewMembers: the mux checks backends without a host agent.
func TestNobodySpeaksForNewMembers(t *testing.T) {
	w, _ := heardWorld(t, lb.FromHost, nil)
	w.pass(keepMissing)
	if len(w.prober.targets) != 2 {
		t.Fatalf("probes %v, want both members", w.prober.targets)
	}
	w.probe("10.20.1.11", false, "refused")
	w.probe("10.20.2.11", true, "connected")
	w.expect("its own check", "alive 203.0.113.10/2 true", "routes [203.0.113.10]")
}

func TestBothMustAgree(t *testing.T) {
	w, p := heardWorld(t, lb.FromBoth, nil)
	if len(w.prober.targets) != 2 {
		t.Fatalf("probes %v, want both members", w.prober.targets)
	}
	w.said(true, []uint16{1, 2}, nil, nil)
	w.probe("10.20.2.11", false, "refused")
	w.expect("the path is not confirmed")
	w.probe("10.20.1.11", true, "connected")
	w.expect("it is", "alive 203.0.113.10/1 true", "routes [203.0.113.10]")
	w.said(false, nil, []uint16{1}, nil)
	w.expect("the host decides", "alive 203.0.113.10/1 false", "routes []")
	w.probe("10.20.1.11", true, "connected")
	w.expect("and nobody else")
	w.apply(p)
	w.expect("nor a plan", "tables [203.0.113.10]")
	if m := w.agent.Status().Members[0]; m.Alive || m.LastCheck != wordsDead {
		t.Errorf("status %v", m)
	}
	w.said(false, nil, nil, []uint16{1})
	w.expect("without the host the path decides", "alive 203.0.113.10/1 true", "routes [203.0.113.10]")
	w.said(false, []uint16{1}, nil, nil)
	w.probe("10.20.1.11", false, "refused")
	w.probe("10.20.1.11", false, "refused")
	w.expect("a path that is gone", "alive 203.0.113.10/1 false", "routes []")
}

// TestHostHasNoRoomForAMember: a member that its host reports as dead gets no flows, although only
// muxes check it or it has no checks. It comes back when the host revokes the report or becomes
// silent.
func TestHostHasNoRoomForAMember(t *testing.T) {
	for name, change := range map[string]func(*plan.Endpoint){"checked by muxes": nil, "not checked": func(e *plan.Endpoint) { e.Health.Checks = nil }} {
		w, p := heardWorld(t, lb.FromMux, change)
		for _, target := range w.prober.targets {
			for range 3 {
				w.agent.Probed([]probe.Result{result(target, true)})
			}
		}
		w.speak()
		w.take()
		w.agent.Heard(plan.Verdicts{Endpoints: []plan.EndpointVerdicts{{Key: p.Endpoints[0].Key, Dead: []uint16{2}, Words: map[uint16]string{2: "no room"}}}})
		w.speak()
		w.expect(name+": no room", "alive 203.0.113.10/2 false")
		if m := w.agent.Status().Members[1]; m.Alive || m.LastCheck != wordsDead+": no room" {
			t.Errorf("%s: status %v", name, m)
		}
		w.said(false, nil, nil, []uint16{2})
		w.expect(name+": room again", "alive 203.0.113.10/2 true")
	}
}
