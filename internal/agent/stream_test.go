package agent

import (
	"net/netip"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/notify"
	"github.com/shuntlb/shunt/internal/plan"
)

// verdictsOf returns verdicts on members of one endpoint.
func verdictsOf(full bool, alive, dead []uint16) plan.Verdicts {
	key := lb.EndpointKey{VIP: netip.MustParseAddr("203.0.113.10"), Protocol: lb.TCP, Port: 80}
	return plan.Verdicts{Full: full, Endpoints: []plan.EndpointVerdicts{{Key: key, Alive: alive, Dead: dead}}}
}

// checksTwin provides verdicts that a test sets.
type checksTwin struct {
	changed chan struct{}

	mu        sync.Mutex
	all, news plan.Verdicts
}

func (c *checksTwin) set(all, news plan.Verdicts) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all, c.news = all, news
	notify.Send(c.changed)
}

func (c *checksTwin) Changed() <-chan struct{} { return c.changed }

func (c *checksTwin) Take(all bool) plan.Verdicts {
	c.mu.Lock()
	defer c.mu.Unlock()
	if all {
		return c.all
	}
	return c.news
}

func nodeUpdate(revision, epoch int64, snapshot bool) *apiv1.PlanUpdate {
	n := lb.Node{Name: "node1", Role: lb.RoleMux, Addresses: []netip.Addr{netip.MustParseAddr("10.10.0.11")}}
	lb.SetDefaults(&n)
	return &apiv1.PlanUpdate{
		Revision: revision, Epoch: epoch, Snapshot: snapshot,
		Upsert: []*apiv1.PlanItem{convert.NodeItem(&plan.Plan{Node: n, MTU: uint32(1400 + revision)})},
	}
}

// expectAck reads a report that contains the applied revision and nothing else.
func (s *twinStream) expectAck(revision int64) {
	s.t.Helper()
	if r := s.report(); r.GetStatus() != nil || r.GetHealth() != nil || r.GetSyncedRevision() != revision {
		s.t.Fatalf("report is %v, want that revision %d is obeyed and nothing else", r, revision)
	}
}

// expectVerdicts reads a report of verdicts without a status.
func (s *twinStream) expectVerdicts(want plan.Verdicts) {
	s.t.Helper()
	r := s.report()
	got, err := convert.FromHealth(r.GetHealth())
	if err != nil || r.GetStatus() != nil || r.GetHealth() == nil || !reflect.DeepEqual(got, want) {
		s.t.Fatalf("report is %v (%v), want verdicts %+v and no status", r, err, want)
	}
}

// TestWhatIsWaitedForGoesAhead: the applied revision, verdicts and responses are reported without
// delay. Statuses are delayed, and one contains all changes since the last.
func TestWhatIsWaitedForGoesAhead(t *testing.T) {
	m, fake := newManagerTwin(t), clock.NewFake(time.Now())
	checks := &checksTwin{changed: make(chan struct{}, 1)}
	notify := make(chan struct{})
	// One member, so that its verdict does not depend on the order of lists.
	up, down := verdictsOf(false, []uint16{1}, nil), verdictsOf(false, nil, []uint16{1})
	all := verdictsOf(true, []uint16{1}, nil)
	checks.all = all
	m.run(Options{Commit: "0123abcd", Clock: fake, StatusInterval: time.Hour, Verdicts: checks, Notify: notify}, obedient{})

	s := m.accept()
	s.expectVerdicts(all)
	s.ups <- nodeUpdate(1, 1, true)
	// The first status is not delayed.
	acked, told := false, false
	for !acked || !told {
		r := s.report()
		if r.GetSyncedRevision() != 1 {
			t.Fatalf("report is %v, want revision 1", r)
		}
		acked, told = acked || r.GetStatus() == nil, told || r.GetStatus() != nil
	}
	for revision := range int64(5) {
		s.ups <- nodeUpdate(revision+2, 1, false)
		s.expectAck(revision + 2)
		notify <- struct{}{}
	}
	checks.set(all, down)
	s.expectVerdicts(down)
	checks.set(all, up)
	s.expectVerdicts(up)
	s.ups <- &apiv1.PlanUpdate{Trace: &apiv1.TraceQuestion{Id: 7, Request: &apiv1.TraceRequest{}}}
	if r := s.report(); r.GetTrace().GetId() != 7 || r.GetTrace().GetResult().GetVerdict() != "forwarded" || r.GetStatus() != nil {
		t.Fatalf("report is %v, want an answer without a status", r)
	}
	if r := s.until(fake, statusPace); r.GetStatus().GetSyncedRevision() != 6 || !r.GetStatus().GetDrained() {
		t.Fatalf("report is %v, want a status at revision 6", r)
	} else if p := r.GetStatus().GetProcesses(); len(p) != 1 || p[0].GetProcess() != "agent" || p[0].GetVersion() != "test" || p[0].GetCommit() != "0123abcd" || p[0].GetPid() == 0 {
		t.Errorf("processes %v, want the agent of build test 0123abcd", p)
	}

	// Another stream begins with everything.
	checks.mu.Lock()
	checks.all = verdictsOf(true, nil, []uint16{1})
	checks.mu.Unlock()
	close(s.ups)
	for range s.reports {
	}
	var again *twinStream
	for again == nil {
		select {
		case again = <-m.streams:
		case <-time.After(time.Millisecond): // lets the fake clock continue
			fake.Advance(maxWait)
		}
	}
	if r := again.report(); r.GetHello().GetHaveRevision() != 6 {
		t.Fatalf("report is %v, want a hello with revision 6", r)
	}
	again.expectVerdicts(verdictsOf(true, nil, []uint16{1}))
}

