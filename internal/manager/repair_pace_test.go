package manager

import (
	"testing"
	"testing/synctest"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/lb"
)

// TestRepairPace: updates of repair items alone are repairPace apart, and later if updates of bindings came meanwhile. No other update waits.
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
		expect(false) // all that there is
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
		s.tell([]string{repair}, false, 6, 6) // the first one after a while
		expect(false)

		// A mux with changes that are held for hosts gets others.
		mux, pm := open(lb.RoleMux)
		send(mux, pm)
		mux.take([]fold{{keys: []string{"endpoint/0/203.0.113.1/tcp/80"}}})
		if pm.delays(mux) {
			t.Error("the update of a mux is delayed")
		}
	})
}
