package mux

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unique"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/probe"
)

// TestPanicSurvivesTheAgent: an agent that takes over tables of an endpoint in panic mode does not
// adopt its members as alive.
func TestPanicSurvivesTheAgent(t *testing.T) {
	w := newWorld(t)
	p := planOf([]string{"203.0.113.10"}, "10.20.1.11", "10.20.2.11", "10.20.3.11")
	p.Endpoints[0].Health.PanicBelow = 50
	w.apply(p)
	w.probe("10.20.1.11", false, "connection refused")
	w.expect("two were not asked", "tables [203.0.113.10]")
	w.probe("10.20.2.11", true, "connected")
	w.expect("one was not asked", "alive 203.0.113.10/2 true")
	w.probe("10.20.3.11", false, "connection refused")
	w.expect("a third is healthy", "alive 203.0.113.10/1 true", "alive 203.0.113.10/3 true", "routes [203.0.113.10]")
	if m := w.agent.Status().Members[0]; m.Alive || m.LastCheck != "connection refused (treated as alive: too few are healthy)" {
		t.Errorf("status says %v", m)
	}
	if m := w.agent.Status().Members[1]; !m.Alive || m.LastCheck != "connected" {
		t.Errorf("status says %v", m)
	}
	w.restart()
	w.apply(p)
	w.expect("the next agent goes on", "tables [203.0.113.10]")
	if s := w.agent.Status().Members; s[0].Alive || !s[1].Alive || s[2].Alive {
		t.Errorf("members %v", s)
	}
	w.probe("10.20.1.11", true, "connected")
	w.probe("10.20.1.11", true, "connected")
	w.expect("two thirds are healthy", "alive 203.0.113.10/3 false")
	w.restart()
	w.apply(p)
	w.expect("and the one after knows it", "tables [203.0.113.10]")
	if s := w.agent.Status().Members; !s[0].Alive || !s[1].Alive || s[2].Alive {
		t.Errorf("members %v", s)
	}
}

func TestMinimumBeforeTheVIPIsAnnounced(t *testing.T) {
	w := newWorld(t)
	p := planOf([]string{"203.0.113.10"}, "10.20.1.11", "10.20.2.11", "10.20.3.11")
	p.Endpoints[0].Health.MinimumHealthy = 2
	w.apply(p)
	w.probe("10.20.1.11", true, "connected")
	w.probe("10.20.3.11", false, "connection refused")
	w.clock.Advance(time.Hour)
	w.speak()
	w.expect("one is not enough", "tables [203.0.113.10]", "alive 203.0.113.10/1 true")
	w.probe("10.20.2.11", true, "connected")
	w.expect("two are", "alive 203.0.113.10/2 true", "routes [203.0.113.10]")
	w.probe("10.20.1.11", false, "connection refused")
	w.probe("10.20.1.11", false, "connection refused")
	w.expect("one is not", "alive 203.0.113.10/1 false", "routes []")
}

func TestFlappingMemberStaysDown(t *testing.T) {
	w := newWorld(t)
	p := planOf([]string{"203.0.113.10"}, "10.20.1.11", "10.20.2.11")
	p.Endpoints[0].Health.Checks[0].Rise, p.Endpoints[0].Health.Checks[0].Fall = 1, 1
	p.Endpoints[0].Health.Damping = &lb.Damping{Flips: 2, Within: time.Minute, Hold: 20 * time.Second}
	w.apply(p)
	w.probe("10.20.2.11", true, "connected")
	for range 2 {
		w.probe("10.20.1.11", true, "connected")
		w.probe("10.20.1.11", false, "connection refused")
	}
	w.take()
	w.clock.Advance(5 * time.Second)
	w.probe("10.20.1.11", true, "connected")
	w.expect("it came up too often")
	m, _ := w.agent.HealthOf(p.Endpoints[0].Key, 1)
	if m.Alive || !m.Checks[0].Alive || m.DampedUntil.Sub(w.clock.Now()) != 15*time.Second || m.Words != "connected (stays down: it came and went too often)" {
		t.Errorf("health %+v", m)
	}
	w.pass(15*time.Second - 1)
	w.expect("until its hold is over")
	w.pass(1)
	w.expect("it is over", "alive 203.0.113.10/1 true")
	w.probe("10.20.1.11", false, "connection refused")
	w.probe("10.20.1.11", true, "connected")
	w.expect("and it flaps again", "alive 203.0.113.10/1 false")
	p = planOf([]string{"203.0.113.10"}, "10.20.1.11", "10.20.2.11")
	w.apply(p)
	w.expect("nobody damps it any more", "tables [203.0.113.10]", "alive 203.0.113.10/1 true")
}

