package host

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/probe"
)

type prober struct {
	targets []probe.Target
	crowded int
}

func (p *prober) Set(t []probe.Target) error { p.targets = t; return nil }
func (p *prober) Stats() probe.Stats         { return probe.Stats{Targets: len(p.targets), Crowded: p.crowded} }

// tester is an agent whose servers answer as the test scripts.
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

// told checks the new verdicts, and that Changed was notified if there are any.
func (w tester) told(what string, want ...plan.EndpointVerdicts) {
	w.t.Helper()
	poked := false
	select {
	case <-w.checks.Changed():
		poked = true
	default:
	}
	got := w.checks.Take(false)
	for i := range got.Endpoints {
		e := &got.Endpoints[i]
		for id := range e.Words {
			if !slices.Contains(e.Alive, id) && !slices.Contains(e.Dead, id) {
				w.t.Fatalf("%s: words of %d, of which nothing is said: %+v", what, id, e)
			}
		}
		e.Words = nil // checked by TestVerdictsHaveWords
	}
	if got.Full || !reflect.DeepEqual(got.Endpoints, want) || poked != (len(want) > 0) {
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

// TestVerdictsHaveWords checks that a verdict is reported with the text of the result that caused
// it, not with that of later results.
func TestVerdictsHaveWords(t *testing.T) {
	w := newTester(t)
	b := checkedBy(binding("203.0.113.10", "10.20.1.11"), lb.FromHost)
	w.plan(b)
	say := func(good bool, words string) {
		w.Probed([]probe.Result{{Target: w.prober.targets[0], Good: good, Words: words}})
	}
	expect := func(all bool, want string) {
		t.Helper()
		got := w.checks.Take(all)
		if len(got.Endpoints) != 1 || got.Endpoints[0].Words[b.Member] != want {
			t.Errorf("told %+v, want %q", got, want)
		}
	}
	say(false, "no connection\nwithin 500 ms")
	say(false, "connection refused")
	expect(false, `no connection\nwithin 500 ms`)
	say(true, "connected")
	expect(false, "connected")
	say(false, "connection refused")
	expect(true, "connected")
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
	if all := w.checks.Take(true); !all.Full || !reflect.DeepEqual(all.Endpoints, []plan.EndpointVerdicts{{Key: b.Key, Alive: []uint16{3}, Words: map[uint16]string{3: "drawn"}}}) {
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

// TestSeveralChecksOfOwnServers checks that the combined verdict is reported, not that of each
// check.
func TestSeveralChecksOfOwnServers(t *testing.T) {
	w := newTester(t)
	b := checkedBy(binding("203.0.113.10", "10.20.1.11"), lb.FromHost)
	web := lb.Check{Kind: lb.CheckHTTP, Fall: 1, Rise: 1}
	web.SetDefaults()
	b.Health.Checks = append(b.Health.Checks, web)
	b.Health.Combine = lb.CombineAll
	w.plan(b)
	of := func(kind string) probe.Target {
		for _, target := range w.prober.targets {
			if target.Check.Value().Kind == kind {
				return target
			}
		}
		t.Fatalf("no %s among %v", kind, w.prober.targets)
		return probe.Target{}
	}
	say := func(kind string, good bool) { w.Probed([]probe.Result{{Target: of(kind), Good: good, Words: "drawn"}}) }
	say(lb.CheckTCP, true)
	w.told("one of two is asked")
	say(lb.CheckHTTP, true)
	w.told("both are good", plan.EndpointVerdicts{Key: b.Key, Alive: []uint16{3}})
	if got := w.checks.health(memberRef{b.Key, 3}).GetWords(); got != "check 2, http: drawn" {
		t.Errorf("words %q", got)
	}
	say(lb.CheckHTTP, false)
	w.told("one is bad", plan.EndpointVerdicts{Key: b.Key, Dead: []uint16{3}})
	say(lb.CheckTCP, true)
	if got := w.checks.health(memberRef{b.Key, 3}).GetWords(); got != "check 2, http: drawn" {
		t.Errorf("the words of a dead server are %q", got)
	}
	b.Health.Combine = lb.CombineAny
	w.plan(b)
	w.told("one suffices now", plan.EndpointVerdicts{Key: b.Key, Alive: []uint16{3}})
	b.Health.Combine, b.Health.Checks = lb.CombineAll, b.Health.Checks[1:]
	w.plan(b)
	w.told("the good one is gone", plan.EndpointVerdicts{Key: b.Key, Dead: []uint16{3}})
	more := checkedBy(b, lb.FromHost)
	more.Health.Checks = append(more.Health.Checks, b.Health.Checks...)
	w.plan(more)
	w.told("a new check goes on from the verdict")
	w.Probed([]probe.Result{
		{Target: of(lb.CheckHTTP), Good: false}, {Target: of(lb.CheckTCP), Good: true}, {Target: of(lb.CheckTCP), Good: true}, {Target: of(lb.CheckHTTP), Good: true},
	})
	w.told("a batch is one verdict", plan.EndpointVerdicts{Key: b.Key, Alive: []uint16{3}})
	h, ok := w.HealthOf(b.Key, 3)
	if !ok || !h.Alive || !h.Known || h.Shunned || len(h.Checks) != 2 || !h.Checks[0].Alive || !h.Checks[1].Alive {
		t.Errorf("health %+v, %v", h, ok)
	}
	if len(h.Results) != 8 || h.Results[7].Check != 1 || !h.Results[7].Good || h.Results[4].Good {
		t.Errorf("results %+v", h.Results)
	}
	var turns []bool
	for _, turn := range h.Turns {
		turns = append(turns, turn.Alive)
	}
	if want := []bool{true, false, true, false, true}; !slices.Equal(turns, want) {
		t.Errorf("turns %v, want %v", turns, want)
	}
	if _, ok := w.HealthOf(b.Key, 4); ok {
		t.Error("a member that is not there has health")
	}
}

// TestOwnServersThatAreUpAtFirst checks that their verdict is reported immediately.
func TestOwnServersThatAreUpAtFirst(t *testing.T) {
	w := newTester(t)
	b := checkedBy(binding("203.0.113.10", "10.20.1.11"), lb.FromHost)
	b.Health.Checks[0].Initial = lb.InitialUp
	w.plan(b)
	w.told("up at first", plan.EndpointVerdicts{Key: b.Key, Alive: []uint16{3}})
	w.probe(false)
	w.probe(false)
	w.told("two bad ones of three")
	w.probe(false)
	w.told("three bad ones", plan.EndpointVerdicts{Key: b.Key, Dead: []uint16{3}})
}

// TestClientsConnectionsCount checks that failures in a row hold a member dead although its checks
// are good, for the configured time only.
func TestClientsConnectionsCount(t *testing.T) {
	w := newTester(t)
	tables, now := w.tables.(*dataplane.FakeHost), w.clock.(*clock.Fake)
	b := checkedBy(binding("203.0.113.10", "10.20.1.11"), lb.FromHost)
	other := checkedBy(binding("203.0.113.11", "10.20.1.12"), lb.FromHost)
	b.Health.Passive = &lb.Passive{Failures: 3, Within: 10 * time.Second, Hold: 30 * time.Second}
	w.plan(b, other)
	w.probe(true)
	w.told("both are alive", plan.EndpointVerdicts{Key: b.Key, Alive: []uint16{3}}, plan.EndpointVerdicts{Key: other.Key, Alive: []uint16{3}})
	see := func(asked, accepted, refused uint64) {
		t.Helper()
		tables.SetHandshakes([]dataplane.BindingHandshakes{
			{Binding: b, Asked: asked, Accepted: accepted, Refused: refused}, {Binding: other, Asked: 10 * refused, Refused: 10 * refused},
		})
		if err := w.Watch(); err != nil {
			t.Fatal(err)
		}
		now.Advance(watchEvery)
	}
	see(5, 5, 0)
	see(7, 5, 2)
	w.told("two failures")
	see(8, 5, 3)
	w.told("three in a row", plan.EndpointVerdicts{Key: b.Key, Dead: []uint16{3}})
	w.probe(true)
	w.told("a good check does not end it")
	words := func(want string) {
		t.Helper()
		if got := w.checks.health(memberRef{b.Key, 3}).GetWords(); got != want {
			t.Errorf("words %q, want %q", got, want)
		}
	}
	words("3 connections of clients failed in a row")
	w.plan(b, other)
	w.told("a plan does not either")
	now.Advance(30 * time.Second)
	see(8, 5, 3)
	w.told("its time is over", plan.EndpointVerdicts{Key: b.Key, Alive: []uint16{3}})
	words("clients may connect again")
	w.probe(true)
	words("drawn")
	see(10, 5, 5)
	see(11, 6, 5)
	see(12, 6, 6)
	w.told("an accepted one clears the account")
	tables.FailApply(errors.New("no table"))
	if err := w.Watch(); err == nil || err.Error() != "no table" {
		t.Errorf("got %v", err)
	}
}

// TestAFlappingServerIsHeldDown checks that it is held down for the configured time after it last
// went down, despite its checks.
func TestAFlappingServerIsHeldDown(t *testing.T) {
	w := newTester(t)
	now := w.clock.(*clock.Fake)
	b := checkedBy(binding("203.0.113.10", "10.20.1.11"), lb.FromHost)
	b.Health.Checks[0].Rise, b.Health.Checks[0].Fall = 1, 1
	b.Health.Damping = &lb.Damping{Flips: 2, Within: time.Minute, Hold: 20 * time.Second}
	w.plan(b)
	alive, dead := plan.EndpointVerdicts{Key: b.Key, Alive: []uint16{3}}, plan.EndpointVerdicts{Key: b.Key, Dead: []uint16{3}}
	w.probe(true)
	w.told("alive", alive)
	for range 2 {
		now.Advance(time.Second)
		w.probe(false)
		w.told("down", dead)
		w.probe(true)
		w.told("up again", alive)
	}
	w.probe(false)
	w.told("down", dead)
	w.probe(true)
	w.told("one time too many")
	if h := w.checks.health(memberRef{b.Key, 3}); h.GetVerdict() != convert.Damped {
		t.Errorf("health %v", h)
	}
	now.Advance(19 * time.Second)
	if err := w.Watch(); err != nil {
		t.Fatal(err)
	}
	w.told("not yet")
	now.Advance(time.Second)
	if err := w.Watch(); err != nil {
		t.Fatal(err)
	}
	w.told("its time is over", alive)
	if h := w.checks.health(memberRef{b.Key, 3}); h.GetVerdict() != convert.Healthy {
		t.Errorf("health %v", h)
	}
}
