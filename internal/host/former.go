package host

import (
	"net/netip"
	"slices"

	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/probe"
)

// Within an endpoint's repair window hosts forward packets of unknown connections to backends that
// are no longer members. No mux checks those. So hosts probe their machines by ICMP, once a second.
// To a machine that answered before and does not now, no packets are forwarded, and the server's
// own kernel resets the connection.

// maxFormer bounds the machines that are probed. Packets are forwarded to further ones without a
// probe.
const maxFormer = 256

// former holds the machines of backends that left, by address. The prober's results and plans are
// from different goroutines: Agent.mu guards it.
type former struct {
	machines map[netip.Addr]*health.Path
	targets  map[probe.Target]netip.Addr
}

// follow sets the machines to those of backends that left, from repairs, without this host's own
// addresses. It returns the targets to probe.
func (f *former) follow(repairs []plan.Repair, own []netip.Addr) []probe.Target {
	before := f.machines
	f.machines, f.targets = map[netip.Addr]*health.Path{}, map[probe.Target]netip.Addr{}
	var out []probe.Target
	for i := range repairs {
		for _, host := range leftHosts(&repairs[i]) {
			if f.machines[host] != nil || slices.Contains(own, host) || len(f.machines) == maxFormer {
				continue
			}
			path := before[host]
			if path == nil {
				path = &health.Path{}
			}
			target := probe.Machine(host)
			f.machines[host], f.targets[target] = path, host
			out = append(out, target)
		}
	}
	return out
}

// leftHosts returns the hosts of the targets that are no longer members.
func leftHosts(r *plan.Repair) (out []netip.Addr) {
	if len(r.Memberships) == 0 {
		return nil
	}
	present := map[uint16]bool{}
	for _, s := range r.Memberships[len(r.Memberships)-1].Seats {
		present[s.ID] = true
	}
	for _, t := range r.Targets {
		if !present[t.ID] && !t.Fallen && t.Host.IsValid() {
			out = append(out, t.Host)
		}
	}
	return out
}

// observe applies results of probes and returns the machines that were lost or found, also for the
// first time.
func (f *former) observe(results []probe.Result) (changed []netip.Addr) {
	for i := range results {
		host, ok := f.targets[results[i].Target]
		if !ok || results[i].Void {
			continue
		}
		path := f.machines[host]
		answered := path.Answered()
		if path.Observe(results[i].Reached()) || answered != path.Answered() {
			changed = append(changed, host)
		}
	}
	return changed
}

// lost returns, in order, the machines to which no packets are forwarded.
func (f *former) lost() (out []netip.Addr) {
	for host, path := range f.machines {
		if path.Lost() {
			out = append(out, host)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

// Probed applies results of probes.
func (a *Agent) Probed(results []probe.Result) {
	a.logFlips(a.checks.observe(results, a.clock.Now()))
	a.mu.Lock()
	changed, lost := a.former.observe(results), a.former.lost()
	a.mu.Unlock()
	for _, host := range changed {
		if slices.Contains(lost, host) {
			a.log.Warn("former host unreachable: nothing is sent on to it", "host", host)
		} else {
			a.log.Info("former host reachable", "host", host)
		}
	}
	if len(changed) > 0 {
		if err := a.repairAround(); err != nil {
			a.log.Error("repair around lost hosts", "error", err)
		}
	}
}

// repairAround writes the repairs of the last plan to the tables, without the machines that are
// lost now.
func (a *Agent) repairAround() error {
	a.applying.Lock()
	defer a.applying.Unlock()
	if a.planned == nil {
		return nil
	}
	a.mu.Lock()
	lost := a.former.lost()
	a.mu.Unlock()
	next := a.state
	next.Repairs = a.repairs.follow(a.planned, lost)
	if err := a.tables.Apply(withLeavers(next, a.leavers)); err != nil {
		return err
	}
	a.state = next
	return nil
}
