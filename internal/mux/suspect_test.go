package mux

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/probe"
)

// doubtWorld returns an agent with four services of two members each, all alive and announced.
// Members are 1 and 2 of VIPs 203.0.113.10 to 13.
func doubtWorld(t *testing.T, change func(*lb.Health)) *world {
	w := newWorld(t)
	w.doubtful(change)
	return w
}

// doubtful gives the agent the plan described at doubtWorld.
func (w *world) doubtful(change func(*lb.Health)) {
	w.t.Helper()
	p := planOf(nil)
	for i := range 4 {
		e := planOf([]string{fmt.Sprintf("203.0.113.%d", 10+i)}, fmt.Sprintf("10.20.%d.1", i), fmt.Sprintf("10.20.%d.2", i)).Endpoints[0]
		e.Service = fmt.Sprint("web", i)
		if change != nil {
			change(&e.Health)
		}
		p.Endpoints = append(p.Endpoints, e)
	}
	w.apply(p)
	w.each(4, true, false)
	w.take()
	if n := len(w.speaker.State().Routes); n != 4 {
		w.t.Fatalf("%d routes", n)
	}
}

// each gives all members of the first services one result.
func (w *world) each(services int, good, silent bool) {
	var batch []probe.Result
	slices.SortFunc(w.prober.targets, compareTargets)
	for _, target := range w.prober.targets {
		if int(target.Address.Addr().As4()[2]) < services {
			batch = append(batch, probe.Result{Target: target, Good: good, Silent: silent, Words: "drawn"})
		}
	}
	w.agent.Probed(batch)
	w.speak()
}

// poked reports whether Suspicions was notified.
func (w *world) poked() bool {
	select {
	case <-w.agent.Suspicions():
		return true
	default:
		return false
	}
}

func vip(i int) lb.EndpointKey {
	return lb.EndpointKey{VIP: netip.AddrFrom4([4]byte{203, 0, 113, byte(10 + i)}), Protocol: lb.TCP, Port: 80}
}

// TestCutOffMuxKeepsItsVerdicts: an isolated mux keeps its verdicts until the grace period ends.
func TestCutOffMuxKeepsItsVerdicts(t *testing.T) {
	w := doubtWorld(t, nil)
	for range 5 {
		w.each(4, false, true)
	}
	w.expect("it suspects itself")
	if since := w.agent.Suspect(); !since.Equal(w.clock.Now()) || !w.poked() {
		t.Fatalf("suspects itself since %v", since)
	}
	if m, _ := w.agent.HealthOf(vip(0), 1); !m.Held || !m.Alive || m.Words != "drawn (is held: this mux suspects itself)" {
		t.Errorf("health %+v", m)
	}
	w.pass(health.DefaultGrace - time.Millisecond)
	w.expect("the time of grace")
	w.pass(time.Millisecond)
	if lines := w.take(); len(lines) != 9 || lines[8] != "routes []" {
		t.Fatalf("after the grace: %q", lines)
	}
	if w.agent.Suspect().IsZero() {
		t.Error("suspects itself no more, though it just lost all")
	}
	w.pass(health.LostWindow)
	if !w.agent.Suspect().IsZero() || !w.poked() {
		t.Error("still suspects itself, long after")
	}
}

// TestCutOffMuxComesBack: a held member stays up when it answers, and falls after as many bad
// results after the isolation as its check requires, because a probe sent before it may still time
// out afterwards.
func TestCutOffMuxComesBack(t *testing.T) {
	w := doubtWorld(t, nil)
	for range 3 {
		w.each(4, false, true)
	}
	w.poked()
	w.each(3, true, false)
	w.expect("three services are back, with the first result")
	if !w.agent.Suspect().IsZero() || !w.poked() {
		t.Error("still suspects itself")
	}
	w.pass(time.Minute)
	w.expect("one was not asked again")
	w.probe("10.20.3.1", true, "connected")
	w.expect("one of its members answers")
	silent := func() {
		for _, target := range w.prober.targets {
			if target.Address.Addr() == netip.MustParseAddr("10.20.3.2") {
				w.agent.Probed([]probe.Result{{Target: target, Silent: true, Words: "no answer"}})
			}
		}
	}
	silent()
	w.expect("a probe of before ends")
	silent()
	w.expect("the other one is silent still", "alive 203.0.113.13/2 false")
}

