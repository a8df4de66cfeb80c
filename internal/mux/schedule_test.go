package mux

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/load"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/sched"
)

// scheduledPlan returns a plan of one endpoint of affinity flow with a scheduler.
func scheduledPlan(scheduler, by string, dips ...string) plan.Plan {
	p := planOf([]string{"203.0.113.10"}, dips...)
	e := &p.Endpoints[0]
	e.Affinity, e.Scheduler, e.ScheduleBy = lb.AffinityFlow, scheduler, by
	return p
}

// connect delivers load reports with connections of members.
func (w *world) connect(e lb.EndpointKey, connections ...uint32) {
	var told []load.Member
	for i, n := range connections {
		told = append(told, load.Member{
			Key:  load.Key{Endpoint: e, Member: uint16(i + 1)},
			Load: load.Load{Connections: n, Opened: n, CPU: uint16(1000 - n), Has: load.HasConnections | load.HasCPU},
		})
	}
	w.agent.HeardLoads(told)
}

// schedules makes the next sequence and returns it as text.
func (w *world) schedules(e lb.EndpointKey) string {
	w.t.Helper()
	w.agent.schedule(true)
	return fmt.Sprint(w.tables.schedules[e].Sequence)
}

// due reports whether sequences must be made immediately.
func (w *world) due() bool {
	select {
	case <-w.agent.schedules.due:
		return true
	default:
		return false
	}
}

// TestSchedulersFollowPlanAndHealth: a sequence has the members that take new flows, by their
// weights, as soon as the plan or their health changes.
func TestSchedulersFollowPlanAndHealth(t *testing.T) {
	w := newWorld(t)
	p := scheduledPlan(lb.SchedulerWeightedRoundRobin, "", "10.20.1.11", "10.20.2.11", "10.20.3.11", "10.20.4.11")
	key := p.Endpoints[0].Key
	members := p.Endpoints[0].Members
	members[1].Weight, members[2].Weight, members[3].Backup = 2, 0, true
	w.apply(p)
	if !w.due() {
		t.Error("a plan does not make sequences due")
	}
	if kind := w.tables.state.Endpoints[0].Scheduler; kind != dataplane.ScheduleNext {
		t.Errorf("the tables were told scheduler %d", kind)
	}
	if got := w.schedules(key); got != "[]" {
		t.Errorf("nobody is alive, but the sequence is %s", got)
	}
	for _, dip := range []string{"10.20.1.11", "10.20.2.11", "10.20.4.11"} {
		w.probe(dip, true, "connected")
	}
	if !w.due() {
		t.Error("health does not make sequences due")
	}
	// Member 3 drains, 4 is a backup.
	if got := w.schedules(key); got != "[2 1 2]" {
		t.Errorf("sequence %s", got)
	}
	for range 2 {
		w.probe("10.20.2.11", false, "connection refused")
	}
	if got := w.schedules(key); got != "[1]" {
		t.Errorf("with member 2 dead: %s", got)
	}
	for range 2 {
		w.probe("10.20.1.11", false, "connection refused")
	}
	if got := w.schedules(key); got != "[4]" {
		t.Errorf("with the backup: %s", got)
	}
	// The plan contains slow start and every other change of weights.
	p = scheduledPlan(lb.SchedulerWeightedRoundRobin, "", "10.20.4.11", "10.20.5.11")
	p.Endpoints[0].Members[0].ID, p.Endpoints[0].Members[0].Weight, p.Endpoints[0].Members[1].ID = 4, 3, 5
	p.Revision++
	w.apply(p)
	w.probe("10.20.5.11", true, "connected")
	if got := w.schedules(key); got != "[4 5 4 4]" {
		t.Errorf("by the next plan: %s", got)
	}
	p = scheduledPlan(lb.SchedulerMaglev, "", "10.20.4.11")
	p.Revision += 2
	w.apply(p)
	if kind := w.tables.state.Endpoints[0].Scheduler; kind != dataplane.ScheduleRing || len(w.agent.Schedulers()) != 0 {
		t.Errorf("maglev has scheduler %d and %v", kind, w.agent.Schedulers())
	}
}

