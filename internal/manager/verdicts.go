package manager

import (
	"sync"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// verdicts are what hosts came to about the members that they check, for muxes. They are in memory only: a host says all
// of it at the begin of a stream, and until then what it said on its last one stays.
type verdicts struct {
	// telling is held while something is taken in and told: nobody hears an earlier word after a later one. It is taken before
	// the locks of those who are told.
	telling sync.Mutex

	mu     sync.Mutex
	byHost map[string]verdict
	words  words
}

// verdict is all that one host said.
type verdict struct {
	stream uint64              // session.number
	said   *apiv1.HealthReport // full, never modified
	// muted: the host sends nothing though its stream is open, and its verdicts are taken back until it does.
	muted bool
}

func newVerdicts() *verdicts { return &verdicts{byHost: map[string]verdict{}, words: words{}} }

// heardHealth is what verdicts come to.
type heardHealth struct {
	// news are for other members; tell is for muxes; all is all that the host says. None is ever modified.
	news, tell, all *apiv1.HealthReport
}

// report takes in what a host said; nil when it does not count.
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

// mute takes the verdicts of a stream back, or lets them count again, without forgetting them. nil: that changes nothing.
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

// foldLocked takes in what a host says now. It returns that without what says nothing new, and what muxes must hear of it:
// the last word on each member.
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

// of are the verdicts of each host.
func (v *verdicts) of() map[string]*apiv1.HealthReport {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := make(map[string]*apiv1.HealthReport, len(v.byHost))
	for host, verdict := range v.byHost {
		out[host] = verdict.counts()
	}
	return out
}

// said is all that a host said and that counts; nil for nothing.
func (v *verdicts) said(host string) *apiv1.HealthReport {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.byHost[host].counts()
}

// counts is what the host said, empty while it is muted.
func (v verdict) counts() *apiv1.HealthReport {
	if v.muted {
		return &apiv1.HealthReport{Full: true}
	}
	return v.said
}

// forget takes back what a host said. It returns what members must hear of it and what muxes must.
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

// all is what a mux must know that knows nothing.
func (v *verdicts) all() *apiv1.HealthReport {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := newHealthMerge(&apiv1.HealthReport{Full: true})
	for key, of := range v.words {
		for id := range of {
			said := v.words.last(key, id)
			if said.said == saidAlive {
				said.text = "" // of many members that are well, nobody asks why
			}
			out.set(key, id, said)
		}
	}
	return out.report()
}

// hearHealth takes in verdicts of a host, and tells who has to hear of them: muxes, and other members.
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

// muteHealth takes the verdicts of a host back that is silent, or lets them count again, and reports whether that changed anything.
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

// forgetHealth takes back what a host said on a stream and those before it, and tells whether it was anything.
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
