package mux

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// lingerPace is the least time between two searches for expired VIPs, so that tables of 20,000
// endpoints are not searched for each VIP.
const lingerPace = time.Second

// lingering holds the retired VIPs: those that left the plan. Their routes are withdrawn, and the
// tables keep them, with their sources and limits, until their grace period ends, because a router
// that has not processed the withdrawal still sends packets for them. It has no lock and no clock.
type lingering struct {
	until map[netip.Addr]time.Time
}

// extend returns told plus the endpoints of retired VIPs, copied from before, which may contain
// retired VIPs itself. It also returns the changes from before to that plan; changes are those to
// told. VIPs in forgotten get no grace period.
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

// follow replaces the retired VIPs by those in left. A VIP that is retired already keeps its end.
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

// leftVIPs returns the VIPs that are in before, or removed by changes, and not in told. A VIP may
// occur twice.
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

// merged joins two sorted lists of endpoints.
func merged(a, b []plan.Endpoint) []plan.Endpoint {
	out := make([]plan.Endpoint, 0, len(a)+len(b))
	for _, e := range b {
		at, _ := slices.BinarySearchFunc(a, e.Key, func(e plan.Endpoint, key lb.EndpointKey) int { return plan.CompareKeys(e.Key, key) })
		out, a = append(append(out, a[:at]...), e), a[at:]
	}
	return append(out, a...)
}

// share adds to p the services of before that have retired VIPs, and the policy source lists that
// these use.
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

// has reports whether a VIP is retired and in its grace period.
func (l *lingering) has(vip netip.Addr) bool {
	_, yes := l.until[vip]
	return yes
}

// next returns the earliest end of a grace period; zero: there is none.
func (l *lingering) next() (next time.Time) {
	for _, end := range l.until {
		if next.IsZero() || end.Before(next) {
			next = end
		}
	}
	return next
}

// Linger removes retired VIPs from the tables when their grace period ends, and retries withheld
// VIPs, until ctx ends.
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
			// VIPs that retire now have a later end.
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

// forgetLingering applies the plan again, without the VIPs whose grace period has ended.
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
