package mux

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/shuntlb/shunt/internal/agent"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/fit"
	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

const (
	// A mux tries again to serve what it withholds after withheldPace, because what left the tables may not have been free yet, and after twice as long
	// each time that nothing changed, up to withheldRest.
	withheldPace = time.Second
	withheldRest = time.Minute
)

// fitting is the way from the manager's plan to one that the tables take: some VIPs are withheld.
type fitting struct {
	*fit.Fitting
	told, before plan.Plan
	// vips are those of the first claims, in their order, left those of the rest, which linger; none before claims are needed.
	vips, left []lb.EndpointKey
}

// fittingTo begins with the VIPs that must be withheld if some are at present; applying is held.
func (a *Agent) fittingTo(told plan.Plan) *fitting {
	f := &fitting{Fitting: fit.NewFitting(), told: told, before: a.plan}
	if len(a.withheld) > 0 {
		a.claim(f)
		f.Choose()
	}
	return f
}

// claim computes what VIPs take of the tables.
func (a *Agent) claim(f *fitting) {
	f.Capacity = map[string]uint64{}
	for _, p := range a.o.Tables.Pressure() {
		switch p.Name {
		case dataplane.TableEndpoints, dataplane.TableMembers, dataplane.TableBackends, dataplane.TableRings, dataplane.TableSources,
			dataplane.TableSourceLists, dataplane.TableRanges, dataplane.TableCookies, dataplane.TableQUIC:
			f.Capacity[p.Name] = p.Capacity
		case dataplane.TableNAT, dataplane.TableConnections:
			// Their use is by traffic; a table of none excludes endpoints that need one.
			if p.Capacity == 0 {
				f.Capacity[p.Name] = 0
			}
		}
	}
	a.mu.Lock()
	mtus, first := maps.Clone(a.mtus), !a.ready
	a.mu.Unlock()
	needs := &dataplane.MuxNeeds{}
	need := func(p *plan.Plan, endpoints []plan.Endpoint, list *dataplane.SourceList) []fit.Need {
		now := present{
			bit: func(lb.EndpointKey, plan.Member) bool { return false }, decision: func(lb.EndpointKey) health.Decision { return health.Decision{} },
			mtu: func(outer netip.Addr) uint32 { return cmp.Or(mtus[outer], p.MTU) }, cids: p.CIDs, cookies: p.Cookies,
		}
		out := make([]dataplane.MuxEndpoint, 0, len(endpoints))
		for _, e := range endpoints {
			out = append(out, wantedEndpoint(e, nextRings{}, now))
		}
		return needs.Of(out, list)
	}
	lists := map[netip.Addr]*dataplane.SourceList{}
	a.sources.each(f.told, func(v dataplane.MuxVIP) { lists[v.VIP] = v.Sources })
	services := map[string]*plan.Service{}
	for i := range f.told.Services {
		services[f.told.Services[i].Name] = &f.told.Services[i]
	}
	eachVIP(f.told.Endpoints, func(vip lb.EndpointKey, endpoints []plan.Endpoint) {
		c := fit.Claim{Name: fmt.Sprintf("%d/%s", vip.VNI, vip.VIP.StringExpanded()), Need: need(&f.told, endpoints, lists[vip.VIP])}
		if s := services[endpoints[0].Service]; s != nil {
			c.Tenant, c.Created = s.Tenant, s.Created
		}
		switch had := plan.OfVIP(f.before.Endpoints, vip); {
		case slices.EqualFunc(had, endpoints, func(x, y plan.Endpoint) bool { return x.Equal(&y) }):
			c.Had, f.Same[len(f.vips)] = c.Need, true
		case len(had) > 0:
			c.Had = need(&f.before, had, a.rules[vip.VIP].Sources)
		case first:
			c.Served = slices.ContainsFunc(endpoints, func(e plan.Endpoint) bool {
				return slices.ContainsFunc(e.Members, func(m plan.Member) bool {
					_, known := a.o.Tables.Alive(e.Key, m.ID)
					return known
				})
			})
		}
		f.vips, f.Claims = append(f.vips, vip), append(f.Claims, c)
	})
	a.claimLingering(f, func(endpoints []plan.Endpoint) []fit.Need {
		return need(&f.before, endpoints, a.rules[endpoints[0].Key.VIP].Sources)
	})
}

// claimLingering computes what VIPs that linger take of the tables. Of a tenant they give way before its other VIPs do, as its youngest; those
// of others keep their time, because the tenant that takes most gives way first.
func (a *Agent) claimLingering(f *fitting, need func([]plan.Endpoint) []fit.Need) {
	services := map[string]*plan.Service{}
	for i := range f.before.Services {
		services[f.before.Services[i].Name] = &f.before.Services[i]
	}
	l := lingering{until: a.linger.until}
	l.follow(leftVIPs(f.told, f.before, plan.Differences(f.before.Endpoints, f.told.Endpoints)), a.o.Clock.Now(), a.o.Linger)
	for _, addr := range slices.SortedFunc(maps.Keys(l.until), netip.Addr.Compare) {
		vip := lb.EndpointKey{VIP: addr}
		endpoints := plan.OfVIP(f.before.Endpoints, vip)
		if len(endpoints) == 0 {
			continue
		}
		c := fit.Claim{Name: "left " + addr.StringExpanded(), Created: math.MaxInt64, Need: need(endpoints)}
		if s := services[endpoints[0].Service]; s != nil {
			c.Tenant = s.Tenant
		}
		f.left, f.Claims = append(f.left, vip), append(f.Claims, c)
	}
}

