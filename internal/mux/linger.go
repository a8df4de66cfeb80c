package mux

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// lingerPace is the least time between two looks at what lingers: tables of 20,000 endpoints are not gone through for each VIP.
const lingerPace = time.Second

// lingering are VIPs that left the plan. Their routes are withdrawn, and the tables keep them until their time is over: a
// router that has not heard of it still sends packets for them. Their sources and limits stay, too. It has no lock and no clock.
type lingering struct {
	until map[netip.Addr]time.Time
}

// extend returns the plan with what it says no more of VIPs that linger, which is as the plan before had it, and that one may
// have been extended; and the changes from that one on, which are those to the plan as told without what lingers. VIPs that are forgotten do not
// linger.
func (l *lingering) extend(told, before plan.Plan, changes []plan.EndpointChange, forgotten map[netip.Addr]bool, now time.Time, linger time.Duration) (plan.Plan, []plan.EndpointChange) {
	left := leftVIPs(told, before, changes)
	l.follow(slices.DeleteFunc(left, func(vip netip.Addr) bool { return forgotten[vip] }), now, linger)
	if len(l.until) == 0 {
		return told, changes
	}
	var stay []plan.Endpoint
	changes = slices.DeleteFunc(slices.Clone(changes), func(c plan.EndpointChange) bool {
		lingers := l.has(c.Key().VIP)
		if lingers {
			stay = append(stay, *c.Before)
		}
		return lingers
	})
	p := told
	p.Endpoints, p.Services, p.Sources = merged(told.Endpoints, stay), slices.Clone(told.Services), slices.Clone(told.Sources)
	l.share(&p, before)
	l.keep(&p, before)
	l.keepCookies(&p, before)
	return p, changes
}

// follow makes VIPs that left linger, from now on or as long as before, and none else.
func (l *lingering) follow(left []netip.Addr, now time.Time, linger time.Duration) {
	until := map[netip.Addr]time.Time{}
	for _, vip := range left {
		end, lingers := l.until[vip]
		if !lingers {
			end = now.Add(linger)
		}
		if now.Before(end) {
			until[vip] = end
		}
	}
	l.until = until
}

// leftVIPs returns the VIPs of the plan before, and of changes from it, that the plan as told does not have. Some may be there twice.
func leftVIPs(told, before plan.Plan, changes []plan.EndpointChange) (out []netip.Addr) {
	outbound := told.OutboundVIPs()
	for _, c := range changes {
		if c.After == nil && !plan.HasVIP(told.Endpoints, outbound, c.Before.Key.VIP) {
			out = append(out, c.Before.Key.VIP)
		}
	}
	for vip := range before.OutboundVIPs() {
		if !plan.HasVIP(told.Endpoints, outbound, vip) {
			out = append(out, vip)
		}
	}
	return out
}

// merged joins two ordered lists of endpoints.
func merged(a, b []plan.Endpoint) []plan.Endpoint {
	out := make([]plan.Endpoint, 0, len(a)+len(b))
	for _, e := range b {
		at, _ := slices.BinarySearchFunc(a, e.Key, func(e plan.Endpoint, key lb.EndpointKey) int { return plan.CompareKeys(e.Key, key) })
		out, a = append(append(out, a[:at]...), e), a[at:]
	}
	return append(out, a...)
}

// share adds what services of the plan before say of lingering VIPs that no service of this one has, and the lists that they
// take from policies.
func (l *lingering) share(p *plan.Plan, before plan.Plan) {
	known := map[netip.Addr]bool{}
	for _, s := range p.Services {
		for _, vip := range s.VIPs {
			known[vip] = true
		}
	}
	for _, s := range before.Services {
		s.VIPs = slices.DeleteFunc(slices.Clone(s.VIPs), func(vip netip.Addr) bool { return known[vip] || !l.has(vip) })
		if len(s.VIPs) == 0 {
			continue
		}
		p.Services = append(p.Services, s)
		of := func(list plan.Sources) bool { return list.Policy == s.SourcesOf }
		if s.SourcesOf == "" || slices.ContainsFunc(p.Sources, of) {
			continue
		}
		if i := slices.IndexFunc(before.Sources, of); i >= 0 {
			p.Sources = append(p.Sources, before.Sources[i])
		}
	}
}

// has tells whether a VIP lingers.
func (l *lingering) has(vip netip.Addr) bool {
	_, yes := l.until[vip]
	return yes
}

// next is when the first of them is over; zero when none lingers.
func (l *lingering) next() (next time.Time) {
	for _, end := range l.until {
		if next.IsZero() || end.Before(next) {
			next = end
		}
	}
	return next
}

// Linger makes the tables forget VIPs whose routes were withdrawn long enough ago, and looks for room for those that are withheld, until ctx ends.
func (a *Agent) Linger(ctx context.Context) {
	for {
		a.mu.Lock()
		next := a.linger.next()
		if !a.retry.IsZero() && (next.IsZero() || a.retry.Before(next)) {
			next = a.retry
		}
		a.mu.Unlock()
		var over <-chan time.Time
		lingers := a.lingers
		if !next.IsZero() {
			// Those that come are over later.
			over, lingers = a.o.Clock.After(max(next.Sub(a.o.Clock.Now()), lingerPace)), nil
		}
		select {
		case <-ctx.Done():
			return
		case <-lingers:
		case <-over:
			a.forgetLingering(ctx)
		}
	}
}

// forgetLingering obeys the plan again, without those that lingered for long enough.
func (a *Agent) forgetLingering(ctx context.Context) {
	a.applying.Lock()
	defer a.applying.Unlock()
	a.mu.Lock()
	left, told := a.left, a.told
	a.mu.Unlock()
	if left {
		return
	}
	if err := a.obey(ctx, told); err != nil {
		a.o.Log.Error("forget VIPs that left the plan", "error", err)
	}
}