// TestVerdictsAreOfNoEpoch: a node applies host reports, alone and with a snapshot, also from a
// manager whose plan it refuses.
func TestVerdictsAreOfNoEpoch(t *testing.T) {
	m := newManagerTwin(t)
	heard := make(chan plan.Verdicts, 8)
	m.run(Options{Clock: clock.NewFake(time.Now()), StatusInterval: time.Hour, Heard: func(v plan.Verdicts) { heard <- v }}, obedient{})
	s := m.accept()
	go func() {
		for range s.reports {
		}
	}()
	for i, c := range []struct {
		up   *apiv1.PlanUpdate
		said plan.Verdicts
	}{
		{nodeUpdate(5, 2, true), verdictsOf(true, []uint16{1}, nil)},
		{&apiv1.PlanUpdate{}, verdictsOf(false, nil, []uint16{1})},
		{nodeUpdate(6, 1, true), verdictsOf(true, []uint16{2}, nil)}, // of a previous epoch
		{&apiv1.PlanUpdate{}, verdictsOf(false, []uint16{1}, nil)},
		// no verdicts at all
		{nodeUpdate(7, 2, true), plan.Verdicts{Full: true, Endpoints: []plan.EndpointVerdicts{}}},
	} {
		c.up.Health = convert.ToHealth(c.said)
		s.ups <- c.up
		if got := <-heard; !reflect.DeepEqual(got, c.said) {
			t.Errorf("update %d: heard %+v, want %+v", i, got, c.said)
		}
	}
}

// doubt is an isolation state that a test sets.
type doubt struct {
	suspicions chan struct{}
	others     chan plan.Verdicts
	since      atomic.Int64 // in Unix seconds
}

func (d *doubt) Suspicions() <-chan struct{} { return d.suspicions }
func (d *doubt) OthersSay(v plan.Verdicts)   { d.others <- v }

func (d *doubt) Suspect() time.Time {
	if at := d.since.Load(); at != 0 {
		return time.Unix(at, 0)
	}
	return time.Time{}
}

// TestSuspicionIsAsked: a node requests the reports of others immediately when isolation begins,
// repeatedly while it lasts, on a new stream, too, and no more after its end. Requests for its own
// checks are answered meanwhile.
func TestSuspicionIsAsked(t *testing.T) {
	m, fake := newManagerTwin(t), clock.NewFake(time.Now())
	d := &doubt{suspicions: make(chan struct{}), others: make(chan plan.Verdicts, 1)}
	m.run(Options{Clock: fake, StatusInterval: time.Hour, Suspicion: d}, obedient{})
	again := func(s *twinStream) *twinStream {
		close(s.ups)
		for range s.reports {
		}
		for {
			select {
			case next := <-m.streams:
				next.report() // its hello
				return next
			case <-time.After(time.Millisecond): // lets the fake clock continue
				fake.Advance(maxWait)
			}
		}
	}
	// answers reads reports up to the response to a request and counts the requests before it.
	answers := func(s *twinStream, id uint64) (asks int) {
		t.Helper()
		s.ups <- &apiv1.PlanUpdate{HealthOf: &apiv1.HealthQuestion{Id: id, Members: []*apiv1.EndpointMember{{Vip: "203.0.113.10"}}}}
		for {
			r := s.report()
			if r.GetAskHealth() {
				asks++
			}
			if h := r.GetHealthReply(); h != nil {
				if h.GetId() != id || len(h.GetResult().GetMembers()) != 1 || h.GetResult().GetMembers()[0].GetWords() != "203.0.113.10" || r.GetStatus() != nil {
					t.Fatalf("report is %v, want an answer to question %d without a status", r, id)
				}
				return asks
			}
		}
	}
	asks := func(s *twinStream) {
		t.Helper()
		if r := s.until(fake, askPace/4); !r.GetAskHealth() || r.GetStatus() != nil {
			t.Fatalf("report is %v, want an ask without a status", r)
		}
	}

	s := m.accept()
	if n := answers(s, 7); n != 0 {
		t.Fatalf("%d asks without a suspicion", n)
	}
	d.since.Store(1000)
	d.suspicions <- struct{}{}
	asks(s)
	asks(s)
	s = again(s)
	asks(s)
	said := verdictsOf(true, []uint16{1}, []uint16{2})
	s.ups <- &apiv1.PlanUpdate{Others: convert.ToHealth(said)}
	if got := <-d.others; !reflect.DeepEqual(got, said) {
		t.Errorf("others say %+v, want %+v", got, said)
	}
	asks(s)
	d.since.Store(0)
	d.suspicions <- struct{}{}
	fake.Advance(10 * askPace)
	answers(s, 8) // a request may have been in flight
	fake.Advance(10 * askPace)
	if n := answers(s, 9); n != 0 {
		t.Errorf("%d asks after the suspicion", n)
	}
}