// TestFallenJustBefore: where one silent probe is enough, services fall before the mux considers
// itself isolated.
func TestFallenJustBefore(t *testing.T) {
	w := doubtWorld(t, func(h *lb.Health) { h.Checks[0].Fall = 1 })
	w.each(2, false, true)
	if lines := w.take(); len(lines) != 5 {
		t.Fatalf("two of four services: %q", lines)
	}
	w.each(3, false, true)
	if lines := w.take(); len(lines) != 5 || lines[4] != "routes [203.0.113.10 203.0.113.11 203.0.113.12 203.0.113.13]" {
		t.Fatalf("the third shows that it is the mux: %q", lines)
	}
}

// TestRefusalsCount: a mux whose servers refuse connections is not isolated.
func TestRefusalsCount(t *testing.T) {
	w := doubtWorld(t, nil)
	w.each(4, false, false)
	w.each(4, false, false)
	if lines := w.take(); len(lines) != 9 || !w.agent.Suspect().IsZero() {
		t.Fatalf("all refuse: %q", lines)
	}
	w = doubtWorld(t, nil)
	w.each(3, false, true)
	w.each(3, false, true)
	w.expect("three of four are silent")
	w.each(1, false, false)
	if lines := w.take(); len(lines) != 3 || lines[2] != "routes [203.0.113.11 203.0.113.12 203.0.113.13]" {
		t.Fatalf("one service refuses: %q", lines)
	}
}

// TestOthersSay: reports of other muxes decide on members that are silent for this one.
func TestOthersSay(t *testing.T) {
	w := doubtWorld(t, nil)
	w.agent.OthersSay(plan.Verdicts{Full: true, Endpoints: []plan.EndpointVerdicts{{Key: vip(0), Dead: []uint16{1, 2}}}})
	w.each(4, false, true)
	w.each(4, false, true)
	w.expect("said before the suspicion")
	w.agent.OthersSay(plan.Verdicts{Full: true, Endpoints: []plan.EndpointVerdicts{
		{Key: vip(0), Dead: []uint16{1}}, {Key: vip(1), Alive: []uint16{1, 2}},
	}})
	w.expect("dead for others, too", "alive 203.0.113.10/1 false")
	w.pass(health.DefaultGrace)
	lines := w.take()
	if len(lines) != 6 || lines[5] != "routes [203.0.113.11]" {
		t.Fatalf("others reach one service: %q", lines)
	}
	w.agent.OthersSay(plan.Verdicts{Endpoints: []plan.EndpointVerdicts{{Key: vip(2), Alive: []uint16{2}}, {Key: vip(1), Unknown: []uint16{1}}}})
	lines = w.take()
	slices.Sort(lines)
	if !slices.Equal(lines, []string{"alive 203.0.113.11/1 false", "alive 203.0.113.12/2 true"}) {
		t.Fatalf("others say more: %q", lines)
	}
}

// TestOthersFallSilent: after the manager stops sending, no silent member is kept up by old
// reports.
func TestOthersFallSilent(t *testing.T) {
	w := doubtWorld(t, nil)
	w.each(4, false, true)
	w.each(4, false, true)
	var all plan.Verdicts
	for i := range 4 {
		all.Endpoints = append(all.Endpoints, plan.EndpointVerdicts{Key: vip(i), Alive: []uint16{1, 2}})
	}
	w.agent.OthersSay(all)
	w.pass(health.DefaultGrace)
	w.each(4, false, true)
	w.expect("others reach all")
	w.pass(30 * time.Second)
	w.each(4, false, true)
	if lines := w.take(); len(lines) != 9 || lines[8] != "routes []" {
		t.Fatalf("nobody has said anything for long: %q", lines)
	}
}

// TestGraceOfOptions: verdicts are held for as long as the option sets.
func TestGraceOfOptions(t *testing.T) {
	const grace = 3 * health.DefaultGrace
	w := newWorld(t)
	w.grace = grace
	w.restart()
	w.doubtful(nil)
	for range 5 {
		w.each(4, false, true)
	}
	w.expect("it suspects itself")
	w.pass(grace - time.Millisecond)
	w.expect("the time of grace")
	w.pass(time.Millisecond)
	if lines := w.take(); len(lines) != 9 {
		t.Fatalf("after the grace: %q", lines)
	}
}

// TestNoGrace: without a grace period no verdict is held.
func TestNoGrace(t *testing.T) {
	w := newWorld(t)
	w.grace = -1
	w.restart()
	w.doubtful(nil)
	w.each(4, false, true)
	w.each(4, false, true)
	if lines := w.take(); len(lines) != 9 || w.agent.Suspect().IsZero() {
		t.Fatalf("all are silent: %q", lines)
	}
}
