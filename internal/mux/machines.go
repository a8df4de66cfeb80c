package mux

import (
	"net/netip"
	"slices"
	"time"

	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/notify"
	"github.com/shuntlb/shunt/internal/probe"
)

// With health from host, a host's verdict covers its servers but not the path from this mux to
// them. So the mux probes each host machine by ICMP: one probe a second for all of its backends.
// While a machine that answered before is silent, the mux checks its backends itself, and they are
// alive only when the host and the mux both find them alive (Ananta section 3.4.3).

// maxHosts bounds each list of hosts in the node's status.
const maxHosts = 16

// machines holds, by address, the hosts whose verdicts this mux uses.
type machines struct {
	byHost   map[netip.Addr]*machine
	byTarget map[probe.Target]*machine
}

// machine is one host. members counts the members of the plan on it.
type machine struct {
	host    netip.Addr
	target  probe.Target
	members int
	path    health.Path
}

func newMachines() machines {
	return machines{byHost: map[netip.Addr]*machine{}, byTarget: map[probe.Target]*machine{}}
}

// enter counts a member on a host and reports whether it is the first. Members of endpoints that
// muxes check have no host.
func (ms *machines) enter(host netip.Addr) (first bool) {
	if !host.IsValid() {
		return false
	}
	m := ms.byHost[host]
	if m == nil {
		m = &machine{host: host, target: probe.Machine(host)}
		ms.byHost[host], ms.byTarget[m.target] = m, m
	}
	m.members++
	return m.members == 1
}

// leave is the inverse of enter. It reports whether the member was the last.
func (ms *machines) leave(host netip.Addr) (last bool) {
	m := ms.byHost[host]
	if m == nil {
		return false
	}
	if m.members--; m.members > 0 {
		return false
	}
	delete(ms.byHost, host)
	delete(ms.byTarget, m.target)
	return true
}

// lost reports whether a host that answered before is silent.
func (ms *machines) lost(host netip.Addr) bool {
	m := ms.byHost[host]
	return m != nil && m.path.Lost()
}

// named returns, sorted, at most maxHosts hosts whose path satisfies which.
func (ms *machines) named(which func(*health.Path) bool) (out []string) {
	var hosts []netip.Addr
	for host, m := range ms.byHost {
		if which(&m.path) {
			hosts = append(hosts, host)
		}
	}
	slices.SortFunc(hosts, netip.Addr.Compare)
	for _, host := range hosts[:min(len(hosts), maxHosts)] {
		out = append(out, host.String())
	}
	return out
}

// reach updates the members on a machine that was lost or found.
func (r *roster) reach(c *change, on *machine, now time.Time) {
	c.paths = append(c.paths, on)
	lost := on.path.Lost()
	r.heard.retarget = true
	for _, g := range r.groups {
		if g.Health.From != lb.FromHost {
			continue
		}
		for _, m := range g.members {
			if m.Host != on.host || m.cut == lost {
				continue
			}
			r.touch(c, m)
			m.cut = lost
			if lost || m.said == unsaid {
				continue
			}
			// The host's verdict is in force again.
			m.words, m.spoke = wordsOf(m.said), 0
			m.adopt(m.said == saidAlive)
			r.doubt.forget(m)
		}
	}
}

// logPathsLocked logs machines that were lost or found, and triggers updates of probes and status.
func (a *Agent) logPathsLocked(of []*machine) {
	for _, m := range of {
		if m.path.Lost() {
			a.o.Log.Warn("host unreachable", "host", m.host, "backends", m.members)
		} else {
			a.o.Log.Info("host reachable", "host", m.host, "backends", m.members)
		}
	}
	notify.Send(a.speak)
	notify.Send(a.changed)
}
