package manager

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// staged is an intake whose handlers report their work, and wait until they may continue.
type staged struct {
	*intake
	did     chan string
	proceed chan struct{}
	workers sync.WaitGroup
}

// newStaged begins with one worker.
func newStaged(t *testing.T) *staged {
	st := &staged{did: make(chan string), proceed: make(chan struct{})}
	note := func(what string) {
		st.did <- what
		<-st.proceed
	}
	st.intake = newIntake([classes]func(*session, *apiv1.NodeReport){
		func(s *session, r *apiv1.NodeReport) { note(fmt.Sprint(s.name, " obeys ", r.GetSyncedRevision())) },
		func(s *session, r *apiv1.NodeReport) {
			note(fmt.Sprint(s.name, " health ", r.GetHealth().GetEndpoints()[0].GetAlive()))
		},
		func(s *session, r *apiv1.NodeReport) { note(fmt.Sprint(s.name, " status ", r.GetStatus().GetError())) },
	})
	st.workers.Go(st.run)
	t.Cleanup(func() {
		st.close()
		close(st.proceed)
		st.workers.Wait()
	})
	return st
}

func (st *staged) next(t *testing.T, want string) {
	t.Helper()
	if got := <-st.did; got != want {
		t.Fatalf("%s, want %s", got, want)
	}
}

func said(revision int64, health uint32, status string) *apiv1.NodeReport {
	return &apiv1.NodeReport{
		SyncedRevision: revision, Status: &apiv1.NodeStatus{Error: status},
		Health: &apiv1.HealthReport{Endpoints: []*apiv1.EndpointHealth{{Vip: "203.0.113.10", Port: 80, Alive: []uint32{health}}}},
	}
}

// TestUrgentReportsGoFirst checks that urgent parts of reports that wait for a stalled worker are
// handled first, and that of several reports only the newest is handled, except verdicts.
func TestUrgentReportsGoFirst(t *testing.T) {
	st := newStaged(t)
	a, b, c := &session{name: "a", acked: -1}, &session{name: "b", acked: -1}, &session{name: "c", acked: 7}
	st.put(c, &apiv1.NodeReport{SyncedRevision: 7, Status: &apiv1.NodeStatus{Error: "first"}})
	st.next(t, "c status first")
	for i := range 100 {
		st.put(a, said(int64(i), uint32(i), fmt.Sprint(i)))
	}
	for i := range 3 {
		st.put(b, said(int64(i), uint32(i), fmt.Sprint(i)))
	}
	st.put(c, &apiv1.NodeReport{SyncedRevision: 7, Status: &apiv1.NodeStatus{Error: "second"}})
	all := make([]uint32, 100)
	for i := range all {
		all[i] = uint32(i)
	}
	for _, want := range []string{
		"a obeys 99", "b obeys 2", fmt.Sprint("a health ", all), "b health [0 1 2]", "a status 99", "b status 2", "c status second",
	} {
		st.proceed <- struct{}{}
		st.next(t, want)
	}
}

// TestStatusesLeaveAWorker checks that urgent parts are handled however many statuses take long,
// and that reports of one session never overtake each other.
func TestStatusesLeaveAWorker(t *testing.T) {
	st := newStaged(t)
	for range intakeWorkers - 1 {
		st.workers.Go(st.run)
	}
	var sessions []*session
	for i := range intakeWorkers + 2 {
		s := &session{name: fmt.Sprint("n", i), acked: 0}
		sessions = append(sessions, s)
		st.put(s, &apiv1.NodeReport{Status: &apiv1.NodeStatus{}})
	}
	for range intakeWorkers - 1 {
		<-st.did // all workers that may handle statuses are busy
	}
	sessions[0].acked = -1
	st.put(sessions[0], &apiv1.NodeReport{SyncedRevision: 5})
	st.next(t, "n0 obeys 5")
	st.put(sessions[0], &apiv1.NodeReport{SyncedRevision: 6})
	st.put(sessions[1], &apiv1.NodeReport{SyncedRevision: 9})
	// one of the three goes on; with any of them n0's revisions stay in order
	st.proceed <- struct{}{}
	first := <-st.did
	st.proceed <- struct{}{}
	second := <-st.did
	if slices.Index([]string{first, second}, "n1 obeys 9") < 0 {
		t.Errorf("%q and %q: n1's was taken in too late", first, second)
	}
}

// TestNothingOfHealthIsLost checks that merging a node's reports before they are handled gives the
// same result as handling each report by itself.
func TestNothingOfHealthIsLost(t *testing.T) {
	report := rapid.Custom(func(t *rapid.T) *apiv1.HealthReport {
		h := &apiv1.HealthReport{Full: rapid.IntRange(0, 4).Draw(t, "full") == 0}
		for port := range uint32(rapid.IntRange(0, 3).Draw(t, "endpoints")) {
			e := &apiv1.EndpointHealth{Vip: "203.0.113.10", Port: port}
			for id := range uint32(4) {
				switch rapid.IntRange(0, 3).Draw(t, "said") {
				case 0:
					e.Alive = append(e.Alive, id)
				case 1:
					e.Dead = append(e.Dead, id)
				case 2:
					e.Unknown = append(e.Unknown, id)
				}
			}
			h.Endpoints = append(h.Endpoints, e)
		}
		return h
	})
	rapid.Check(t, func(t *rapid.T) {
		known := map[string]bool{} // the oracle: members that are alive or dead
		var waiting *apiv1.HealthReport
		taken := map[string]bool{}
		for range rapid.IntRange(1, 10).Draw(t, "reports") {
			h := report.Draw(t, "report")
			before := proto.CloneOf(h)
			learn(known, h)
			if waiting == nil {
				waiting = h
			} else {
				waiting = mergeHealth(waiting, h)
			}
			if !proto.Equal(before, h) {
				t.Fatalf("%v was modified: %v", before, h)
			}
			if rapid.Bool().Draw(t, "taken in") {
				learn(taken, waiting)
				waiting = nil
			}
		}
		if waiting != nil {
			learn(taken, waiting)
		}
		if fmt.Sprint(taken) != fmt.Sprint(known) {
			t.Fatalf("known %v, want %v", taken, known)
		}
	})
}

// learn applies a report to the known health, naively.
func learn(known map[string]bool, h *apiv1.HealthReport) {
	if h.GetFull() {
		clear(known)
	}
	for _, e := range h.GetEndpoints() {
		for _, id := range e.GetAlive() {
			known[fmt.Sprint(e.GetPort(), "/", id)] = true
		}
		for _, id := range e.GetDead() {
			known[fmt.Sprint(e.GetPort(), "/", id)] = false
		}
		for _, id := range e.GetUnknown() {
			delete(known, fmt.Sprint(e.GetPort(), "/", id))
		}
	}
}
