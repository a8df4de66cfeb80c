package host

import (
	"slices"
	"sync"

	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/probe"
)

// Prober probes the wanted targets; *probe.Engine is the real one.
type Prober interface {
	// Set replaces the targets. Results go to Agent.Probed.
	Set([]probe.Target) error
}

// checks are the members that this host checks, with what their checks came to. They are in memory only: an agent that
// starts asks all of its servers at once, and muxes keep the last verdicts meanwhile.
type checks struct {
	mu       sync.Mutex
	members  map[memberRef]*checked
	byTarget map[probe.Target][]memberRef
	// fresh are those whose verdict, or whose having one, was not taken yet; changed is poked when there are any.
	fresh   map[memberRef]bool
	changed chan struct{}
}

// memberRef names a member.
type memberRef struct {
	endpoint lb.EndpointKey
	member   uint16
}

// checked is a member that is checked.
type checked struct {
	target     probe.Target
	rise, fall uint32
	state      health.Member
	// asked: a probe counted.
	asked bool
	words string // of the last probe
}

func newChecks() *checks {
	return &checks{
		members: map[memberRef]*checked{}, byTarget: map[probe.Target][]memberRef{}, fresh: map[memberRef]bool{}, changed: make(chan struct{}, 1),
	}
}

// follow makes the bindings' checks the wanted ones and returns what is to be probed. Members that stay on their server keep
// their health.
func (c *checks) follow(bindings []plan.Binding) []probe.Target {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.members
	c.members, c.byTarget = map[memberRef]*checked{}, map[probe.Target][]memberRef{}
	for _, b := range bindings {
		if !b.Health.ByHost() {
			continue
		}
		ref := memberRef{b.Key, b.Member}
		target := probe.Of(b.Health.Checks[0], b.DIP, b.DIPPort)
		m := &checked{state: health.New()}
		if old := before[ref]; old != nil && old.target.Address.Addr() == b.DIP {
			m = old
			if m.target != target && m.asked {
				m.state = health.Adopt(m.state.Alive())
			}
		}
		m.target, m.rise, m.fall = target, b.Health.Checks[0].Rise, b.Health.Checks[0].Fall
		c.members[ref] = m
		c.byTarget[target] = append(c.byTarget[target], ref)
	}
	for ref, old := range before {
		if c.members[ref] != old && old.asked {
			c.tellLocked(ref)
		}
	}
	targets := make([]probe.Target, 0, len(c.byTarget))
	for t := range c.byTarget {
		targets = append(targets, t)
	}
	return targets
}

// observe folds a probe's result in and returns the members that flipped.
func (c *checks) observe(result probe.Result) (flipped []memberRef) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ref := range c.byTarget[result.Target] {
		m := c.members[ref]
		if result.Void {
			m.words = result.Words + " (does not count)"
			continue
		}
		m.words = result.Words
		if m.state.Observe(result.Good, m.rise, m.fall) {
			flipped = append(flipped, ref)
		} else if m.asked {
			continue
		}
		m.asked = true
		c.tellLocked(ref)
	}
	return flipped
}

func (c *checks) tellLocked(ref memberRef) {
	c.fresh[ref] = true
	select {
	case c.changed <- struct{}{}:
	default:
	}
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
			if m.asked {
				m.addTo(out, ref)
			}
		}
	} else {
		for ref := range c.fresh {
			c.members[ref].addTo(out, ref)
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

// addTo adds the verdict on a member; nil is one that is not checked any more.
func (m *checked) addTo(out map[lb.EndpointKey]*plan.EndpointVerdicts, ref memberRef) {
	e := out[ref.endpoint]
	if e == nil {
		e = &plan.EndpointVerdicts{Key: ref.endpoint}
		out[ref.endpoint] = e
	}
	switch {
	case m == nil || !m.asked:
		e.Unknown = append(e.Unknown, ref.member)
	case m.state.Alive():
		e.Alive = append(e.Alive, ref.member)
	default:
		e.Dead = append(e.Dead, ref.member)
	}
}

// words are those of a member's last check; empty: none, or it is not checked here.
func (c *checks) words(ref memberRef) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.members[ref]; m != nil {
		return m.words
	}
	return ""
}

// Probed takes results of probes.
func (a *Agent) Probed(results []probe.Result) {
	for _, result := range results {
		a.probed(result)
	}
}

func (a *Agent) probed(result probe.Result) {
	for _, ref := range a.checks.observe(result) {
		a.log.Info("health", "vip", ref.endpoint.VIP, "protocol", ref.endpoint.Protocol, "port", ref.endpoint.Port,
			"backend", result.Target.Address, "alive", result.Good, "because", result.Words)
	}
}
