package mux

import (
	"context"
	"net/netip"
	"slices"
)

// allowed are those of some VIPs that may be announced.
func (l *Leases) allowed(vips []netip.Addr) []netip.Addr {
	if l == nil {
		return vips
	}
	withheld := l.Withheld(DefaultLeaseFor)
	if len(withheld) == 0 {
		return vips
	}
	return slices.DeleteFunc(slices.Clone(vips), func(vip netip.Addr) bool { return withheld[vip] })
}

// FollowLeases lets routers and leases know of each other's changes until ctx ends: which VIPs may be announced, and how large
// packets to servers may be.
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
			poke(a.speak)
			poke(a.changed)
		}
		a.tellPaths()
	}
}

// tellPaths gives the leases the MTUs of the paths to servers.
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

// leaseFault is why VIPs are withheld because of their leases.
func (a *Agent) leaseFault() string {
	if a.o.Leases == nil {
		return ""
	}
	return a.o.Leases.Fault(DefaultLeaseFor)
}