// forgotten are the VIPs that do not linger, because the tables have no room for them.
func (f *fitting) forgotten() map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for i := range f.Withheld() {
		if i < len(f.vips) {
			out[f.vips[i].VIP] = true
		} else {
			out[f.left[i-len(f.vips)].VIP] = true
		}
	}
	return out
}

// eachVIP calls f with the endpoints of each VIP of an ordered list.
func eachVIP(endpoints []plan.Endpoint, f func(vip lb.EndpointKey, endpoints []plan.Endpoint)) {
	for len(endpoints) > 0 {
		vip, n := vipOf(endpoints[0].Key), 1
		for n < len(endpoints) && vipOf(endpoints[n].Key) == vip {
			n++
		}
		f(vip, endpoints[:n])
		endpoints = endpoints[n:]
	}
}

// withheld are the VIPs that are withheld.
func (f *fitting) withheld() map[lb.EndpointKey]agent.WithheldVIP {
	out := map[lb.EndpointKey]agent.WithheldVIP{}
	for i, w := range f.Withheld() {
		if i >= len(f.vips) {
			continue
		}
		vip := f.vips[i]
		out[vip] = agent.WithheldVIP{
			Service: plan.OfVIP(f.told.Endpoints, vip)[0].Service, Tenant: f.Claims[i].Tenant, Table: w.Table, Held: w.Held,
		}
	}
	return out
}

// plan is the manager's plan without what is withheld. VIPs that are held have the endpoints that they had.
func (f *fitting) plan() plan.Plan {
	p, withheld := f.told, f.withheld()
	if len(withheld) == 0 {
		return p
	}
	p.Endpoints = make([]plan.Endpoint, 0, len(f.told.Endpoints))
	eachVIP(f.told.Endpoints, func(vip lb.EndpointKey, endpoints []plan.Endpoint) {
		w, yes := withheld[vip]
		switch {
		case !yes:
			p.Endpoints = append(p.Endpoints, endpoints...)
		case w.Held:
			p.Endpoints = append(p.Endpoints, plan.OfVIP(f.before.Endpoints, vip)...)
		}
	})
	return p
}

// refused chooses again after the tables refused a plan. False: it was not for lack of room, or there is
// nothing more to withhold.
func (a *Agent) refused(f *fitting, err error) bool {
	full := (*dataplane.NoRoom)(nil)
	if !errors.As(err, &full) {
		return false
	}
	return f.Refused(full.Table, func() { a.claim(f) }, func() int {
		if i := slices.Index(f.left, full.VIP); i >= 0 {
			return len(f.vips) + i
		}
		return slices.Index(f.vips, full.VIP)
	})
}

// withheldLocked takes over what is withheld of the plan that is obeyed now, and when to try again.
func (a *Agent) withheldLocked(f *fitting) {
	withheld := f.withheld()
	a.retryAfter = min(2*a.retryAfter, withheldRest)
	if !maps.Equal(a.withheld, withheld) {
		a.retryAfter = withheldPace
		for _, line := range agent.WithheldLines(withheld) {
			a.o.Log.Warn("VIPs are withheld", "reason", line)
		}
		if len(withheld) == 0 {
			a.o.Log.Info("all VIPs fit into the tables")
		}
	}
	a.withheld, a.retry = withheld, time.Time{}
	if len(withheld) > 0 {
		a.retry = a.o.Clock.Now().Add(a.retryAfter)
	}
}

// allWithheldLocked are the VIPs that are withheld, those whose ports the tables have no room for included. A VIP is there once.
func (a *Agent) allWithheldLocked(withoutPorts map[lb.EndpointKey]agent.WithheldVIP) map[lb.EndpointKey]agent.WithheldVIP {
	if len(withoutPorts) == 0 {
		return a.withheld
	}
	out := maps.Clone(a.withheld)
	if out == nil {
		out = map[lb.EndpointKey]agent.WithheldVIP{}
	}
	for vip, w := range withoutPorts {
		if _, already := out[vip]; already {
			continue
		}
		at, known := slices.BinarySearchFunc(a.plan.Services, plan.Service{Name: w.Service}, plan.CompareServices)
		if known {
			w.Tenant = a.plan.Services[at].Tenant
		}
		w.Held = plan.HasVIP(a.plan.Endpoints, nil, vip.VIP)
		out[vip] = w
	}
	return out
}
