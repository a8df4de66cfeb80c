package host

import (
	"slices"
	"sync"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/notify"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/probe"
)

// Prober probes the wanted targets; *probe.Engine is the real one.
type Prober interface {
	// Set replaces the targets. Results go to Agent.Probed.
	Set([]probe.Target) error
	// Stats returns the prober's counters.
	Stats() probe.Stats
}

// checks holds the members that this host checks, with the results of their checks. They are in
// memory only: an agent that starts probes all of its servers immediately, and muxes keep the last
// verdicts meanwhile.
type checks struct {
	mu       sync.Mutex
	members  map[memberRef]*checked
	byTarget map[probe.Target][]asking
	// passive are the members for which clients' own connections count.
	passive map[memberRef]*checked
	// held are members that are up but were held down by damping when they settled last.
	held map[memberRef]bool
	// withheld are members without a binding because a table is full, with the table's name. They
	// are dead.
	withheld map[memberRef]string
	// fresh are the members whose verdict changed or was removed since the last Take; changed is
	// notified when there are any.
	fresh   map[memberRef]bool
	changed chan struct{}
}

// memberRef identifies a member.
type memberRef struct {
	endpoint lb.EndpointKey
	member   uint16
}

// asking is a check of a member.
type asking struct {
	ref memberRef
	at  int // index in checked.asks
}

func newChecks() *checks {
	return &checks{
		members: map[memberRef]*checked{}, byTarget: map[probe.Target][]asking{}, passive: map[memberRef]*checked{}, held: map[memberRef]bool{},
		fresh: map[memberRef]bool{}, changed: make(chan struct{}, 1),
	}
}

// follow sets the checks to those of the bindings and returns the targets to probe. Members that
// stay on their server keep their health.
func (c *checks) follow(bindings []plan.Binding, now time.Time) []probe.Target {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.members
	c.members, c.byTarget, c.passive = map[memberRef]*checked{}, map[probe.Target][]asking{}, map[memberRef]*checked{}
	for i := range bindings {
		b := &bindings[i]
		if !b.Health.ByHost() {
			continue
		}
		ref := memberRef{b.Key, b.Member}
		old := before[ref]
		m := newChecked(b, old)
		c.members[ref] = m
		for at, ask := range m.asks {
			c.byTarget[ask.target] = append(c.byTarget[ask.target], asking{ref, at})
		}
		if m.rule != nil {
			c.passive[ref] = m
		}
		changed := m.settle(now)
		c.holdLocked(ref, m, now)
		if changed || old != nil && old.said != m.said {
			c.tellLocked(ref)
		}
	}
	for ref, old := range before {
		if c.members[ref] == nil && old.said != unsaid {
			c.tellLocked(ref)
		}
	}
	targets := make([]probe.Target, 0, len(c.byTarget))
	for t := range c.byTarget {
		targets = append(targets, t)
	}
	return targets
}

// observe applies results of probes in their order, and returns the members whose verdict changed,
// each once.
func (c *checks) observe(results []probe.Result, now time.Time) (flipped []flip) {
	c.mu.Lock()
	defer c.mu.Unlock()
	touched := map[memberRef]bool{}
	for i := range results {
		for _, a := range c.byTarget[results[i].Target] {
			if c.members[a.ref].observe(a.at, &results[i]) && !touched[a.ref] {
				touched[a.ref] = true
				flipped = append(flipped, flip{ref: a.ref})
			}
		}
	}
	return c.settleLocked(flipped, now)
}

// watch applies the results of clients' own connections, and returns the members whose verdict
// changed.
func (c *checks) watch(now time.Time, seen []handshakes) (flipped []flip) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range seen {
		if m := c.passive[s.ref]; m != nil && m.watch(now, s.Handshakes) {
			flipped = append(flipped, flip{ref: s.ref})
		}
	}
	return c.settleLocked(flipped, now)
}

// flip is a member whose verdict may have changed.
type flip struct {
	ref   memberRef
	alive bool
	words string
}

// settleLocked computes the new verdicts of members, marks those that changed as fresh, and returns
// those that had none before or now have the opposite. mu is held.
func (c *checks) settleLocked(touched []flip, now time.Time) []flip {
	out := touched[:0]
	for _, f := range touched {
		m := c.members[f.ref]
		changed := m.settle(now)
		c.holdLocked(f.ref, m, now)
		if !changed {
			continue
		}
		c.tellLocked(f.ref)
		f.alive, f.words = m.said == saidAlive, m.words
		out = append(out, f)
	}
	return out
}