// TestRunDoesWhatIsDue: Run applies changes that are due without a notification. Time is that of
// the synctest bubble.
func TestRunDoesWhatIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.agent.o.Clock = clock.System{}
		p := planOf([]string{"203.0.113.10"}, "10.20.1.11")
		p.Endpoints[0].Health.Checks[0].Rise, p.Endpoints[0].Health.Checks[0].Fall = 1, 1
		p.Endpoints[0].Health.Damping = &lb.Damping{Flips: 1, Within: time.Minute, Hold: 1300 * time.Millisecond}
		w.apply(p)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go w.agent.Run(ctx)
		for _, good := range []bool{true, false, true} {
			w.probe("10.20.1.11", good, "drawn")
		}
		alive := func() bool {
			synctest.Wait()
			yes, _ := w.tables.Alive(p.Endpoints[0].Key, 1)
			return yes
		}
		<-time.After(1299 * time.Millisecond)
		if alive() {
			t.Error("up before its hold is over")
		}
		<-time.After(time.Millisecond)
		if !alive() {
			t.Error("down when its hold is over")
		}
	})
}

// TestSeveralChecks: a member's health is the combination of its checks, and is known once missing
// results cannot change it.
func TestSeveralChecks(t *testing.T) {
	for _, c := range []struct {
		combine string
		atLeast uint8
		// Alive and asked after each of the results, of check 0, 1 and 2 in turn.
		results      [3]bool
		alive, asked [3]bool
	}{
		{lb.CombineAll, 0, [3]bool{true, true, true}, [3]bool{false, false, true}, [3]bool{false, false, true}},
		{lb.CombineAll, 0, [3]bool{true, false, true}, [3]bool{false, false, false}, [3]bool{false, true, true}},
		{lb.CombineAny, 0, [3]bool{false, true, false}, [3]bool{false, true, true}, [3]bool{false, true, true}},
		{lb.CombineAny, 0, [3]bool{false, false, false}, [3]bool{false, false, false}, [3]bool{false, false, true}},
		{lb.CombineAtLeast, 2, [3]bool{true, false, true}, [3]bool{false, false, true}, [3]bool{false, false, true}},
		{lb.CombineAtLeast, 2, [3]bool{false, false, true}, [3]bool{false, false, false}, [3]bool{false, true, true}},
	} {
		w := newWorld(t)
		p := planOf([]string{"203.0.113.10"}, "10.20.1.11")
		h := &p.Endpoints[0].Health
		h.Combine, h.AtLeast = c.combine, c.atLeast
		for port := range uint16(3) {
			check := planOf([]string{"203.0.113.10"}).Endpoints[0].Health.Checks[0]
			check.Port = 9000 + port
			h.Checks = append(h.Checks[:port], check)
		}
		w.apply(p)
		if len(w.prober.targets) != 3 {
			t.Fatalf("probes %v", w.prober.targets)
		}
		for i, good := range c.results {
			target := probe.Of(h.Checks[i], netip.MustParseAddr("10.20.1.11"), 8080)
			w.agent.Probed([]probe.Result{result(target, good)})
			m, _ := w.agent.HealthOf(p.Endpoints[0].Key, 1)
			if m.Alive != c.alive[i] || m.Asked != c.asked[i] || m.Checks[i].Alive != good || len(m.Results) != i+1 || int(m.Results[i].Check) != i {
				t.Errorf("%s %v, after result %d: %+v", c.combine, c.results, i, m)
			}
		}
	}
}

// TestWordsNameTheirCheck: with several checks the reason names its check, also after another check
// was inserted before it; with a single check it does not.
func TestWordsNameTheirCheck(t *testing.T) {
	w := newWorld(t)
	p := planOf([]string{"203.0.113.10"}, "10.20.1.11")
	h := &p.Endpoints[0].Health
	dip := netip.MustParseAddr("10.20.1.11")
	said := func(want string) {
		t.Helper()
		if got := w.agent.Status().Members[0].LastCheck; got != want {
			t.Errorf("words %q, want %q", got, want)
		}
	}
	w.apply(p)
	w.agent.Probed([]probe.Result{{Target: probe.Of(h.Checks[0], dip, 8080), Words: "status 503"}})
	said("status 503")
	secure, other := h.Checks[0], h.Checks[0]
	secure.Kind, secure.TLS, secure.Port, secure.Path, secure.Method, secure.Version = lb.CheckHTTP, true, 8443, "/", "GET", lb.HTTP1
	other.Port = 8081
	p = planOf([]string{"203.0.113.10"}, "10.20.1.11")
	h = &p.Endpoints[0].Health
	h.Checks = []lb.Check{h.Checks[0], secure}
	w.apply(p)
	said("check 1, " + h.Checks[0].KindText() + ": status 503")
	w.agent.Probed([]probe.Result{{Target: probe.Of(secure, dip, 8080), Words: "certificate expired 2 days ago"}})
	said("check 2, https: certificate expired 2 days ago")
	p = planOf([]string{"203.0.113.10"}, "10.20.1.11")
	h = &p.Endpoints[0].Health
	h.Checks = []lb.Check{h.Checks[0], other, secure}
	w.apply(p)
	said("check 3, https: certificate expired 2 days ago")
	p = planOf([]string{"203.0.113.10"}, "10.20.1.11")
	p.Endpoints[0].Health.Checks = []lb.Check{secure}
	w.apply(p)
	said("certificate expired 2 days ago")
}

