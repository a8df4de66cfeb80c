package mux

import (
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/notify"
	"github.com/shuntlb/shunt/internal/plan"
)

// With lb.FromHost the member's host checks it and reports through the manager. If the host falls
// silent, its last verdict stays until the manager revokes it. A mux without a manager keeps its
// verdicts without limit, because a missing manager is no evidence about servers, and probes from
// this mux may be forbidden. A manager revokes the verdicts of a host that stopped reporting; a
// manager that has just started has none yet. After a revocation this mux checks the member itself
// until the host reports again; the last verdict is in force until these checks reach a different
// one.
//
// With lb.FromBoth the mux checks all the time, and its own check decides alone while there is no
// verdict of the host. The same applies to lb.FromMux, where hosts report only members for which
// they have no room.
const (
	// keepMissing is how long a verdict stays in force that the manager does not have (yet), and
	// how long a new member waits for the first verdict.
	keepMissing = 10 * time.Second
)

// verdict is a host's verdict on a member.
type verdict uint8

const (
	unsaid verdict = iota
	saidAlive
	saidDead
)

// hearsay is the health of a member as its host reports it.
type hearsay struct {
	from string // lb.FromMux, lb.FromHost or lb.FromBoth
	said verdict
	// because is the host's reason for the verdict; empty: it sent none.
	because string
	// until, with FromHost and no verdict, is when this mux begins to check; zero: there is a
	// verdict, or standIn is set.
	until time.Time
	// standIn: this mux checks because the host is silent.
	standIn bool
	// cut: with FromHost, this mux does not reach the host's machine, so that it checks the member
	// itself, as with FromBoth.
	cut bool
}

// denied reports whether the host's verdict is dead and overrides the mux's own check. With
// lb.FromMux, hosts report members as dead for which they have no binding.
func (h *hearsay) denied() bool { return (h.from != lb.FromHost || h.cut) && h.said == saidDead }

// probed reports whether this mux checks the member.
func (h *hearsay) probed() bool { return h.from != lb.FromHost || h.standIn || h.cut }

// saying is a host's verdict on a member with its reason.
type saying struct {
	verdict verdict
	because string
}

// heard holds all host reports, also those on members that are not in the plan yet.
type heard struct {
	said map[lb.EndpointKey]map[uint16]saying
	// full: a full report was received since the agent started.
	full bool
	// due is no later than the earliest until of the members; zero: there is none.
	due time.Time
	// retarget: the set of members to probe changed.
	retarget bool
}

// follow sets the host report of a member of the plan, as its endpoint's health.from requires.
func (r *roster) follow(m *member, e *plan.Endpoint, now time.Time) {
	from, last := e.Health.From, r.heard.said[e.Key][m.ID]
	said := last.verdict
	cut := from == lb.FromHost && r.machines.lost(m.Host)
	switch {
	case cut && said != unsaid:
		m.hearsay = hearsay{from: from, said: said, because: last.because, cut: true}
		if m.denied() {
			m.asked = true
		}
	case from != lb.FromHost:
		m.hearsay = hearsay{from: from, said: said, because: last.because}
		if m.denied() {
			m.asked = true
		}
	case said != unsaid:
		m.hearsay = hearsay{from: from, said: said, because: last.because}
		m.adopt(said == saidAlive)
		m.words, m.spoke, m.asked, m.once = wordsOf(said), 0, true, m.once || said == saidAlive
		r.doubt.forget(m)
	case m.from != lb.FromHost || m.said != unsaid:
		m.hearsay = hearsay{from: from, cut: cut}
		r.await(m, now.Add(keepMissing))
	default:
		m.cut = cut
	}
}

// await makes the mux check a member from until on, unless its host reports before.
func (r *roster) await(m *member, until time.Time) {
	m.until = until
	if r.heard.due.IsZero() || until.Before(r.heard.due) {
		r.heard.due = until
	}
}

// awaitAll sets the deadline of all members that wait for the first report of their host.
func (r *roster) awaitAll(until time.Time) {
	for _, g := range r.groups {
		for _, m := range g.members {
			if !m.until.IsZero() {
				r.await(m, until)
			}
		}
	}
}

