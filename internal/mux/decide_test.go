package mux

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/plan"
)

// openPlan returns a plan whose one endpoint fails open.
func openPlan(dips ...string) plan.Plan {
	p := planOf([]string{"203.0.113.10"}, dips...)
	p.Endpoints[0].FailOpen = true
	return p
}

func TestFailOpenKeepsTheVIP(t *testing.T) {
	w := newWorld(t)
	w.apply(openPlan("10.20.1.11", "10.20.2.11"))
	w.expect("nothing is known", "tables [203.0.113.10]")
	w.probe("10.20.1.11", false, "connection refused")
	w.expect("one was not asked")
	w.probe("10.20.2.11", false, "connection refused")
	w.expect("all are dead", "alive 203.0.113.10/1 true", "alive 203.0.113.10/2 true", "routes [203.0.113.10]")
	if m := w.agent.Status().Members[0]; m.Alive || m.LastCheck != "connection refused (treated as alive: all are dead)" {
		t.Errorf("status says %v", m)
	}
	w.probe("10.20.2.11", true, "connected")
	w.expect("one is alive", "alive 203.0.113.10/1 false")
	w.probe("10.20.2.11", false, "connection refused")
	w.expect("one bad probe")
	w.probe("10.20.2.11", false, "connection refused")
	w.expect("dead again", "alive 203.0.113.10/1 true")

	p := openPlan("10.20.1.11", "10.20.2.11")
	p.Endpoints[0].FailOpen = false
	w.apply(p)
	w.expect("no longer wanted", "tables [203.0.113.10]",
		"alive 203.0.113.10/1 false", "alive 203.0.113.10/2 false", "routes []")
}

// TestFailOpenIsNotBelieved: an agent that takes over tables of an endpoint that fails open does
// not adopt its members as alive.
func TestFailOpenIsNotBelieved(t *testing.T) {
	w := newWorld(t)
	p := openPlan("10.20.1.11", "10.20.2.11")
	w.apply(p)
	w.probe("10.20.1.11", true, "connected")
	for range 2 {
		w.probe("10.20.1.11", false, "connection refused")
		w.probe("10.20.2.11", false, "connection refused")
	}
	w.take()
	w.restart()
	w.apply(p)
	w.expect("the next agent goes on", "tables [203.0.113.10]")
	for _, m := range w.agent.Status().Members {
		if m.Alive {
			t.Errorf("%s is called alive", m.Dip)
		}
	}
	w.probe("10.20.1.11", true, "connected")
	w.probe("10.20.1.11", true, "connected")
	w.expect("one is back", "alive 203.0.113.10/2 false")

	w.restart()
	w.apply(p)
	w.expect("and the one after knows it", "tables [203.0.113.10]")
	if s := w.agent.Status().Members; !s[0].Alive || s[1].Alive {
		t.Errorf("members %v", s)
	}
}

// backupPlan returns a plan of two members and a backup.
func backupPlan() plan.Plan {
	p := planOf([]string{"203.0.113.10"}, "10.20.1.11", "10.20.2.11", "10.20.3.11")
	p.Endpoints[0].BackupBelow, p.Endpoints[0].Members[2].Backup = 60, true
	return p
}

func TestBackupsTakePart(t *testing.T) {
	w := newWorld(t)
	w.apply(backupPlan())
	w.expect("nobody is alive yet", "tables [203.0.113.10]", "backup 203.0.113.10 true")
	if e := w.tables.state.Endpoints[0]; len(e.Ring) != 64 || len(e.BackupRing) != 64 || e.BackupCode != 6 {
		t.Errorf("rings of %d and %d slots", len(e.Ring), len(e.BackupRing))
	}
	for _, dip := range []string{"10.20.1.11", "10.20.2.11", "10.20.3.11"} {
		w.probe(dip, true, "connected")
	}
	w.expect("all come up", "alive 203.0.113.10/1 true", "alive 203.0.113.10/2 true",
		"backup 203.0.113.10 false", "alive 203.0.113.10/3 true", "routes [203.0.113.10]")
	w.probe("10.20.1.11", false, "connection refused")
	w.probe("10.20.1.11", false, "connection refused")
	w.expect("half is below 60 percent", "alive 203.0.113.10/1 false", "backup 203.0.113.10 true")
	w.restart()
	w.apply(backupPlan())
	w.expect("the next agent agrees", "tables [203.0.113.10]")
	if !w.tables.state.Endpoints[0].UseBackup {
		t.Error("the tables begin without backups")
	}
	w.apply(planOf([]string{"203.0.113.10"}, "10.20.1.11", "10.20.2.11"))
	w.expect("no backups any more", "tables [203.0.113.10]", "backup 203.0.113.10 false")
	if e := w.tables.state.Endpoints[0]; e.BackupRing != nil {
		t.Error("has a ring of backups without any")
	}
}

