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

// verdict is this host's verdict on a member.
type verdict uint8

const (
	unsaid verdict = iota
	saidAlive
	saidDead
)

// checked is a member with checks.
type checked struct {
	dip    netip.Addr
	asks   []ask
	states []health.Member // one for each of asks
	needed int             // number of good checks that make the member alive
	// rule is the rule for clients' own connections, nil if they do not count; shunned: they hold
	// the member dead.
	rule    *lb.Passive
	passive health.Passive
	shunned bool
	// damping holds the member down when it flaps, nil without damping; up is the last verdict of
	// its checks and clients.
	damping *lb.Damping
	damper  health.Damper
	up      verdict
	// said is the verdict as reported last, or about to be reported.
	said verdict
	// words is the text of the last probe, or of the clients' connections. While these hold the
	// member dead, or if it has several checks, it is the text of the last probe that agrees with
	// the verdict, so that it explains the verdict.
	words string
	// past is the history of the member on this server, as long as this agent runs.
	past *health.History
}

// ask is one check of a member.
type ask struct {
	target probe.Target
	check  lb.Check
}

// newChecked returns the member of a binding. before is the member until now, nil if there was
// none. A member on the same server keeps its health: a check that is new, or changed, starts with
// the present verdict.
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
		// A host probes its own servers without a tunnel.
		c = direct(c, b)
		a := ask{target: probe.Of(c, b.DIP, b.DIPPort), check: c}
		m.asks = append(m.asks, a)
		m.states = append(m.states, before.stateOf(a.target, c.Initial == lb.InitialUp))
	}
	return m
}

// stateOf returns the initial health for a check of the member: that of the same check, else the
// member's. On a nil member it depends on up only.
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

// observe applies a result of one of the checks and reports whether the verdict may have changed.
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

// watch applies the results of clients' own connections and reports whether the verdict may have
// changed.
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

// settle computes the verdict at a time from checks, clients and damping, and reports whether it
// changed.
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

// damped reports whether the member is held down because it flapped.
func (m *checked) damped(at time.Time) bool { return m.damping != nil && m.damper.Holds(at) }

// undamped returns the verdict of checks and clients, without damping.
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

// addTo adds the verdict on a member to out; m is nil if it is no longer checked.
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

// direct returns a binding's check as its host makes it. It goes without a tunnel, whose ports are
// the endpoint's. It uses sockets unless the check requests packets, because a host has few
// servers, and a socket's packets are handled like clients' packets.
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
