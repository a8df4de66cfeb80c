package mux

import (
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/notify"
	"github.com/shuntlb/shunt/internal/plan"
)

// What becomes of a member that its host checks when its host falls silent. A verdict stays as long as nobody takes it back: a
// mux without a manager goes on with those it has, for ever, because a manager that is away says nothing of servers, and
// probes from here may be forbidden. A manager takes verdicts back whose host it does not hear any more; one that has just
// started knows none yet. Then this mux checks the member itself, until the host is back; the last verdict counts until these checks
// come to another. With lb.FromBoth it checks all the time, and without a verdict its own check decides alone. So it is with lb.FromMux: hosts
// report only that they have no room for a member.
const (
	// keepMissing is how long one counts that the manager does not know (yet), and how long a new member waits for the first.
	keepMissing = 10 * time.Second
)

// verdict is what a host says of a member.
type verdict uint8

const (
	unsaid verdict = iota
	saidAlive
	saidDead
)

// hearsay is what is known of a member through its host.
type hearsay struct {
	from string // lb.FromMux, lb.FromHost or lb.FromBoth
	said verdict
	// because are the host's own words for it; empty: it gave none.
	because string
	// until: with FromHost and nothing said, when this mux checks by itself; zero: there is something said, or standIn.
	until time.Time
	// standIn: this mux checks because the host is silent.
	standIn bool
	// cut: with FromHost, this mux does not reach the host's machine, so that it checks the member itself, as with FromBoth.
	cut bool
}

// denied: the host calls it dead, whatever the mux's own check says. With lb.FromMux, hosts say so of members that they have no binding for.
func (h *hearsay) denied() bool { return (h.from != lb.FromHost || h.cut) && h.said == saidDead }

// probed tells whether the mux checks the member.
func (h *hearsay) probed() bool { return h.from != lb.FromHost || h.standIn || h.cut }

// saying is what a host says of a member, and why.
type saying struct {
	verdict verdict
	because string
}

// heard is all that hosts said, of members of the plan and of those that may come to be.
type heard struct {
	said map[lb.EndpointKey]map[uint16]saying
	// full: there was a full account since the agent started.
	full bool
	// due is when the next member's until is, or earlier; zero: there is none.
	due time.Time
	// retarget: who is to be probed changed.
	retarget bool
}

// follow makes a member of the plan one that is checked as its endpoint says.
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

// await lets the mux check a member from a time on if its host is silent until then.
func (r *roster) await(m *member, until time.Time) {
	m.until = until
	if r.heard.due.IsZero() || until.Before(r.heard.due) {
		r.heard.due = until
	}
}

// awaitAll gives all hosts that have said nothing yet time until then.
func (r *roster) awaitAll(until time.Time) {
	for _, g := range r.groups {
		for _, m := range g.members {
			if !m.until.IsZero() {
				r.await(m, until)
			}
		}
	}
}

// hear folds in what hosts say: each endpoint is decided once.
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

// miss takes back what was said before a full account and is not in it.
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

// Words of members that hosts check.
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

// told are words about what the host says, with its own behind them.
func (h *hearsay) told(words string) string {
	if h.because == "" {
		return words
	}
	return words + ": " + h.because
}

// believe takes over what a member's host says; until is how long the last verdict counts when that is nothing.
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

// told begins the turn of a member of which something good or bad is said.
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

// standIn lets the mux check the members whose hosts were silent for too long. retarget: who is to be probed changed since
// the last call.
func (r *roster) standIn(now time.Time) (retarget bool) {
	if due := r.heard.due; !due.IsZero() && !now.Before(due) {
		r.heard.due = time.Time{}
		for _, g := range r.groups {
			for _, m := range g.members {
				switch {
				case m.until.IsZero():
				case m.until.After(now), !r.heard.full && !m.fresh():
					// Before the first account there is nothing to tell from silence, but for members nobody knows.
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

// Heard takes what hosts say of the members that they check: one pass over the tables, however many there are.
func (a *Agent) Heard(v plan.Verdicts) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.roster.hear(v, a.o.Clock.Now())
	if due := a.roster.heard.due; a.roster.heard.retarget || !due.IsZero() && !due.After(a.o.Clock.Now()) {
		notify.Send(a.speak) // Run tells the prober
	}
	a.followLocked(c, "hosts say so")
}

// StandIn begins to check members whose hosts are silent, and ends it for those whose hosts are back.
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
