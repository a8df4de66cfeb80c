package mux

import (
	"time"

	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lb"
)

// damp applies the endpoint's damping policy after the member's own checks changed; nil: no
// damping.
func (r *roster) damp(m *member, p *lb.Damping, now time.Time) {
	if p == nil {
		return
	}
	if m.damper == nil {
		m.damper = &health.Damper{}
	}
	if m.up {
		m.damper.Rose(now, *p)
	} else {
		m.damper.Fell(now, *p)
	}
	if m.damped = m.damper.Holds(now); !m.damped {
		delete(r.damped, m)
		return
	}
	r.damped[m] = true
	r.dampedDue = earlier(r.dampedDue, m.damper.Due())
}

// undamp ends the damping of a member.
func (r *roster) undamp(m *member) {
	m.damped = false
	delete(r.damped, m)
}

// release ends the damping of members whose penalty expired.
func (r *roster) release(c *change, now time.Time) {
	if r.dampedDue.IsZero() || now.Before(r.dampedDue) {
		return
	}
	r.dampedDue = time.Time{}
	for m := range r.damped {
		if m.damper.Holds(now) {
			r.dampedDue = earlier(r.dampedDue, m.damper.Due())
			continue
		}
		r.touch(c, m)
		r.undamp(m)
	}
}

// earlier returns the earlier of two times; the zero time means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// tick applies the changes that are due at now.
func (r *roster) tick(now time.Time) change {
	c := newChange()
	r.release(&c, now)
	if due := r.doubt.Due(); !due.IsZero() && !now.Before(due) {
		r.judge(&c, now)
	}
	r.finish(&c, now)
	return c
}

// due returns when tick has work; zero: not known to be needed.
func (r *roster) due() time.Time { return earlier(r.dampedDue, r.doubt.Due()) }
