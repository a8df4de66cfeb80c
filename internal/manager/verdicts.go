package manager

import (
	"maps"
	"slices"
	"sync"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// verdicts are what hosts came to about the members that they check, for muxes. They are in memory only: a host says all
// of it at the begin of a stream, and until then what it said on its last one stays.
type verdicts struct {
	mu     sync.Mutex
	byHost map[string]verdict
}

// verdict is all that one host said.
type verdict struct {
	stream uint64              // session.number
	said   *apiv1.HealthReport // full, never modified
}

func newVerdicts() *verdicts { return &verdicts{byHost: map[string]verdict{}} }

// report takes in what a host said. It returns what muxes must hear of it, nil for nothing, and all that the host said.
func (v *verdicts) report(s *session, h *apiv1.HealthReport) (tell, all *apiv1.HealthReport) {
	v.mu.Lock()
	defer v.mu.Unlock()
	old := v.byHost[s.name]
	if s.role != lb.RoleHost || old.stream > s.number {
		return nil, nil
	}
	said := old.said
	if said == nil {
		said = &apiv1.HealthReport{Full: true}
	}
	if tell = h; h.GetFull() {
		tell = mergeHealth(unsaid(said), &apiv1.HealthReport{Endpoints: h.GetEndpoints()})
	}
	all = mergeHealth(said, h)
	v.byHost[s.name] = verdict{s.number, all}
	return tell, all
}

// of are the verdicts of each host.
func (v *verdicts) of() map[string]*apiv1.HealthReport {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := make(map[string]*apiv1.HealthReport, len(v.byHost))
	for host, verdict := range v.byHost {
		out[host] = verdict.said
	}
	return out
}

// forget takes back what a host said that is no node any more.
func (v *verdicts) forget(s *session) *apiv1.HealthReport {
	v.mu.Lock()
	defer v.mu.Unlock()
	old, known := v.byHost[s.name]
	if !known || old.stream > s.number {
		return nil
	}
	delete(v.byHost, s.name)
	return unsaid(old.said)
}

// all is what a mux must know that knows nothing.
func (v *verdicts) all() *apiv1.HealthReport {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := newHealthMerge(&apiv1.HealthReport{Full: true})
	for _, name := range slices.Sorted(maps.Keys(v.byHost)) {
		out.add(v.byHost[name].said)
	}
	return out.report()
}

// tellHealth lets all muxes hear of verdicts.
func (ss *sessions) tellHealth(h *apiv1.HealthReport) {
	if len(h.GetEndpoints()) == 0 {
		return
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for _, s := range ss.byNode {
		if s.role == lb.RoleMux {
			s.tellHealth(h)
		}
	}
}

// tellHealth notes verdicts that the node must hear of, merged with those that wait.
func (s *session) tellHealth(h *apiv1.HealthReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.health != nil {
		h = mergeHealth(s.health, h)
	}
	s.health = h
	s.signal()
}

// healthFor is what a mux must hear now: with a snapshot everything, else what is new. nil: nothing.
func (m *Manager) healthFor(s *session, snapshot bool) *apiv1.HealthReport {
	if s.role != lb.RoleMux {
		return nil
	}
	h := s.takeHealth()
	if snapshot {
		// What a host says from here on waits already, or will. That there is nothing is worth a word too.
		return m.verdicts.all()
	}
	if len(h.GetEndpoints()) == 0 {
		return nil
	}
	return h
}
