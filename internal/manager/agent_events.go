package manager

import (
	"context"
	"maps"
	"net/netip"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

const (
	// agentsEvery is the interval between two checks of the hosts.
	agentsEvery = time.Second
	// agentMissingAfter is how long a host may have backends and no agent before an event reports
	// it, because objects are applied while agents join.
	agentMissingAfter = 5 * time.Second
)

// agentEvents reports services with backends on machines without a host agent. It belongs to one
// goroutine.
type agentEvents struct {
	m *Manager
	// since is the time at which a service was first found to have backends on a host without an
	// agent.
	since map[serviceHost]time.Time
}

// serviceHost is a service and the address of a host with backends of it.
type serviceHost struct {
	service string
	host    netip.Addr
}

func newAgentEvents(m *Manager) *agentEvents { return &agentEvents{m, map[serviceHost]time.Time{}} }

// run checks all hosts every agentsEvery until ctx ends.
func (a *agentEvents) run(ctx context.Context) {
	for {
		select {
		case <-a.m.o.Clock.After(agentsEvery):
			a.round()
		case <-ctx.Done():
			return
		}
	}
}

func (a *agentEvents) round() {
	m, now := a.m, a.m.o.Clock.Now()
	found := m.view.servicesWithoutAgent(m.reports.seen)
	for at, lost := range found {
		if a.since[at].IsZero() {
			a.since[at] = now
		}
		if now.Sub(a.since[at]) >= agentMissingAfter {
			m.objectEvent(lb.KindService, at.service, reasonAgentMissing, "%s: %s: packets for %s are lost", at.host, lost.why, some(lost.backends))
		}
	}
	for at := range a.since {
		if found[at].why == "" {
			delete(a.since, at)
		}
	}
	for _, p := range m.events.parts(latchAgents, reasonAgentMissing) {
		host, err := netip.ParseAddr(p.part)
		if at := (serviceHost{p.name, host}); err == nil && found[at].why == "" {
			m.objectEvent(lb.KindService, p.name, reasonAgentPresent, "%s: has an agent, or no backend of this service", host)
		}
	}
}

// lost is the backends of a service at one host without an agent, and why the host has none.
type lost struct {
	why      string
	backends []string
}

// servicesWithoutAgent returns the services with backends on hosts without an agent.
func (v *view) servicesWithoutAgent(connected func(node string) bool) map[serviceHost]lost {
	v.mu.RLock()
	defer v.mu.RUnlock()
	out := map[serviceHost]lost{}
	snats := v.snatServicesLocked()
	for host, why := range v.absentLocked(connected) {
		services := map[string]bool{}
		maps.Copy(services, snats[host])
		for _, item := range v.items.byHost[host] {
			if b := item.GetBinding(); b != nil {
				services[b.GetService()] = true
			}
		}
		for name := range services {
			svc := v.state.Services[name]
			if svc == nil {
				continue
			}
			for _, on := range onHosts(svc) {
				if on.host == host {
					out[serviceHost{name, host}] = lost{why, on.backends}
				}
			}
		}
	}
	return out
}