// TestSchedulersGoByLoads: sequences follow connections, CPU, or, if reports are stale, weights.
func TestSchedulersGoByLoads(t *testing.T) {
	for _, c := range []struct{ by, want string }{{lb.ByConnections, "[2]"}, {lb.ByCPU, "[1]"}, {lb.ByLoad, "[1 2]"}} {
		w := newWorld(t)
		p := scheduledPlan(lb.SchedulerLeastConnections, c.by, "10.20.1.11", "10.20.2.11")
		key := p.Endpoints[0].Key
		w.apply(p)
		w.probe("10.20.1.11", true, "connected")
		w.probe("10.20.2.11", true, "connected")
		if got := w.schedules(key); got != "[1 2]" {
			t.Errorf("by %s, nothing told: %s", c.by, got)
		}
		w.connect(key, 100, 10)
		w.clock.Advance(scheduleEvery)
		if got := w.schedules(key); got != c.want {
			t.Errorf("by %s: %s, want %s", c.by, got, c.want)
		}
		if got, want := w.agent.Schedulers()[0].Unknown, map[string]int{lb.ByLoad: 2}[c.by]; got != want {
			t.Errorf("by %s: %d members unknown, want %d", c.by, got, want)
		}
		w.clock.Advance(load.RefreshEvery * 3 / 2)
		if got := w.schedules(key); got != "[1 2]" {
			t.Errorf("by %s, stale: %s", c.by, got)
		}
		if got := w.agent.Schedulers()[0]; got.Unknown != 2 || got.Scheduler != lb.SchedulerLeastConnections {
			t.Errorf("by %s, stale: %+v", c.by, got)
		}
	}
}

// TestSchedulersFollowTheirHosts: an endpoint's sequences are made as often as the fastest of its
// hosts samples, independent of other endpoints, and at the default interval if no host reports its
// own. The age of loads is computed from all of its hosts.
func TestSchedulersFollowTheirHosts(t *testing.T) {
	w := newWorld(t)
	p := scheduledPlan(lb.SchedulerLeastConnections, lb.ByConnections, "10.20.1.11", "10.20.2.11")
	other := p.Endpoints[0]
	other.Key.Port = 81
	p.Endpoints = append(p.Endpoints, other)
	w.apply(p)
	key := p.Endpoints[0].Key
	tell := func(every ...time.Duration) {
		var told []load.Member
		for i, d := range every {
			told = append(told, load.Member{Key: load.Key{Endpoint: key, Member: uint16(i + 1)}, Load: load.Load{Connections: 1, Has: load.HasConnections, Every: d}})
		}
		w.agent.HeardLoads(told)
	}
	w.probe("10.20.1.11", true, "connected")
	w.probe("10.20.2.11", true, "connected")
	looked := func(e lb.EndpointKey) time.Time { return w.agent.schedules.of[e].at }
	for _, c := range []struct {
		tell  []time.Duration
		every time.Duration
		lag   time.Duration
	}{
		{nil, 100 * time.Millisecond, 70 * time.Millisecond},
		{[]time.Duration{0, 20 * time.Millisecond}, 20 * time.Millisecond, 50 * time.Millisecond},
		{[]time.Duration{10 * time.Millisecond, 10 * time.Millisecond}, 10 * time.Millisecond, 25 * time.Millisecond},
		{[]time.Duration{2 * time.Second, 4 * time.Second}, 2 * time.Second, 1520 * time.Millisecond},
	} {
		tell(c.tell...)
		if next := w.agent.schedule(true); next != min(c.every, 100*time.Millisecond) {
			t.Errorf("told %v: next in %v", c.tell, next)
		}
		if got := w.agent.schedules.of[key].pace; got != (schedulePace{c.every, c.lag}) {
			t.Errorf("told %v: pace %+v", c.tell, got)
		}
		begun := w.clock.Now()
		w.clock.Advance(c.every - time.Millisecond)
		w.agent.schedule(false)
		if !looked(key).Equal(begun) {
			t.Errorf("told %v: it looked before its time", c.tell)
		}
		w.clock.Advance(time.Millisecond)
		w.agent.schedule(false)
		if !looked(key).Equal(w.clock.Now()) {
			t.Errorf("told %v: it did not look in time", c.tell)
		}
		if looked(other.Key).After(begun) != (c.every >= 100*time.Millisecond) {
			t.Errorf("told %v: the other endpoint looked %v after the beginning", c.tell, looked(other.Key).Sub(begun))
		}
	}
}

