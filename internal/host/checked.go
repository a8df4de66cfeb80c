package host

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/probe"
)

// verdict is what this host says of a member.
type verdict uint8

const (
	unsaid verdict = iota
	saidAlive
	saidDead
)

// checked is a member that is checked.
type checked struct {
	dip    netip.Addr
	asks   []ask
	states []health.Member // one of each ask
	needed int             // of them, for the member to be alive
	// rule is for clients' own connections, nil when they do not count; shunned says that they hold the member dead.
	rule    *lb.Passive
	passive health.Passive
	shunned bool
	// damping keeps it down when it flaps, nil when nothing does; up is what its checks and clients made of it last.
	damping *lb.Damping
	damper  health.Damper
	up      verdict
	// said is the verdict as it was last told, or is about to be.
	said verdict
	// words are of the last probe, or of what clients saw; while these hold the member dead, or it has several checks, of the last
	// that agrees with the verdict, so that they tell why.
	words string
	// past is what happened to it on this server, as long as this agent runs.
	past *health.History
}

// ask is one check of a member.
type ask struct {
	target probe.Target
	check  lb.Check
}

// newChecked is a binding's member; before is the same member until now, nil when there was none. One that stays on its server
// keeps its health: a check that is new, or asks something else now, goes on from the verdict there was.
func newChecked(b *plan.Binding, before *checked) *checked {
	m := &checked{dip: b.DIP, needed: health.Needed(&b.Health), rule: b.Health.Passive, damping: b.Health.Damping, past: &health.History{}}
	if before != nil && before.dip == b.DIP {
		m.said, m.words, m.past = before.said, before.words, before.past
		if m.rule != nil && before.rule != nil {
			m.passive, m.shunned = before.passive, before.shunned
		}
		if m.up = before.up; m.damping != nil && before.damping != nil {
			m.damper = before.damper
		}
	} else {
		before = nil
	}
	for _, c := range b.Health.Checks {
		// A host asks its own servers: there is no tunnel to them.
		c = direct(c, b)
		a := ask{target: probe.Of(c, b.DIP, b.DIPPort), check: c}
		m.asks = append(m.asks, a)
		m.states = append(m.states, before.stateOf(a.target, c.Initial == lb.InitialUp))
	}
	return m
}

// stateOf is the health that a check of the member begins with: the one it has, else the member's; nil is a member nobody knows.
func (m *checked) stateOf(t probe.Target, up bool) health.Member {
	if m == nil {
		return health.Begin(up)
	}
	for at := range m.asks {
		if m.asks[at].target == t {
			return m.states[at]
		}
	}
	alive, known := health.Combine(m.states, m.needed)
	if !known {
		return health.Begin(up)
	}
	return health.Adopt(alive)
}

// observe folds a result of one of the checks in and tells whether the verdict may be another.
func (m *checked) observe(at int, r *probe.Result) bool {
	m.past.Add(health.Past{At: r.At, Took: r.Took, Check: uint8(at), Good: r.Good, Void: r.Void, Words: r.Words})
	words := r.Words
	if len(m.asks) > 1 {
		words = health.SaidBy(at, &m.asks[at].check, words)
	}
	if r.Void {
		m.words = words + " (does not count)"
		return false
	}
	asked := m.states[at].Asked()
	changed := m.states[at].Observe(r.Good, m.asks[at].check.Rise, m.asks[at].check.Fall) || !asked
	if m.words == "" || r.Good == (m.undamped() == saidAlive) || len(m.asks) == 1 && !m.shunned {
		m.words = words
	}
	return changed
}

// watch folds in what clients' own connections came to and tells whether the verdict may be another.
func (m *checked) watch(now time.Time, h health.Handshakes) bool {
	rule := health.PassiveRule{Failures: uint64(m.rule.Failures), Within: m.rule.Within, Hold: m.rule.Hold}
	shunned := m.passive.Observe(now, h, rule)
	if shunned == m.shunned {
		return false
	}
	m.words = "clients may connect again"
	if m.shunned = shunned; shunned {
		m.words = fmt.Sprintf("%d connections of clients failed in a row", m.rule.Failures)
	}
	return true
}

// settle makes the verdict at a time what checks, clients and damping say and tells whether it changed.
func (m *checked) settle(at time.Time) bool {
	now := m.undamped()
	if m.damping != nil && now != m.up {
		switch {
		case now == saidAlive && m.up == saidDead:
			m.damper.Rose(at, *m.damping)
		case now == saidDead && m.up == saidAlive:
			m.damper.Fell(at, *m.damping)
		}
	}
	m.up = now
	words := m.words
	if now == saidAlive && m.damped(at) {
		now, words = saidDead, fmt.Sprintf("it came up more than %d times within %s", m.damping.Flips, m.damping.Within)
	}
	if now == m.said {
		return false
	}
	if now != unsaid {
		m.words = words
		m.past.Turned(health.Turn{At: at, Alive: now == saidAlive, Words: words})
	}
	m.said = now
	return true
}

// damped tells whether it is held down because it flapped.
func (m *checked) damped(at time.Time) bool { return m.damping != nil && m.damper.Holds(at) }

// undamped is what checks and clients say.
func (m *checked) undamped() verdict {
	switch alive, known := health.Combine(m.states, m.needed); {
	case m.shunned:
		return saidDead
	case known && alive:
		return saidAlive
	case known:
		return saidDead
	}
	return unsaid
}

// addTo adds the verdict on a member; nil is one that is not checked any more.
func (m *checked) addTo(out map[lb.EndpointKey]*plan.EndpointVerdicts, ref memberRef) {
	e := out[ref.endpoint]
	if e == nil {
		e = &plan.EndpointVerdicts{Key: ref.endpoint}
		out[ref.endpoint] = e
	}
	if m != nil && m.said != unsaid {
		if turn, known := m.past.LastTurn(); known && turn.Words != "" {
			if e.Words == nil {
				e.Words = map[uint16]string{}
			}
			e.Words[ref.member] = health.Told(turn.Words)
		}
	}
	switch {
	case m == nil || m.said == unsaid:
		e.Unknown = append(e.Unknown, ref.member)
	case m.said == saidAlive:
		e.Alive = append(e.Alive, ref.member)
	default:
		e.Dead = append(e.Dead, ref.member)
	}
}

// direct is a check of a binding as its host makes it: without a tunnel, whose ports are the endpoint's, and by sockets unless it wants
// packets: a host has few servers, and what a socket meets on the way is what clients' packets meet.
func direct(c lb.Check, b *plan.Binding) lb.Check {
	if c.Through == lb.ThroughTunnel && b.DIPPort != 0 {
		c.Port = 0
	}
	c.Through = lb.ThroughDirect
	if c.Engine != lb.EnginePacket {
		c.Engine = lb.EngineSocket
	}
	return c
}
