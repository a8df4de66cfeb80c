package manager

import (
	"sync"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// verdicts holds the health verdicts that hosts sent about the members that they probe, for muxes.
// They are in memory only: a host sends all of them at the start of a stream, and until then those
// of its last stream stay valid.
type verdicts struct {
	// telling is held while a report is processed and distributed, so that every receiver gets
	// reports in order. It is taken before the receivers' locks.
	telling sync.Mutex

	mu     sync.Mutex
	byHost map[string]verdict
	words  words
}

// verdict is the full report of one host.
type verdict struct {
	stream uint64              // session.number
	said   *apiv1.HealthReport // full, never modified
	// muted: the host sends nothing although its stream is open. Its verdicts are withdrawn until
	// it does.
	muted bool
}

func newVerdicts() *verdicts { return &verdicts{byHost: map[string]verdict{}, words: words{}} }

// heardHealth holds the reports that result from a change of verdicts.
type heardHealth struct {
	// news is for other members; tell is for muxes; all is the host's full report. None is ever
	// modified.
	news, tell, all *apiv1.HealthReport
}

// report stores a host's report. It returns nil if the report is ignored.
func (v *verdicts) report(s *session, h *apiv1.HealthReport) *heardHealth {
	v.mu.Lock()
	defer v.mu.Unlock()
	old := v.byHost[s.name]
	if s.role != lb.RoleHost || old.stream > s.number {
		return nil
	}
	said, change := old.said, h
	if said == nil {
		said = &apiv1.HealthReport{Full: true}
	}
	if h.GetFull() {
		change = mergeHealth(unsaid(said), &apiv1.HealthReport{Endpoints: h.GetEndpoints()})
	}
	all := mergeHealth(said, h)
	v.byHost[s.name] = verdict{stream: s.number, said: all}
	if old.muted {
		change = &apiv1.HealthReport{Endpoints: all.GetEndpoints()}
	}
	news, tell := v.foldLocked(s.name, change)
	if h.GetFull() || old.muted {
		news = all
	}
	return &heardHealth{news, tell, all}
}

// mute withdraws the verdicts of a stream, or restores them, without deleting them. It returns nil
// if nothing changes.
func (v *verdicts) mute(s *session, on bool) *heardHealth {
	v.mu.Lock()
	defer v.mu.Unlock()
	old, known := v.byHost[s.name]
	if !known || old.stream != s.number || old.muted == on {
		return nil
	}
	v.byHost[s.name] = verdict{stream: old.stream, said: old.said, muted: on}
	if on {
		news, tell := v.foldLocked(s.name, unsaid(old.said))
		return &heardHealth{news, tell, &apiv1.HealthReport{Full: true}}
	}
	_, tell := v.foldLocked(s.name, &apiv1.HealthReport{Endpoints: old.said.GetEndpoints()})
	return &heardHealth{old.said, tell, old.said}
}

// foldLocked applies a host's changed verdicts. It returns news, the changes without repetitions,
// and tell, the resulting newest report on each member, for muxes.
func (v *verdicts) foldLocked(host string, change *apiv1.HealthReport) (news, tell *apiv1.HealthReport) {
	of, last := newHealthMerge(&apiv1.HealthReport{}), newHealthMerge(&apiv1.HealthReport{})
	for _, e := range change.GetEndpoints() {
		key, texts := healthKeyOf(e), wordsIn(e)
		for said, ids := range [][]uint32{saidAlive: e.GetAlive(), saidDead: e.GetDead(), saidUnknown: e.GetUnknown()} {
			for _, id := range ids {
				if said != saidUnknown {
					v.words.say(host, key, id, said, texts[id])
				} else if !v.words.takeBack(host, key, id) {
					continue
				}
				of.set(key, id, word{said: said, text: texts[id]})
				last.set(key, id, v.words.last(key, id))
			}
		}
	}
	return of.report(), last.report()
}

// of returns the verdicts of each host.
func (v *verdicts) of() map[string]*apiv1.HealthReport {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := make(map[string]*apiv1.HealthReport, len(v.byHost))
	for host, verdict := range v.byHost {
		out[host] = verdict.counts()
	}
	return out
}

// said returns the valid verdicts of a host, or nil if it has none.
func (v *verdicts) said(host string) *apiv1.HealthReport {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.byHost[host].counts()
}

// counts returns the host's report, empty while it is muted.
func (v verdict) counts() *apiv1.HealthReport {
	if v.muted {
		return &apiv1.HealthReport{Full: true}
	}
	return v.said
}

// forget deletes a host's verdicts. It returns the changes for members (news) and for muxes (tell).
func (v *verdicts) forget(s *session) (news, tell *apiv1.HealthReport) {
	v.mu.Lock()
	defer v.mu.Unlock()
	old, known := v.byHost[s.name]
	if !known || old.stream > s.number {
		return nil, nil
	}
	delete(v.byHost, s.name)
	return v.foldLocked(s.name, unsaid(old.said))
}

// all returns the full report for a mux that has none.
func (v *verdicts) all() *apiv1.HealthReport {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := newHealthMerge(&apiv1.HealthReport{Full: true})
	for key, of := range v.words {
		for id := range of {
			said := v.words.last(key, id)
			if said.said == saidAlive {
				said.text = "" // no reader needs the reason for a healthy member
			}
			out.set(key, id, said)
		}
	}
	return out.report()
}

// hearHealth stores verdicts of a host, and sends the changes to muxes and other members.
func (m *Manager) hearHealth(s *session, h *apiv1.HealthReport) {
	m.verdicts.telling.Lock()
	defer m.verdicts.telling.Unlock()
	r := m.verdicts.report(s, h)
	if r == nil {
		return
	}
	m.sessions.tellHealth(r.tell)
	m.outbox.health(s, r.news, r.all)
	m.followers.tellHealth(s, r.news)
}

// muteHealth withdraws the verdicts of a silent host, or restores them, and reports whether that
// changed anything.
func (m *Manager) muteHealth(s *session, on bool) bool {
	m.verdicts.telling.Lock()
	defer m.verdicts.telling.Unlock()
	r := m.verdicts.mute(s, on)
	if r == nil {
		return false
	}
	m.sessions.tellHealth(r.tell)
	m.outbox.health(s, r.news, r.all)
	m.followers.tellHealth(s, r.news)
	return true
}

// forgetHealth deletes the verdicts that a host sent on a stream and those before it, and reports
// whether there were any.
func (m *Manager) forgetHealth(s *session) bool {
	m.verdicts.telling.Lock()
	defer m.verdicts.telling.Unlock()
	news, tell := m.verdicts.forget(s)
	if news == nil {
		return false
	}
	m.sessions.tellHealth(tell)
	m.followers.tellHealth(s, news)
	return true
}

// tellHealth sends verdicts to all muxes.
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

// tellHealth queues verdicts for the node, merged with the pending ones.
func (s *session) tellHealth(h *apiv1.HealthReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.health != nil {
		h = mergeHealth(s.health, h)
	}
	s.health = h
	s.signal()
}

// healthFor returns the verdicts that a mux must receive now: all of them with a snapshot, else the
// new ones. It returns nil if there are none.
func (m *Manager) healthFor(s *session, snapshot bool) *apiv1.HealthReport {
	if s.role != lb.RoleMux {
		return nil
	}
	h := s.takeHealth()
	if snapshot {
		// Later reports of hosts are pending already, or will be. An empty report is sent, too.
		return m.verdicts.all()
	}
	if len(h.GetEndpoints()) == 0 {
		return nil
	}
	return h
}
