package mux

import (
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/probe"
)

// change is what became of the tables by what was observed.
type change struct {
	// flips are the members that came up or went down.
	flips []dataplane.MemberAlive
	// bits are what the tables are to be told: the flips, or all members of an endpoint that fails open or stops to.
	bits []dataplane.MemberAlive
	// decisions are those that changed, and those of endpoints that fail open whose members did.
	decisions map[lb.EndpointKey]health.Decision
	// asked: it is the first result of a member.
	asked bool
}

func (c *change) empty() bool { return len(c.flips) == 0 && len(c.decisions) == 0 }

// observe folds a probe's result in.
func (r *roster) observe(result probe.Result) change {
	c := change{decisions: map[lb.EndpointKey]health.Decision{}}
	r.results++
	for _, m := range r.byTarget[result.Target] {
		if !m.probed() {
			continue // its host has spoken since
		}
		g, from := m.group, len(c.flips)
		r.turn(&c, g, m, result.Good, result.Words, func() { m.state.Observe(result.Good, m.rise, m.fall) })
		r.settle(&c, g, from)
	}
	return c
}

// turn does something to a member of an endpoint, because of what was found good or bad, and counts it anew.
func (r *roster) turn(c *change, g *group, m *member, good bool, words string, do func()) {
	m.words, m.seen = words, r.results
	switch {
	case !good:
		m.good = 0
	case m.good == 0:
		m.good = r.results
	}
	before := m.standing()
	m.asked, c.asked = true, c.asked || !before.Asked
	do()
	alive := m.alive()
	if !alive || !before.Alive {
		r.vips.touch(g.Key.VIP)
	}
	if alive != before.Alive {
		if alive && m.once {
			m.back = m.good
		}
		m.once = true
		m.flips++
		c.flips = append(c.flips, dataplane.MemberAlive{Endpoint: g.Key, Member: m.ID, Alive: alive})
	} else if before.Asked {
		return
	}
	g.tally.Remove(before)
	g.tally.Add(m.standing())
}

// settle decides what it means for an endpoint that members of it turned; flips from `from` on are its own.
func (r *roster) settle(c *change, g *group, from int) {
	before, flips := g.decision, c.flips[from:]
	if g.decide(before); g.decision != before || len(flips) > 0 && before.FailOpen {
		c.decisions[g.Key] = g.decision
		r.vips.touch(g.Key.VIP)
	}
	if g.decision.FailOpen != before.FailOpen {
		c.bits = append(c.bits, r.bits(g)...)
		return
	}
	for _, f := range flips {
		f.Alive = f.Alive || g.decision.FailOpen
		c.bits = append(c.bits, f)
	}
}
