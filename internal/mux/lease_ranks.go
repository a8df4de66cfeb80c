package mux

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/shuntlb/shunt/internal/snat"
)

// DefaultLeaseFor is how long after the last confirmation by a manager a mux considers its leases
// the newest: many times the interval of the confirmations, and far shorter than the quarantine of
// a freed range.
const DefaultLeaseFor = 10 * time.Second

// DefaultWordsFor is how long after the last confirmation no port can have another holder than in
// the tables. It is the quarantine of a freed range minus the time for which managers may confirm
// outdated leases (leaseTTL for a leader, 3 s for its followers, and clock drift).
const DefaultWordsFor = snat.Quarantine - 10*time.Second

// Ranks of the routes to VIPs with SNAT (bgp.Route.Rank). Replies to servers reach a mux only if no
// mux with a lower rank announces the VIP. The safety argument is in docs/adr/0007.
const (
	// rankNewest: the tables have the leases, and a manager confirmed within DefaultLeaseFor that
	// they are the newest.
	rankNewest uint8 = iota
	// rankUnconfirmed: the tables have leases. Newer ones may exist, and if any mux has them it is
	// another one.
	rankUnconfirmed
	// rankWithout: the tables do not have the leases.
	rankWithout
)

// Ranks returns the VIPs with SNAT whose rank is not rankNewest. Leases count as the newest for
// lasts after the last confirmation.
func (l *Leases) Ranks(lasts time.Duration) (out map[netip.Addr]uint8) {
	l.mu.Lock()
	defer l.mu.Unlock()
	late := l.clock.Now().Sub(l.heard) > lasts
	for vip, k := range l.known {
		rank := rankNewest
		switch {
		case !k.held || k.fault != nil:
			rank = rankWithout
		case late:
			rank = rankUnconfirmed
		default:
			continue
		}
		if out == nil {
			out = map[netip.Addr]uint8{}
		}
		out[vip] = rank
	}
	return out
}

// Newest reports whether a VIP has no SNAT, or the tables have its leases and a manager confirmed
// within lasts that they are the newest.
func (l *Leases) Newest(vip netip.Addr, lasts time.Duration) bool {
	return l.Ranks(lasts)[vip] == rankNewest
}

// outboundVIPs calls each for every VIP with SNAT if the change count differs from since. It
// returns the current count.
func (l *Leases) outboundVIPs(since uint64, each func(vip netip.Addr, outbound bool)) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changes != since {
		for vip, k := range l.known {
			each(vip, k.outbound())
		}
	}
	return l.changes
}

// Fault returns why routes to VIPs with SNAT have a non-zero rank; empty: all have rank 0.
func (l *Leases) Fault(lasts time.Duration) string {
	ranks := l.Ranks(lasts)
	if len(ranks) == 0 {
		return ""
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	without := 0
	for _, vip := range slices.SortedFunc(maps.Keys(ranks), netip.Addr.Compare) {
		if k := l.known[vip]; k.fault != nil {
			return k.fault.Error()
		}
		if ranks[vip] == rankWithout {
			without++
		}
	}
	if without > 0 {
		return fmt.Sprintf("leases of SNAT ports: %d of %d VIPs are not loaded: no manager sent them", without, len(l.known))
	}
	return fmt.Sprintf("leases of SNAT ports: no manager confirmed within %v that they are the newest: routers prefer other muxes for %d VIPs", lasts, len(ranks))
}
