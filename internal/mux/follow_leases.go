package mux

import (
	"context"
	"net/netip"

	"github.com/shuntlb/shunt/internal/notify"
)

// ranks returns the non-zero ranks of routes to VIPs.
func (l *Leases) ranks() map[netip.Addr]uint8 {
	if l == nil {
		return nil
	}
	return l.Ranks(DefaultLeaseFor)
}

// followOutboundLocked updates outbound, the VIPs of which servers hold ports, and marks changed
// ones for judgeLocked.
func (a *Agent) followOutboundLocked() {
	if a.o.Leases == nil {
		return
	}
	now := map[netip.Addr]bool{}
	changes := a.o.Leases.outboundVIPs(a.leaseChanges, func(vip netip.Addr, outbound bool) {
		if outbound {
			now[vip] = true
		}
	})
	if changes == a.leaseChanges {
		return
	}
	a.leaseChanges = changes
	for _, other := range [2]map[netip.Addr]bool{a.outbound, now} {
		for vip := range other {
			if a.outbound[vip] != now[vip] {
				a.roster.vips.touch(vip)
			}
		}
	}
	a.outbound = now
}

// FollowLeases passes changes between routing and leases until ctx ends: which VIPs may be
// announced, and the path MTUs to servers.
func (a *Agent) FollowLeases(ctx context.Context) {
	var moves <-chan struct{}
	if a.o.Leases != nil {
		moves = a.o.Leases.Moves()
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.paths:
		case <-moves:
			notify.Send(a.speak)
			notify.Send(a.changed)
			a.applying.Lock()
			a.wantLeased()
			a.tellOuters()
			a.applying.Unlock()
		}
		a.tellPaths()
	}
}

// wantLeased adds servers that hold ports of VIPs to the resolved destinations, whether they are
// backends or not. The caller holds applying.
func (a *Agent) wantLeased() {
	if a.o.Leases != nil {
		a.outers.lease(a.o.Leases.Outers())
	}
}

// tellPaths sets the MTUs of the paths to servers in the leases.
func (a *Agent) tellPaths() {
	if a.o.Leases == nil {
		return
	}
	outers := a.o.Leases.Outers()
	mtus := make(map[netip.Addr]uint32, len(outers))
	a.mu.Lock()
	for _, outer := range outers {
		mtus[outer] = pathMTU(a.plan.MTU, a.hops[outer])
	}
	planned := a.plan.MTU
	a.mu.Unlock()
	a.o.Leases.SetPaths(mtus, planned)
}

// leaseFault returns why routes to VIPs with SNAT have a non-zero rank; empty: they have rank 0.
func (a *Agent) leaseFault() string {
	if a.o.Leases == nil {
		return ""
	}
	return a.o.Leases.Fault(DefaultLeaseFor)
}