// TestRingsAreMadeOfWhatTheyDependOn: down members are patched into a ring; any other change makes
// a new ring.
func TestRingsAreMadeOfWhatTheyDependOn(t *testing.T) {
	p := backupPlan()
	e := p.Endpoints[0]
	made := 0
	r := ringsOfTables()
	r.build = func(code uint8, members []plan.Member) []uint16 {
		made++
		return BuildRing(code, members)
	}
	get := func() ([]uint16, []uint16) {
		r.obey(e)
		return r.held(e.Key)
	}
	count := func(ring []uint16) map[uint16]int {
		out := map[uint16]int{}
		for _, id := range ring {
			out[id]++
		}
		return out
	}
	main, backup := get()
	if got := count(main); len(got) != 2 || got[3] > 0 || len(count(backup)) != 3 || made != 2 {
		t.Errorf("rings %v and %v, %d made", got, count(backup), made)
	}
	e.Generation++
	e.Members = append([]plan.Member(nil), e.Members...)
	e.Members[0].Down = true
	main, backup = get()
	if count(main)[1] > 0 || count(main)[2] != 64 || count(backup)[1] > 0 || len(count(backup)) != 2 || made != 2 {
		t.Errorf("rings %v and %v, %d made", count(main), count(backup), made)
	}
	e.Members = append([]plan.Member(nil), e.Members...)
	e.Members[1].Down = true
	if main, _ = get(); len(count(main)) != 2 {
		t.Errorf("all down: %v, expected the whole ring", count(main))
	}
	e.Members = append([]plan.Member(nil), e.Members...)
	e.Members[0].Weight = 2
	if get(); made != 4 {
		t.Errorf("%d rings made after a weight changed, expected 4", made)
	}
}

func TestSweepsCountWhileMembersDrain(t *testing.T) {
	w := newWorld(t)
	p := planOf([]string{"203.0.113.10"}, "10.20.1.11", "10.20.2.11")
	p.Endpoints[0].Members[1].Weight = 0
	w.apply(p)
	w.tables.flows = dataplane.FlowTotals{
		ByClass: map[dataplane.FlowClass]uint64{dataplane.FlowTrusted: 5, dataplane.FlowUntrusted: 1},
		Members: map[dataplane.MemberKey]uint64{{Endpoint: p.Endpoints[0].Key, Member: 2}: 6},
	}
	w.agent.sweepOnce()
	if !w.agent.flowsDrain() {
		t.Error("six flows on a draining member, but nothing drains")
	}
	s := w.agent.Status()
	if m := s.Members[1]; m.Flows != 6 || !m.Draining || m.Weight != 0 || s.Members[0].Draining || s.Members[0].Weight != 1 {
		t.Errorf("members %v", s.Members)
	}
	if len(s.Flows) != 2 || s.Flows[0].Class != "trusted" || s.Flows[0].Flows != 5 || len(s.Tables) != 1 || s.Tables[0].Used != 3 {
		t.Errorf("flows %v, tables %v", s.Flows, s.Tables)
	}
	w.tables.flows = dataplane.FlowTotals{}
	w.agent.sweepOnce()
	if w.agent.flowsDrain() {
		t.Error("drains without flows")
	}
}

// TestSweepsRest: sweeps follow the interval, plans and draining members. Time is that of the
// synctest bubble.
func TestSweepsRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.agent.o.Clock = clock.System{}
		p := planOf([]string{"203.0.113.10"}, "10.20.1.11")
		p.Endpoints[0].Members[0].Weight = 0
		w.apply(p)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go w.agent.SweepFlows(ctx, 30*time.Second)
		during := func(seconds int) int {
			<-time.After(time.Duration(seconds)*time.Second + time.Millisecond)
			synctest.Wait()
			w.tables.mu.Lock()
			defer w.tables.mu.Unlock()
			n := w.tables.swept
			w.tables.swept = 0
			return n
		}
		if n := during(1); n != 2 {
			t.Errorf("%d sweeps at the start, expected one, and one for the plan a second later", n)
		}
		if n := during(60); n != 2 {
			t.Errorf("%d sweeps in a minute, expected 2", n)
		}
		w.apply(p)
		w.apply(p)
		if n := during(1); n != 1 {
			t.Errorf("%d sweeps after two plans, expected 1", n)
		}
		w.tables.mu.Lock()
		w.tables.flows.Members = map[dataplane.MemberKey]uint64{{Endpoint: p.Endpoints[0].Key, Member: 1}: 6}
		w.tables.mu.Unlock()
		w.apply(p)
		if n := during(10); n < 9 {
			t.Errorf("%d sweeps in ten seconds of draining, expected one a second", n)
		}
		w.tables.mu.Lock()
		w.tables.flows.Members, w.tables.flows.Pressed = nil, true
		w.tables.mu.Unlock()
		during(2)
		if n := during(10); n < 9 {
			t.Errorf("%d sweeps in ten seconds with a table under pressure, expected one a second", n)
		}
	})
}
