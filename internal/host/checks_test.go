package host

import (
	"context"
	"reflect"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/probe"
)

type prober struct{ targets []probe.Target }

func (p *prober) Set(t []probe.Target) error { p.targets = t; return nil }

// tester is an agent whose servers answer as the test says.
type tester struct {
	*Agent
	t      *testing.T
	prober *prober
}

func newTester(t *testing.T) tester {
	p := &prober{}
	return tester{New(&dataplane.FakeHost{}, settings(forwarding), p, clock.NewFake(time.Unix(1000, 0)), nil), t, p}
}

func (w tester) plan(bindings ...plan.Binding) {
	w.t.Helper()
	if err := w.Apply(context.Background(), plan.Plan{MTU: 1500, Bindings: bindings}); err != nil {
		w.t.Fatal(err)
	}
}

// probe gives every target one result.
func (w tester) probe(good bool) {
	for _, target := range w.prober.targets {
		w.Probed([]probe.Result{{Target: target, Good: good, Words: "drawn"}})
	}
}

// told tests what is new, which is to be announced by a poke when there is anything.
func (w tester) told(what string, want ...plan.EndpointVerdicts) {
	w.t.Helper()
	poked := false
	select {
	case <-w.checks.Changed():
		poked = true
	default:
	}
	if got := w.checks.Take(false); got.Full || !reflect.DeepEqual(got.Endpoints, want) || poked != (len(want) > 0) {
		w.t.Fatalf("%s: told %+v, poked %v, want %+v", what, got, poked, want)
	}
}

func checkedBy(b plan.Binding, from string) plan.Binding {
	b.Health = lb.Health{Checks: []lb.Check{{Kind: lb.CheckTCP, Interval: time.Second, Timeout: time.Second, Rise: 2, Fall: 3}}, From: from}
	return b
}

func TestVerdictsOfOwnServers(t *testing.T) {
	w := newTester(t)
	b := checkedBy(binding("203.0.113.10", "10.20.1.11"), lb.FromHost)
	muxes := binding("203.0.113.11", "10.20.1.12")
	w.plan(b, muxes)
	if len(w.prober.targets) != 1 || w.prober.targets[0].Address.String() != "10.20.1.11:8080" {
		t.Fatalf("probes %v, want what this host checks alone", w.prober.targets)
	}
	w.told("nobody was asked")
	w.probe(false)
	w.told("a new one is dead", plan.EndpointVerdicts{Key: b.Key, Dead: []uint16{3}})
	w.probe(false)
	w.told("still dead")
	w.probe(true)
	w.told("the first good one suffices", plan.EndpointVerdicts{Key: b.Key, Alive: []uint16{3}})
	w.probe(false)
	w.probe(false)
	w.told("two bad ones of three")
	w.probe(false)
	w.told("three bad ones", plan.EndpointVerdicts{Key: b.Key, Dead: []uint16{3}})
	if s := w.Status(); len(s.Members) > 0 && s.Members[0].LastCheck != "drawn" {
		t.Errorf("status %v", s.Members)
	}
}

func TestVerdictsOutliveAChangeOfTheCheck(t *testing.T) {
	w := newTester(t)
	b := checkedBy(binding("203.0.113.10", "10.20.1.11"), lb.FromBoth)
	w.plan(b)
	w.probe(true)
	w.told("alive", plan.EndpointVerdicts{Key: b.Key, Alive: []uint16{3}})
	b.Health.Checks[0].Interval = 2 * time.Second
	w.plan(b)
	w.told("another interval says nothing of health")
	if all := w.checks.Take(true); !all.Full || !reflect.DeepEqual(all.Endpoints, []plan.EndpointVerdicts{{Key: b.Key, Alive: []uint16{3}}}) {
		t.Errorf("all is %+v", all)
	}
	w.plan(checkedBy(b, lb.FromMux))
	w.told("muxes check", plan.EndpointVerdicts{Key: b.Key, Unknown: []uint16{3}})
	if len(w.prober.targets) != 0 {
		t.Errorf("still probes %v", w.prober.targets)
	}
}

func TestVerdictIsOfTheServerThatIsThere(t *testing.T) {
	w := newTester(t)
	b := checkedBy(binding("203.0.113.10", "10.20.1.11"), lb.FromHost)
	w.plan(b)
	w.probe(true)
	w.told("alive", plan.EndpointVerdicts{Key: b.Key, Alive: []uint16{3}})
	b.DIP = b.DIP.Next()
	w.plan(b)
	w.told("another server has the id", plan.EndpointVerdicts{Key: b.Key, Unknown: []uint16{3}})
}

func TestWhatCouldNotBeAskedIsNoVerdict(t *testing.T) {
	w := newTester(t)
	w.plan(checkedBy(binding("203.0.113.10", "10.20.1.11"), lb.FromHost))
	w.Probed([]probe.Result{{Target: w.prober.targets[0], Void: true, Words: "too many open files"}})
	w.told("nothing was learnt")
}
