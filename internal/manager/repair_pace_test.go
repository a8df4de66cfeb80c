package manager

import (
	"testing"
	"testing/synctest"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/lb"
)

// TestRepairPace: updates of repair items alone are repairPace apart, and later if updates of
// bindings were sent meanwhile. No other update waits.
func TestRepairPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const repair, binding = "repair/0/203.0.113.1/tcp/80", "binding/0/203.0.113.1/tcp/80/10.0.0.1/1"
		ss := newSessions(clock.System{})
		open := func(role lb.Role) (*session, *pacer) {
			s := newSession(t.Context(), identity{name: string(role) + "1", role: string(role)})
			ss.add(s)
			return s, &pacer{clock: clock.System{}}
		}
		send := func(s *session, p *pacer) {
			s.take(nil)
			s.sending(nil)
			p.sent([]*apiv1.PlanUpdate{{Revision: 1}})
		}
		s, p := open(lb.RoleHost)
		expect := func(want bool) {
			t.Helper()
			if got := p.delays(s); got != want {
				t.Errorf("delays: %v, want %v", got, want)
			}
			if due := p.due != nil; due != want {
				t.Errorf("a delay is to end: %v, want %v", due, want)
			}
		}
		expect(false) // the whole plan
		send(s, p)
		s.tell([]string{repair}, false, 2, 2)
		expect(true)
		if s.ask(&apiv1.PlanUpdate{}); len(s.takeQuestions()) != 1 {
			t.Error("a question waits for the plan")
		}
		expect(true)
		s.tell([]string{repair, binding}, false, 3, 3)
		expect(false)
		send(s, p)
		time.Sleep(repairPace / 2)
		s.tell([]string{repair}, false, 4, 4)
		expect(true)
		began := time.Now()
		<-p.due
		if got := time.Since(began); got != repairPace/2 {
			t.Errorf("the update waited for %v, want %v", got, repairPace/2)
		}
		p.due = nil
		expect(false)
		send(s, p)
		s.tell(nil, false, 5, 0) // a new epoch
		expect(false)
		send(s, p)
		time.Sleep(repairPace)
		s.tell([]string{repair}, false, 6, 6) // the first one after the pace has passed
		expect(false)

		// A mux with changes that are held for hosts receives others.
		mux, pm := open(lb.RoleMux)
		send(mux, pm)
		mux.take([]fold{{keys: []string{"endpoint/0/203.0.113.1/tcp/80"}}})
		if pm.delays(mux) {
			t.Error("the update of a mux is delayed")
		}
	})
}

// TestPacedHostIsNotLate: the delay of an update by the manager does not count as the host's. The
// host is late, and muxes no longer wait for it, hostsFirst after the update was due.
func TestPacedHostIsNotLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const repair = "repair/0/203.0.113.1/tcp/80"
		ss := newSessions(clock.System{})
		m := &Manager{sessions: ss, hosts: newHostProgress(), o: Options{Clock: clock.System{}}}
		s := newSession(t.Context(), identity{name: "host1", role: string(lb.RoleHost)})
		mux := newSession(t.Context(), identity{name: "mux1", role: string(lb.RoleMux)})
		ss.add(s)
		ss.add(mux)
		p := &pacer{clock: clock.System{}}
		send := func(revision int64) {
			p.sent([]*apiv1.PlanUpdate{{Revision: revision}})
			s.take(nil)
			s.sending(&apiv1.PlanUpdate{Revision: revision})
		}
		late := func(c string, want bool) {
			t.Helper()
			m.leaveBehind()
			if s.late != want {
				t.Errorf("%s: late: %v, want %v", c, s.late, want)
			}
		}
		send(1)
		ss.obeyed(s, 1)
		s.tell([]string{repair}, false, 2, 2)
		s.mu.Lock()
		s.owed[repair] = 2
		s.mu.Unlock()
		if !p.delays(s) {
			t.Fatal("the update of a repair item alone is not delayed")
		}
		mux.take(nil)
		mux.folds = []fold{{keys: []string{repair}}}
		var w waiting
		held := func(c string, want int) {
			t.Helper()
			if got := m.hold(mux, &w); len(got) != want {
				t.Errorf("%s: %d changes are held, want %d", c, len(got), want)
			}
		}
		held("at once", 1)
		<-p.due
		p.due = nil
		send(2)
		time.Sleep(hostsFirst - repairPace/2)
		held("in the host's time", 1)
		late("in its time", false)
		if got := time.Until(w.until); got != repairPace/2 {
			t.Errorf("the mux waits for %v more, want %v", got, repairPace/2)
		}
		// Repair items that are added meanwhile are delayed, but do not extend its time.
		s.tell([]string{repair}, false, 3, 3)
		p.delays(s)
		time.Sleep(repairPace / 2)
		held("after its time", 0)
		late("after its time", true)
	})
}

// TestHostOfAnotherManagerHasItsPace: a mux waits hostsFirst for a host of another manager after
// repairPace, because that manager delays repair items too.
func TestHostOfAnotherManagerHasItsPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const endpoint = "endpoint/0/203.0.113.1/tcp/80"
		ss := newSessions(clock.System{})
		m := &Manager{sessions: ss, hosts: newHostProgress(), view: newView(nil), o: Options{Clock: clock.System{}}}
		mux := newSession(t.Context(), identity{name: "mux1", role: string(lb.RoleMux)})
		ss.add(mux)
		m.hosts.hear(&apiv1.HostProgress{Manager: "m2", Revision: 1})
		mux.take(nil)
		mux.folds = []fold{{keys: []string{endpoint}, hosts: 2}}
		var w waiting
		for _, c := range []struct {
			after time.Duration
			held  int
		}{{0, 1}, {hostsFirst + repairPace - time.Millisecond, 1}, {time.Millisecond, 0}} {
			time.Sleep(c.after)
			if got := len(m.hold(mux, &w)); got != c.held {
				t.Errorf("after %v more: %d changes are held, want %d", c.after, got, c.held)
			}
		}
	})
}