// TestChecksComeAndGo: a new check does not bring a member down before its first result, and the
// removal of a check does not change the member's health.
func TestChecksComeAndGo(t *testing.T) {
	w := newWorld(t)
	p := planOf([]string{"203.0.113.10"}, "10.20.1.11")
	w.apply(p)
	w.probe("10.20.1.11", true, "connected")
	w.take()
	more := planOf([]string{"203.0.113.10"}, "10.20.1.11")
	second := more.Endpoints[0].Health.Checks[0]
	second.Port = 9000
	more.Endpoints[0].Health.Checks = append([]lb.Check{second}, more.Endpoints[0].Health.Checks...)
	more.Endpoints[0].Health.Combine = lb.CombineAll
	w.apply(more)
	w.expect("a second check", "tables [203.0.113.10]")
	target := probe.Of(second, netip.MustParseAddr("10.20.1.11"), 8080)
	w.agent.Probed([]probe.Result{result(target, false), result(target, false)})
	w.speak()
	w.expect("it fails", "alive 203.0.113.10/1 false", "routes []")
	w.apply(p)
	w.speak()
	w.expect("it is gone", "tables [203.0.113.10]", "alive 203.0.113.10/1 true", "routes [203.0.113.10]")
	if len(w.prober.targets) != 1 {
		t.Errorf("probes %v", w.prober.targets)
	}
}

// TestHealthOf: HealthOf returns only members of the plan, with their history.
func TestHealthOf(t *testing.T) {
	w := newWorld(t)
	p := planOf([]string{"203.0.113.10"}, "10.20.1.11")
	w.apply(p)
	for id, there := range map[uint16]bool{1: true, 2: false} {
		if _, got := w.agent.HealthOf(p.Endpoints[0].Key, id); got != there {
			t.Errorf("member %d is there: %v", id, got)
		}
	}
	if _, there := w.agent.HealthOf(lb.EndpointKey{}, 1); there {
		t.Error("an endpoint that is not in the plan has members")
	}
	target := w.prober.targets[0]
	at := w.clock.Now()
	w.agent.Probed([]probe.Result{
		{Target: target, Good: true, Words: "connected", At: at, Took: 3 * time.Millisecond},
		{Target: target, Void: true, Words: "too many open files", At: at.Add(time.Second)},
	})
	m, _ := w.agent.HealthOf(p.Endpoints[0].Key, 1)
	if !m.Alive || !m.Asked || len(m.Checks) != 1 || m.Checks[0].Target != target || !m.Checks[0].Probed || m.Checks[0].Words != "too many open files (does not count)" {
		t.Errorf("health %+v", m)
	}
	if r := m.Results; len(r) != 2 || !r[0].Good || r[0].Took != 3*time.Millisecond || !r[0].At.Equal(at) || !r[1].Void || r[1].Words != "too many open files" {
		t.Errorf("results %+v", r)
	}
	if turns := m.Turns; len(turns) != 1 || !turns[0].Alive || !turns[0].At.Equal(at) {
		t.Errorf("turns %+v", turns)
	}
}

// TestStatusTellsASmallInterface: the plan's MTU must fit each interface that packets arrive by.
func TestStatusTellsASmallInterface(t *testing.T) {
	w := newWorld(t)
	for mtu, want := range map[uint32]string{1400: "", 1500: "", 9000: "mtu 9000: eth0 has 1500", 9001: "mtu 9001: eth0 has 1500, eth1 has 9000"} {
		p := planOf([]string{"203.0.113.10"}, "10.20.1.11")
		p.MTU = mtu
		w.apply(p)
		if got := w.agent.Status().GetMtuFault(); got != want {
			t.Errorf("mtu %d: %q, want %q", mtu, got, want)
		}
	}
}

// TestDeadFromTheFirst: the status has the time of the verdict also for members that never were
// alive.
func TestDeadFromTheFirst(t *testing.T) {
	w := newWorld(t)
	p := planOf([]string{"203.0.113.10"}, "10.20.1.11")
	w.apply(p)
	at := w.clock.Now()
	w.probe("10.20.1.11", false, "connection refused")
	w.pass(time.Minute)
	w.probe("10.20.1.11", false, "no connection within 500 ms")
	m, _ := w.agent.HealthOf(p.Endpoints[0].Key, 1)
	if len(m.Turns) != 1 || m.Turns[0].Alive || !m.Turns[0].At.Equal(at) || m.Turns[0].Words != "connection refused" {
		t.Errorf("turns %+v", m.Turns)
	}
	if since := w.agent.Status().Members[0].Since.AsTime(); !since.Equal(at) {
		t.Errorf("since %v, want %v", since, at)
	}
}