// TestPowerOfTwoWords: members get packed loads after a report, after packets were assigned to
// them, and after the tables lost theirs.
func TestPowerOfTwoWords(t *testing.T) {
	w := newWorld(t)
	p := scheduledPlan(lb.SchedulerP2C, lb.ByConnections, "10.20.1.11", "10.20.2.11")
	key := p.Endpoints[0].Key
	w.apply(p)
	w.probe("10.20.1.11", true, "connected")
	w.probe("10.20.2.11", true, "connected")
	w.connect(key, 7, 9)
	words := func() (ids []uint16) {
		delete(w.tables.schedules, key)
		w.agent.schedule(true)
		for _, l := range w.tables.schedules[key].Loads {
			ids = append(ids, l.Member)
		}
		return ids
	}
	if got := words(); !slices.Equal(got, []uint16{1, 2}) {
		t.Errorf("words of %v, want of both", got)
	}
	if kind := w.tables.state.Endpoints[0].Scheduler; kind != dataplane.ScheduleLighter {
		t.Errorf("the tables were told scheduler %d", kind)
	}
	if got := words(); got != nil {
		t.Errorf("words of %v, though nothing is new", got)
	}
	w.clock.Advance(scheduleEvery)
	w.connect(key, 8)
	if got := words(); !slices.Equal(got, []uint16{1}) {
		t.Errorf("words of %v, want of the one that was told of", got)
	}
	// Of five connections most may be missing in the next host report, but none in the one after
	// that.
	loads := w.tables.scheduled[key].Loads
	told := loads[2]
	for range 5 {
		loads[2] = sched.Given(loads[2])
	}
	w.clock.Advance(scheduleEvery)
	step := uint64(told >> sched.StepShift)
	if got := words(); !slices.Equal(got, []uint16{2}) || loads[2] <= told+2*step || loads[2] >= told+5*step {
		t.Errorf("words of %v, %#x after five connections more than %#x", got, loads[2], told)
	}
	w.clock.Advance(scheduleEvery)
	if got := words(); !slices.Equal(got, []uint16{2}) || loads[2] != told {
		t.Errorf("words of %v, %#x after nothing more was told than %#x", got, loads[2], told)
	}
	clear(loads)
	if got := words(); !slices.Equal(got, []uint16{1, 2}) {
		t.Errorf("words of %v after the tables lost them, want of both", got)
	}
}

// TestShares: the reported share of new connections is that in the scheduler's sequence, or that of
// the weights if the ring decides, among members that take any.
func TestShares(t *testing.T) {
	for scheduler, want := range map[string]string{
		lb.SchedulerMaglev: "1:0.25 2:0.75 3:0 9:-", lb.SchedulerRoundRobin: "1:0.5 2:0.5 3:0 9:-", lb.SchedulerLeastConnections: "1:0 2:1 3:0 9:-",
	} {
		w := newWorld(t)
		p := scheduledPlan(scheduler, lb.ByConnections, "10.20.1.11", "10.20.2.11", "10.20.3.11")
		key := p.Endpoints[0].Key
		p.Endpoints[0].Members[1].Weight = 3
		w.apply(p)
		w.probe("10.20.1.11", true, "connected")
		w.probe("10.20.2.11", true, "connected")
		w.connect(key, 100, 10, 0)
		w.agent.schedule(true)
		q := &apiv1.HealthQuestion{Shares: true}
		ids := []uint16{1, 2, 3, 9}
		for _, id := range ids {
			q.Members = append(q.Members, convert.ToEndpointMember(key, id))
		}
		var got []string
		for i, m := range w.agent.Health(q).Members {
			share := "-"
			if m.Share != nil {
				share = fmt.Sprint(m.GetShare())
			}
			if m.Verdict != "" {
				t.Errorf("%s: more is told than was asked: %v", scheduler, m)
			}
			got = append(got, fmt.Sprintf("%d:%s", ids[i], share))
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("%s: shares %s, want %s", scheduler, text, want)
		}
	}
}

// fullTables has no room for sequences.
type fullTables struct{ *tables }

func (fullTables) SetSchedules([]dataplane.Schedule) error { return errors.New("rings: no room") }

// TestScheduleUntil: the loop runs until its context ends, also when the tables have no room.
func TestScheduleUntil(t *testing.T) {
	w := newWorld(t)
	w.apply(scheduledPlan(lb.SchedulerRoundRobin, "", "10.20.1.11"))
	w.agent.o.Tables = fullTables{w.tables}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		w.agent.Schedule(ctx)
		close(done)
	}()
	fault := func() string {
		w.agent.schedules.mu.Lock()
		defer w.agent.schedules.mu.Unlock()
		return w.agent.schedules.fault
	}
	for deadline := time.Now().Add(30 * time.Second); fault() == ""; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no sequence was made")
		}
	}
	cancel()
	<-done
	if got := fault(); got != "rings: no room" {
		t.Errorf("fault %q", got)
	}
}

// TestTraceNamesTheScheduler: a trace has the scheduler that selects members.
func TestTraceNamesTheScheduler(t *testing.T) {
	w := newWorld(t)
	w.apply(scheduledPlan(lb.SchedulerAdaptive, lb.ByCPU, "10.20.1.11"))
	got := w.agent.Trace(&apiv1.TraceRequest{Client: "198.51.100.11", ClientPort: 999, Vip: "203.0.113.10", Protocol: "tcp", Port: 80})
	if got.Error != "" || len(got.Steps) < 2 || got.Steps[1] != "new flows are given by adaptive, by cpu" {
		t.Errorf("steps %q, error %q", got.Steps, got.Error)
	}
}
