package mux

import (
	"slices"

	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/probe"
)

// wanted builds the probe targets of an endpoint's members.
type wanted struct {
	*plan.Endpoint
	checks []probe.Prepared
}

func prepare(e *plan.Endpoint) wanted {
	w := wanted{e, make([]probe.Prepared, 0, len(e.Health.Checks))}
	for _, c := range e.Health.Checks {
		w.checks = append(w.checks, probe.Prepare(c))
	}
	return w
}

// target returns the target of the i-th check of a member.
func (w wanted) target(i int, m plan.Member) probe.Target {
	return w.checks[i].Wanted(m.DIP, m.Port, probe.Way{Endpoint: w.Key, Outer: m.Outer, Encap: w.Encap, Member: m.ID})
}

// list adds a check to those of its target.
func (r *roster) list(c *check) {
	if c.at == 0 {
		of := append(r.byTarget[c.target], c)
		r.byTarget[c.target], c.at = of, int32(len(of))
	}
}

// unlist is the inverse of list.
func (r *roster) unlist(c *check) {
	if c.at == 0 {
		return
	}
	of := r.byTarget[c.target]
	last := len(of) - 1
	of[c.at-1] = of[last]
	of[c.at-1].at = c.at
	of[last] = nil
	if c.at = 0; last == 0 {
		delete(r.byTarget, c.target)
	} else {
		r.byTarget[c.target] = of[:last]
	}
}

// probedFor returns the targets that changes may affect, with whether they are probed now; nil if
// all targets will be set anyway.
func (r *roster) probedFor(changes []plan.EndpointChange) map[probe.Target]bool {
	if r.moved {
		return nil
	}
	out := map[probe.Target]bool{}
	note := func(t probe.Target) {
		if _, noted := out[t]; !noted {
			out[t] = r.isProbed(t)
		}
	}
	for _, c := range changes {
		if g := r.groups[c.Key()]; g != nil {
			for _, m := range g.members {
				for i := range m.checks {
					note(m.checks[i].target)
				}
			}
		}
		if c.After != nil {
			wanted := prepare(c.After)
			for _, pm := range c.After.Members {
				for i := range c.After.Health.Checks {
					note(wanted.target(i, pm))
				}
			}
		}
	}
	return out
}

// isProbed reports whether a member or a machine needs a target to be probed.
func (r *roster) isProbed(t probe.Target) bool {
	return r.machines.byTarget[t] != nil || slices.ContainsFunc(r.byTarget[t], func(c *check) bool { return c.of.probed() })
}

// targets returns all targets to probe.
func (r *roster) targets() []probe.Target {
	r.moved = false
	clear(r.turned)
	out := make([]probe.Target, 0, len(r.byTarget))
	for t := range r.byTarget {
		if r.isProbed(t) {
			out = append(out, t)
		}
	}
	for t := range r.machines.byTarget {
		if r.byTarget[t] == nil {
			out = append(out, t)
		}
	}
	return out
}

// takeKnown returns, once, the targets that serve according to a previous agent.
func (r *roster) takeKnown() []probe.Target {
	var out []probe.Target
	for t := range r.known {
		if r.isProbed(t) {
			out = append(out, t)
		}
	}
	r.known = nil
	return out
}

// retarget returns the targets to add to and to remove from those set last.
func (r *roster) retarget() (start, stop []probe.Target) {
	for t, was := range r.turned {
		switch now := r.isProbed(t); {
		case now && !was:
			start = append(start, t)
		case was && !now:
			stop = append(stop, t)
		}
	}
	clear(r.turned)
	return start, stop
}

// setTargets sets the prober's targets.
func (a *Agent) setTargets() error {
	a.probing.Lock()
	defer a.probing.Unlock()
	return a.tellProber()
}

// followTargets adds and removes targets, or sets all if the difference is not known or the last
// call failed.
func (a *Agent) followTargets() error {
	a.probing.Lock()
	defer a.probing.Unlock()
	a.mu.Lock()
	moved := a.roster.moved || a.probesFault != nil
	var start, stop []probe.Target
	if !moved {
		start, stop = a.roster.retarget()
	}
	a.mu.Unlock()
	if moved {
		return a.tellProber()
	}
	if len(start)+len(stop) > 0 {
		a.probesFault = a.o.Prober.Change(start, stop)
	}
	return a.probesFault
}

// tellProber sets all targets. The caller holds probing.
func (a *Agent) tellProber() error {
	a.mu.Lock()
	known, targets := a.roster.takeKnown(), a.roster.targets()
	a.mu.Unlock()
	if len(known) > 0 {
		// Ignore the error, because Set reports the same targets again.
		_ = a.o.Prober.Resume(known)
	}
	a.probesFault = a.o.Prober.Set(targets)
	return a.probesFault
}
