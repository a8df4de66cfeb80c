package manager

import (
	"strings"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// repairPace is the minimum time between an update of a host's plan and a later one that has repair
// items alone, because every change of a weight changes a repair item, and every update costs the
// host, its manager and the other members messages. Muxes wait for hosts with these changes too:
// hostsFirst begins when the update is sent.
const repairPace = 40 * time.Millisecond

// pacer delays updates of one host that have repair items alone. It belongs to the goroutine that
// sends.
type pacer struct {
	clock clock.Clock
	// last is the time of the last update of the host's plan.
	last time.Time
	// due fires when the delayed update may be sent; nil: none is delayed.
	due <-chan time.Time
}

// delays reports whether the session's update must wait for due.
func (p *pacer) delays(s *session) bool {
	left := repairPace - p.clock.Now().Sub(p.last)
	if left <= 0 || !s.repairsAlone() {
		if p.due != nil {
			s.pacedUntil(p.clock.Now()) // other items were added: the delay ends early
		}
		p.due = nil
		return false
	}
	if p.due == nil {
		p.due = p.clock.After(left)
		s.pacedUntil(p.clock.Now().Add(left))
	}
	return true
}

// pacedUntil sets the time of the node's next update. If the node has applied all earlier ones, it
// is behind from then on.
func (s *session) pacedUntil(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.telling || s.obeyed < s.told {
		return
	}
	s.paced = at
	if !s.behind.IsZero() {
		s.behind = at
	}
}

// waitsFrom returns the time from which a mux waits for the node with a change that is held since
// at.
func (s *session) waitsFrom(at time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paced.After(at) {
		return at.Add(min(s.paced.Sub(at), repairPace))
	}
	return at
}

// sent records updates that are about to be sent.
func (p *pacer) sent(ups []*apiv1.PlanUpdate) {
	if len(ups) > 0 && ups[0].GetRevision() > 0 { // those without a revision change no plan
		p.last = p.clock.Now()
	}
}

// repairsAlone reports whether the pending changes of the node's plan are repair items only.
func (s *session) repairsAlone() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.role == lb.RoleHost && s.moved && !s.urgent
}

// takeQuestions returns and removes the pending requests, and leaves the plan's changes.
func (s *session) takeQuestions() []*apiv1.PlanUpdate {
	s.mu.Lock()
	defer s.mu.Unlock()
	questions := s.questions
	s.questions = nil
	return questions
}

// repairKeys reports whether there is at least one key, and all are keys of repair items.
func repairKeys(keys []string) bool {
	for _, key := range keys {
		if !strings.HasPrefix(key, plan.RepairPrefix) {
			return false
		}
	}
	return len(keys) > 0
}
