package mux

import (
	"time"

	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// doubt is what makes the mux suspect itself, and what it holds back then.
type doubt struct {
	health.Suspicion
	services map[string]*doubted
	// others are what other muxes see, while the suspicion lasts and not for longer than othersLast after heard, when they were
	// last told.
	others map[lb.EndpointKey]map[uint16]verdict
	heard  time.Time
}

// othersLast is how long it counts what other muxes see: the manager tells it every other second, and one that tells nothing more may
// be as far away as the members.
const othersLast = 30 * time.Second

// doubted is a service of the plan, with what the mux reaches of it. endpoints counts those that there are.
type doubted struct {
	health.Reach
	endpoints int
}

func newDoubt() doubt { return doubt{services: map[string]*doubted{}} }

// enter and leave count the endpoints of a service.
func (d *doubt) enter(service string) {
	s := d.services[service]
	if s == nil {
		s = &doubted{}
		d.services[service] = s
	}
	s.endpoints++
}

func (d *doubt) leave(service string) {
	s := d.services[service]
	if s.endpoints--; s.endpoints == 0 {
		delete(d.services, service)
	}
}

func (d *doubt) reach(service string) *health.Reach { return &d.services[service].Reach }

// forget makes a member one that this mux does not check.
func (d *doubt) forget(m *member) { d.Forget(&m.contact) }

// judge decides whether the mux suspects itself, and what is held for that.
func (r *roster) judge(c *change, now time.Time) {
	before := r.doubt.Phase()
	phase := r.doubt.Decide(now)
	late := r.doubt.others != nil && now.Sub(r.doubt.heard) >= othersLast
	if late || phase == health.Trusting {
		r.doubt.others = nil
	}
	if phase == before && late {
		r.holdAll(c, now)
		return
	}
	if phase == before {
		for _, g := range c.groups {
			for _, m := range g.turned {
				r.hold(c, m, now)
			}
		}
		return
	}
	c.doubts = true
	r.holdAll(c, now)
}

// holdAll goes through all members of the plan.
func (r *roster) holdAll(c *change, now time.Time) {
	for _, g := range r.groups {
		for _, m := range g.members {
			r.hold(c, m, now)
		}
	}
}

// hold makes a member keep its last verdict, or no more, as the suspicion and other muxes say.
func (r *roster) hold(c *change, m *member, now time.Time) {
	phase, fell := r.doubt.Phase(), m.contact.Fell()
	if phase == health.Trusting || !fell && !m.held() {
		return
	}
	said := r.doubt.others[m.group.Key][m.ID]
	held, turns := phase.Held(said == saidAlive, said == saidDead), false
	for i := range m.checks {
		if k := &m.checks[i]; k.held != held && (k.held || k.fell && fell) {
			if !turns {
				r.touch(c, m)
			}
			turns, k.held = true, held
		}
	}
	if turns {
		m.up, _ = m.combine(m.group.needed)
		r.doubt.Heard(&m.contact, m.group.reach, m.isSilent(), m.up, now)
	}
}

// othersSay takes what other muxes see.
func (r *roster) othersSay(v plan.Verdicts, now time.Time) change {
	c := newChange()
	if r.doubt.Phase() == health.Trusting {
		return c
	}
	if v.Full || r.doubt.others == nil {
		r.doubt.others = make(map[lb.EndpointKey]map[uint16]verdict, len(v.Endpoints))
	}
	r.doubt.heard = now
	for i := range v.Endpoints {
		e := &v.Endpoints[i]
		of := r.doubt.others[e.Key]
		if of == nil {
			of = make(map[uint16]verdict, len(e.Alive)+len(e.Dead))
			r.doubt.others[e.Key] = of
		}
		for said, ids := range [...][]uint16{unsaid: e.Unknown, saidAlive: e.Alive, saidDead: e.Dead} {
			for _, id := range ids {
				of[id] = verdict(said)
			}
		}
	}
	r.holdAll(&c, now)
	r.finish(&c, now)
	return c
}