// hear applies host reports; each endpoint is decided once.
func (r *roster) hear(v plan.Verdicts, now time.Time) change {
	c := newChange()
	r.results++
	before := map[lb.EndpointKey]map[uint16]saying{}
	first := v.Full && !r.heard.full
	if v.Full {
		before, r.heard.said = r.heard.said, make(map[lb.EndpointKey]map[uint16]saying, len(v.Endpoints))
		r.heard.full = true
	}
	for i := range v.Endpoints {
		e := &v.Endpoints[i]
		of := r.heard.said[e.Key]
		if of == nil {
			of = make(map[uint16]saying, len(e.Alive)+len(e.Dead))
			r.heard.said[e.Key] = of
		}
		g := r.groups[e.Key]
		for said, ids := range [...][]uint16{unsaid: e.Unknown, saidAlive: e.Alive, saidDead: e.Dead} {
			at := -1
			for _, id := range ids {
				said := saying{verdict(said), e.Words[id]}
				if said.verdict == unsaid {
					delete(of, id)
				} else {
					of[id] = said
				}
				if g == nil {
					continue
				}
				var m *member
				if m, at = g.find(id, at); m != nil {
					r.believe(&c, m, said, now)
				}
			}
		}
		if len(of) == 0 {
			delete(r.heard.said, e.Key)
		}
	}
	r.miss(&c, before, now)
	r.finish(&c, now)
	if first {
		r.awaitAll(now.Add(keepMissing))
	}
	return c
}

// miss revokes the verdicts in before that a full report does not contain.
func (r *roster) miss(c *change, before map[lb.EndpointKey]map[uint16]saying, now time.Time) {
	for key, of := range before {
		g := r.groups[key]
		if g == nil {
			continue
		}
		for id := range of {
			if r.heard.said[key][id].verdict != unsaid {
				continue
			}
			if m, _ := g.find(id, -1); m != nil {
				r.believe(c, m, saying{}, now.Add(keepMissing))
			}
		}
	}
}

// Health reasons of members that hosts check.
const (
	wordsAlive  = "its host says that it is alive"
	wordsDead   = "its host says that it is dead"
	wordsSilent = "its host says nothing of it any more"
)

func wordsOf(said verdict) string {
	if said == saidAlive {
		return wordsAlive
	}
	return wordsDead
}

// told appends the host's reason to words.
func (h *hearsay) told(words string) string {
	if h.because == "" {
		return words
	}
	return words + ": " + h.because
}

// believe applies a host's verdict on a member. If it is a revocation, the last verdict is in force
// until the time given.
func (r *roster) believe(c *change, m *member, last saying, until time.Time) {
	was, said := m.said, last.verdict
	m.because = last.because
	switch {
	case m.from != lb.FromHost && (said == saidDead || was == saidDead):
		r.told(c, m, said != saidDead)
		m.said = said
	case m.from != lb.FromHost:
		m.said = said
	case m.cut && said != unsaid:
		r.told(c, m, said == saidAlive)
		m.said, m.until, m.standIn = said, time.Time{}, false
	case said == unsaid:
		if was != unsaid {
			m.said, m.words, m.spoke = unsaid, wordsSilent, 0
			r.await(m, until)
		}
	default:
		r.told(c, m, said == saidAlive)
		m.said, m.until, m.words, m.spoke = said, time.Time{}, wordsOf(said), 0
		m.adopt(said == saidAlive)
		r.heard.retarget = r.heard.retarget || m.standIn
		m.standIn = false
		r.doubt.forget(m)
	}
}

// told records good or bad news about a member in this pass.
func (r *roster) told(c *change, m *member, good bool) {
	r.touch(c, m)
	m.asked, m.seen = true, r.results
	switch {
	case !good:
		m.good = 0
	case m.good == 0:
		m.good = r.results
	}
}

// standIn makes the mux check members whose hosts were silent for too long. retarget reports
// whether the set of members to probe changed since the last call.
func (r *roster) standIn(now time.Time) (retarget bool) {
	if due := r.heard.due; !due.IsZero() && !now.Before(due) {
		r.heard.due = time.Time{}
		for _, g := range r.groups {
			for _, m := range g.members {
				switch {
				case m.until.IsZero():
				case m.until.After(now), !r.heard.full && !m.fresh():
					// Before the first full report, a silent host looks like one without verdicts;
					// only members without any health are checked.
					r.await(m, m.until)
				default:
					m.until, m.standIn, r.heard.retarget = time.Time{}, true, true
				}
			}
		}
	}
	retarget, r.heard.retarget = r.heard.retarget, false
	return retarget
}

// Heard applies host reports in one pass over the tables, however many there are.
func (a *Agent) Heard(v plan.Verdicts) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.roster.hear(v, a.o.Clock.Now())
	if due := a.roster.heard.due; a.roster.heard.retarget || !due.IsZero() && !due.After(a.o.Clock.Now()) {
		notify.Send(a.speak) // Run updates the prober
	}
	a.followLocked(c, "hosts say so")
}

// StandIn begins to check members whose hosts are silent, and stops it for members whose hosts
// report again.
func (a *Agent) StandIn() {
	a.mu.Lock()
	retarget := a.ready && a.roster.standIn(a.o.Clock.Now())
	a.mu.Unlock()
	if !retarget {
		return
	}
	if err := a.setTargets(); err != nil {
		a.o.Log.Error("check members", "error", err)
	}
}