// TestThroughTheTunnel: a check through the tunnel has its own target for each endpoint.
func TestThroughTheTunnel(t *testing.T) {
	w := newWorld(t)
	p := planOf([]string{"203.0.113.10", "203.0.113.11"}, "10.20.1.11")
	for i := range p.Endpoints {
		p.Endpoints[i].Encap, p.Endpoints[i].Health.Checks[0].Through = lb.EncapGUE, lb.ThroughTunnel
	}
	w.apply(p)
	if len(w.prober.targets) != 2 {
		t.Fatalf("probes %v", w.prober.targets)
	}
	for _, target := range w.prober.targets {
		outer := netip.MustParseAddr("10.20.1.11")
		if got := target.Tunnel.Value(); got.Outer != outer || got.VIP.Port() != 80 || got.Encap != lb.EncapGUE || got.Member != 1 {
			t.Errorf("through %+v", got)
		}
		if target.Tunnel.Value().VIP.Addr() == p.Endpoints[1].Key.VIP {
			w.agent.Probed([]probe.Result{result(target, true)})
		}
	}
	w.expect("one way works", "tables [203.0.113.10 203.0.113.11]", "alive 203.0.113.11/1 true")
}

// TestAnotherWayKeepsTheVerdict: when checks begin or stop to use the tunnel, as after an upgrade,
// backends keep their health until enough results contradict it. A restart of the agent at the same
// time changes nothing.
func TestAnotherWayKeepsTheVerdict(t *testing.T) {
	through := func(way string) plan.Plan {
		p := planOf([]string{"203.0.113.10"}, "10.20.1.11", "10.20.2.11")
		p.Endpoints[0].Encap, p.Endpoints[0].Health.Checks[0].Through = lb.EncapIPIP, way
		return p
	}
	for _, restart := range []bool{false, true} {
		w := newWorld(t)
		w.apply(through(lb.ThroughDirect))
		w.probe("10.20.1.11", true, "connected")
		w.probe("10.20.2.11", false, "connection refused")
		w.take()
		for _, way := range []string{lb.ThroughTunnel, lb.ThroughDirect, lb.ThroughTunnel} {
			if restart {
				w.restart()
			}
			w.apply(through(way))
			if got := w.take(); slices.ContainsFunc(got, func(line string) bool {
				return strings.HasPrefix(line, "alive") || strings.HasPrefix(line, "routes") && !restart
			}) {
				t.Errorf("restart %v, %s: %q", restart, way, got)
			}
			for _, x := range w.prober.targets {
				if (x.Tunnel != unique.Handle[probe.Tunnel]{}) != (way == lb.ThroughTunnel) {
					t.Errorf("%s: probes %+v", way, x)
				}
			}
			if s := w.agent.Status().Members; !s[0].Alive || s[1].Alive || !restart && (s[0].Unknown || s[1].Unknown) {
				t.Errorf("restart %v, %s: members %v", restart, way, s)
			}
		}
		w.probe("10.20.1.11", false, "no answer to three SYNs within 500 ms")
		w.expect("one result is not enough")
		w.probe("10.20.1.11", false, "no answer to three SYNs within 500 ms")
		w.expect("the tunnel does not lead there", "alive 203.0.113.10/1 false", "routes []")
	}
}

// TestRestartIsNoStorm: members that are alive in the tables are probed spread over time, others
// immediately.
func TestRestartIsNoStorm(t *testing.T) {
	w := newWorld(t)
	p := planOf([]string{"203.0.113.10"}, "10.20.1.11", "10.20.2.11")
	w.apply(p)
	w.probe("10.20.1.11", true, "connected")
	w.probe("10.20.2.11", false, "connection refused")
	if len(w.prober.resumed) != 0 {
		t.Fatalf("%v are known before anything was asked", w.prober.resumed)
	}
	w.restart()
	more := planOf([]string{"203.0.113.10"}, "10.20.1.11", "10.20.2.11", "10.20.3.11")
	more.Endpoints[0].Health.Checks[0].Initial = lb.InitialUp
	w.apply(more)
	if known := w.prober.resumed; len(known) != 1 || known[0].Address.Addr() != netip.MustParseAddr("10.20.1.11") || len(w.prober.targets) != 3 {
		t.Fatalf("resumed %v of %v", known, w.prober.targets)
	}
	w.apply(p)
	w.apply(more)
	if len(w.prober.resumed) != 1 {
		t.Errorf("resumed %v", w.prober.resumed)
	}
}
