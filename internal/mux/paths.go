package mux

import (
	"fmt"
	"net/netip"

	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/notify"
	"github.com/shuntlb/shunt/internal/plan"
)

// wantOuters adds the destinations of changed endpoints to those that are resolved. The caller
// holds applying.
func (a *Agent) wantOuters(changes []plan.EndpointChange) {
	for _, c := range changes {
		a.outers.add(c.After)
	}
	a.tellOuters()
}

// dropOuters removes the destinations of replaced endpoints after the tables took the changes. late
// reports that the path MTU of a new member's destination is not the one that the tables have.
func (a *Agent) dropOuters(changes []plan.EndpointChange) (late bool) {
	a.mu.Lock()
	for _, c := range changes {
		a.outers.remove(c.Before)
		for _, m := range membersOf(c.Before) {
			if !a.outers.has(m.Outer) {
				delete(a.mtus, m.Outer)
			}
		}
		for _, m := range membersOf(c.After) {
			late = late || pathMTU(a.plan.MTU, a.hops[m.Outer]) != a.mtus[m.Outer]
		}
	}
	a.mu.Unlock()
	a.tellOuters()
	return late
}

// tellOuters sets the destinations to resolve if they changed.
func (a *Agent) tellOuters() {
	if len(a.outers.moved) > 0 {
		a.o.Hops.Want(a.outers.list())
	}
}

// pathMTUsLocked returns the path MTUs to the members of endpoints.
func (a *Agent) pathMTUsLocked(planned uint32, endpoints []plan.Endpoint) map[netip.Addr]uint32 {
	out := map[netip.Addr]uint32{}
	for i := range endpoints {
		for _, m := range endpoints[i].Members {
			if _, known := out[m.Outer]; !known {
				out[m.Outer] = pathMTU(planned, a.hops[m.Outer])
			}
		}
	}
	return out
}

// setHopsLocked writes the next hops of a plan's destinations to the tables. It does nothing while
// a destination is unresolved, because that would remove next hops that a previous agent wrote.
func (a *Agent) setHopsLocked(p plan.Plan) error {
	for i := range p.Endpoints {
		for _, m := range p.Endpoints[i].Members {
			if _, answered := a.hops[m.Outer]; !answered {
				return nil
			}
		}
	}
	if a.o.Leases != nil {
		for _, outer := range a.o.Leases.Outers() {
			if _, answered := a.hops[outer]; !answered {
				return nil
			}
		}
	}
	if err := a.o.Tables.SetNextHops(nextHops(a.hops)); err != nil {
		return fmt.Errorf("set next hops: %w", err)
	}
	a.hopsTold = true
	return nil
}

// HopsChanged receives the full map of next hops. It is never called concurrently.
func (a *Agent) HopsChanged(hops map[netip.Addr]netdev.NextHop) {
	reach := sameReach(a.hops, hops)
	a.mu.Lock()
	a.hops, a.hopsTold = hops, false
	if !reach {
		// Members that cannot be reached do not count as usable.
		a.roster.vips.touchAll()
	}
	var err error
	if a.ready {
		err = a.setHopsLocked(a.plan)
	}
	stale := len(a.stalePathsLocked()) > 0
	a.mu.Unlock()
	notify.Send(a.speak)
	notify.Send(a.paths)
	if err != nil {
		a.o.Log.Error("follow next hops", "error", err)
	}
	if stale {
		a.applying.Lock()
		defer a.applying.Unlock()
		a.followPaths()
	}
}

// sameReach reports whether the same destinations are reachable in both maps. A destination without
// a result counts as reachable.
func sameReach(before, after map[netip.Addr]netdev.NextHop) bool {
	within := func(a, b map[netip.Addr]netdev.NextHop) bool {
		for outer, hop := range a {
			if _, known := b[outer]; !reaches(hop, true) && reaches(b[outer], known) {
				return false
			}
		}
		return true
	}
	return within(before, after) && within(after, before)
}

// reaches reports whether the kernel has a route, or the lookup has no result yet. The program
// drops packets to a destination without a route.
func reaches(hop netdev.NextHop, asked bool) bool { return !asked || hop.Ifindex != 0 }

// stalePathsLocked returns the destinations whose path MTU differs from the one in the tables.
func (a *Agent) stalePathsLocked() map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for outer, mtu := range a.mtus {
		if pathMTU(a.plan.MTU, a.hops[outer]) != mtu {
			out[outer] = true
		}
	}
	return out
}

// followPaths applies the current plan again under new path MTUs. The caller holds applying.
func (a *Agent) followPaths() {
	a.mu.Lock()
	ready, stale := a.ready, a.stalePathsLocked()
	a.mu.Unlock()
	if !ready || len(stale) == 0 {
		return
	}
	s := a.stepTo(a.plan, nil, a.unsure)
	for i := range a.plan.Endpoints {
		e := &a.plan.Endpoints[i]
		for _, m := range e.Members {
			if stale[m.Outer] {
				s.also = append(s.also, e.Key.VIP)
				break
			}
		}
	}
	err := a.applyTables(s)
	if a.unsure = err != nil; a.unsure {
		a.o.Log.Error("follow path MTUs", "error", err)
	}
}
