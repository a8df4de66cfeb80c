package mux

import (
	"time"

	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// doubt detects isolation of this mux and holds the reports of other muxes meanwhile.
type doubt struct {
	health.Suspicion
	services map[string]*doubted
	// others are the reports of other muxes. They are kept during isolation, and for at most
	// othersLast after heard, the time of the last report.
	others map[lb.EndpointKey]map[uint16]verdict
	heard  time.Time
}

// othersLast is how long reports of other muxes are valid. The manager sends them every other
// second; a manager that stops may be as unreachable as the members.
const othersLast = 30 * time.Second

// doubted is a service of the plan and how much of it the mux reaches. endpoints counts its
// endpoints.
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

// forget removes a member that this mux does not check from the isolation counts.
func (d *doubt) forget(m *member) { d.Forget(&m.contact) }

// judge decides whether the mux is isolated and which verdicts it holds because of that.
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

// holdAll calls hold for all members of the plan.
func (r *roster) holdAll(c *change, now time.Time) {
	for _, g := range r.groups {
		for _, m := range g.members {
			r.hold(c, m, now)
		}
	}
}

// hold makes a member keep its last verdict, or release it, by the isolation phase and the reports
// of other muxes.
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

// othersSay stores reports of other muxes and applies them.
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
