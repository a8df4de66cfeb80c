package mux

import (
	"time"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/probe"
)

// change is the effect of one pass over the member table: by results of probes, by reports of hosts
// or other muxes, or by time.
type change struct {
	// flips are the members that came up or went down.
	flips []flip
	// bits are the alive bits to write to the tables: those of flips, or of all members of an
	// endpoint that opens or closes.
	bits []dataplane.MemberAlive
	// decisions are those that changed, and those of open endpoints with flips.
	decisions map[lb.EndpointKey]health.Decision
	// asked: a member got its first result.
	asked bool
	// doubts: the isolation phase changed.
	doubts bool
	// paths are the machines that were lost or found.
	paths []*machine
	// groups have members that change in this pass.
	groups []*group
}

type flip struct {
	dataplane.MemberAlive
	of *member
}

func newChange() change { return change{decisions: map[lb.EndpointKey]health.Decision{}} }

func (c *change) empty() bool { return len(c.flips) == 0 && len(c.decisions) == 0 }

// observe applies results of probes; each endpoint is decided once. evidence reports whether a bad
// result of a target counts.
func (r *roster) observe(results []probe.Result, now time.Time, evidence func(probe.Target) bool) change {
	c := newChange()
	for i := range results {
		result := &results[i]
		if result.Unaskable {
			r.unaskable(&c, result)
		}
		if result.Void || !result.Good && !evidence(result.Target) {
			r.note(result)
			continue
		}
		r.results++
		if m := r.machines.byTarget[result.Target]; m != nil && m.path.Observe(result.Reached()) {
			r.reach(&c, m, now)
		}
		for _, k := range r.byTarget[result.Target] {
			if k.of.probed() { // otherwise its host has reported since
				r.fold(&c, k, result, now)
			}
		}
	}
	r.judge(&c, now)
	r.finish(&c, now)
	return c
}

// unaskable records that this mux cannot make a check. A member is not waited for because of such a
// check.
func (r *roster) unaskable(c *change, result *probe.Result) {
	for _, k := range r.byTarget[result.Target] {
		if k.of.probed() {
			r.touch(c, k.of)
			k.unaskable = true
		}
	}
}

// note records a result that does not count.
func (r *roster) note(result *probe.Result) {
	words := result.Words + " (does not count)"
	for _, k := range r.byTarget[result.Target] {
		k.remember(result, true)
		k.words, k.of.words, k.of.spoke = words, words, k.number+1
	}
}

func (k *check) remember(result *probe.Result, void bool) {
	k.of.history.Add(health.Past{
		At: result.At, Took: result.Took, Check: k.number, Good: result.Good, Void: void, Words: result.Words,
	})
}

// fold applies a result to a check and its member.
func (r *roster) fold(c *change, k *check, result *probe.Result, now time.Time) {
	m := k.of
	r.touch(c, m)
	k.remember(result, false)
	k.unaskable = false
	k.had, k.good, k.silent, k.words = true, result.Good, result.Silent && !result.Good, result.Words
	if k.held && (k.good || r.doubt.Phase() == health.Trusting) {
		// Failures during isolation do not count. A probe sent during isolation may still time out
		// after its end.
		k.state = health.Adopt(true)
	}
	if k.state.Observe(k.good, k.rise, k.fall) {
		k.fell = k.silent && !k.state.Alive()
	}
	k.fell = k.fell && k.silent
	// A check that is still held after isolation is held until its next result, which is the first
	// that counts.
	k.held = k.held && k.silent && r.doubt.Phase() != health.Trusting
	up, known := m.combine(m.group.needed)
	m.up, m.asked = up, m.asked || known
	if m.seen = r.results; !m.couldRise(m.group.needed) {
		m.good = 0
	} else if m.good == 0 {
		m.good = r.results
	}
	if len(m.checks) == 1 || m.words == "" || k.good == up {
		m.words, m.spoke = result.Words, k.number+1
	}
	r.doubt.Heard(&m.contact, m.group.reach, m.isSilent(), m.up, now)
}

// touch marks a member as changing in this pass. It must be called before the member's state
// changes.
func (r *roster) touch(c *change, m *member) {
	if m.turning {
		return
	}
	m.turning, m.before, m.was = true, m.standing(), m.up
	if len(m.group.turned) == 0 {
		c.groups = append(c.groups, m.group)
	}
	m.group.turned = append(m.group.turned, m)
}

// finish ends a pass: it counts changed members and decides their endpoints. The lists in c are
// valid until the next pass.
func (r *roster) finish(c *change, now time.Time) {
	c.flips, c.bits = r.flips[:0], r.bitsRoom[:0]
	for _, g := range c.groups {
		from, touched := len(c.flips), false
		for _, m := range g.turned {
			r.count(c, g, m, now)
			touched = touched || !m.before.Alive || !m.alive()
		}
		if touched {
			r.vips.touch(g.Key.VIP)
		}
		clear(g.turned)
		g.turned = g.turned[:0]
		r.settle(c, g, from)
	}
	r.flips, r.bitsRoom = c.flips, c.bits
}

// count updates history and tally for a member that may have changed.
func (r *roster) count(c *change, g *group, m *member, now time.Time) {
	m.turning = false
	if m.up != m.was && m.probed() {
		r.damp(m, g.Health.Damping, now)
	}
	alive := m.alive()
	c.asked = c.asked || m.settled() != m.before.Asked
	if alive != m.before.Alive {
		if alive && m.once {
			m.back = m.good
		}
		m.once = true
		m.flips++
		m.history.Turned(health.Turn{At: now, Alive: alive, Words: m.explain()})
		c.flips = append(c.flips, flip{dataplane.MemberAlive{Endpoint: g.Key, Member: m.ID, Alive: alive}, m})
	} else if m.settled() == m.before.Asked {
		return
	} else if m.asked && !alive {
		m.history.Turned(health.Turn{At: now, Words: m.explain()}) // dead from the start
	}
	g.tally.Remove(m.before)
	g.tally.Add(m.standing())
}

// settle decides an endpoint whose members may have changed. c.flips[from:] are its own
// transitions.
func (r *roster) settle(c *change, g *group, from int) {
	before, flips := g.decision, c.flips[from:]
	if g.decide(before); g.decision != before || len(flips) > 0 && before.Open() {
		c.decisions[g.Key] = g.decision
		r.vips.touch(g.Key.VIP)
	}
	if g.decision.Open() != before.Open() {
		c.bits = append(c.bits, r.bits(g)...)
		return
	}
	for _, f := range flips {
		f.Alive = f.Alive || g.decision.Open()
		c.bits = append(c.bits, f.MemberAlive)
	}
}