// holdLocked records whether damping alone keeps a member down. mu is held.
func (c *checks) holdLocked(ref memberRef, m *checked, now time.Time) {
	if m.up == saidAlive && m.damped(now) {
		c.held[ref] = true
	} else {
		delete(c.held, ref)
	}
}

// release computes new verdicts for members whose damping is over, and returns those that changed.
func (c *checks) release(now time.Time) []flip {
	c.mu.Lock()
	defer c.mu.Unlock()
	var due []flip
	for ref := range c.held {
		if m := c.members[ref]; m == nil {
			delete(c.held, ref)
		} else if !m.damped(now) {
			due = append(due, flip{ref: ref})
		}
	}
	return c.settleLocked(due, now)
}

// watched reports whether clients' connections count for a binding.
func (c *checks) watched(b *plan.Binding) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.passive[memberRef{b.Key, b.Member}] != nil
}

// watches reports whether clients' connections count for any member.
func (c *checks) watches() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.passive) > 0
}

func (c *checks) tellLocked(ref memberRef) {
	c.fresh[ref] = true
	notify.Send(c.changed)
}

// Changed implements agent.Verdicts.
func (c *checks) Changed() <-chan struct{} { return c.changed }

// Take implements agent.Verdicts.
func (c *checks) Take(all bool) plan.Verdicts {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[lb.EndpointKey]*plan.EndpointVerdicts{}
	if all {
		for ref, m := range c.members {
			if _, withheld := c.withheld[ref]; m.said != unsaid && !withheld {
				m.addTo(out, ref)
			}
		}
		for ref := range c.withheld {
			c.denyLocked(out, ref)
		}
	} else {
		for ref := range c.fresh {
			if !c.denyLocked(out, ref) {
				c.members[ref].addTo(out, ref)
			}
		}
	}
	clear(c.fresh)
	v := plan.Verdicts{Full: all}
	for _, e := range out {
		slices.Sort(e.Alive)
		slices.Sort(e.Dead)
		slices.Sort(e.Unknown)
		v.Endpoints = append(v.Endpoints, *e)
	}
	slices.SortFunc(v.Endpoints, func(a, b plan.EndpointVerdicts) int { return plan.CompareKeys(a.Key, b.Key) })
	return v
}

// withhold sets the members without a binding, with the full table.
func (c *checks) withhold(members map[memberRef]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.withheld
	c.withheld = members
	for ref := range before {
		if _, still := members[ref]; !still {
			c.tellLocked(ref)
		}
	}
	for ref, table := range members {
		if was, already := before[ref]; !already || was != table {
			c.tellLocked(ref)
		}
	}
}

// denyLocked adds the verdict on a member without a binding, and returns false for any other. Only
// the verdicts of a few members have a text. mu is held.
func (c *checks) denyLocked(out map[lb.EndpointKey]*plan.EndpointVerdicts, ref memberRef) bool {
	table, withheld := c.withheld[ref]
	if !withheld {
		return false
	}
	e := out[ref.endpoint]
	if e == nil {
		e = &plan.EndpointVerdicts{Key: ref.endpoint}
		out[ref.endpoint] = e
	}
	e.Dead = append(e.Dead, ref.member)
	if len(c.withheld) <= reasonedMembers {
		if e.Words == nil {
			e.Words = map[uint16]string{}
		}
		e.Words[ref.member] = "its host has no room for it: table " + table + " is full"
	}
	return true
}

// Probes returns the prober's counters.
func (a *Agent) Probes() probe.Stats { return a.prober.Stats() }

// maxFlipLines is up to how many health transitions of one batch are logged one by one.
const maxFlipLines = 16

func (a *Agent) logFlips(flips []flip) {
	if len(flips) > 0 {
		a.poke()
	}
	if len(flips) > maxFlipLines {
		alive := 0
		for _, f := range flips {
			if f.alive {
				alive++
			}
		}
		a.log.Info("health", "members came up", alive, "members went down", len(flips)-alive)
		return
	}
	for _, f := range flips {
		a.log.Info("health", "vip", f.ref.endpoint.VIP, "protocol", f.ref.endpoint.Protocol, "port", f.ref.endpoint.Port,
			"member", f.ref.member, "alive", f.alive, "because", f.words)
	}
}
