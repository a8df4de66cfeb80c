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
	// A mux retries withheld VIPs after withheldPace, because the space of removed VIPs may not
	// have been free yet. The delay doubles as long as nothing changes, up to withheldRest.
	withheldPace = time.Second
	withheldRest = time.Minute
)

// fitting turns the manager's plan into one that fits into the tables, by withholding VIPs.
type fitting struct {
	*fit.Fitting
	told, before plan.Plan
	// vips are the VIPs of the first claims, in their order. left are the retired VIPs of the
	// remaining claims. Both are empty until claims are needed.
	vips, left []lb.EndpointKey
}

// fittingTo returns a fitting of told. It withholds VIPs from the start only if some are withheld
// now. The caller holds applying.
func (a *Agent) fittingTo(told plan.Plan) *fitting {
	f := &fitting{Fitting: fit.NewFitting(), told: told, before: a.plan}
	if len(a.withheld) > 0 {
		a.claim(f)
		f.Choose()
	}
	return f
}

// claim computes the table space that each VIP needs.
func (a *Agent) claim(f *fitting) {
	f.Capacity = map[string]uint64{}
	for _, p := range a.o.Tables.Pressure() {
		switch p.Name {
		case dataplane.TableEndpoints, dataplane.TableMembers, dataplane.TableBackends, dataplane.TableRings, dataplane.TableSources,
			dataplane.TableSourceLists, dataplane.TableRanges, dataplane.TableCookies, dataplane.TableQUIC:
			f.Capacity[p.Name] = p.Capacity
		case dataplane.TableNAT, dataplane.TableConnections:
			// Traffic fills these. A table without capacity excludes endpoints that need it.
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

// claimLingering computes the table space of retired VIPs. Within a tenant they are withheld before
// its other VIPs, as the youngest. Retired VIPs of other tenants keep their grace period, because
// VIPs of the tenant that uses most are withheld first.
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

// forgotten returns the VIPs that get no grace period because the tables have no room for them.
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

// eachVIP calls f with the endpoints of each VIP of a sorted list.
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

// withheld returns the withheld VIPs.
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

// plan returns the manager's plan without withheld VIPs. A VIP that is held keeps its previous
// endpoints.
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

// refused chooses again after the tables refused a plan. It returns false if the reason was not
// lack of room, or if no more VIPs can be withheld.
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

// withheldLocked stores the VIPs withheld from the applied plan, and when to retry.
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

// allWithheldLocked returns the withheld VIPs and those for whose ports the tables have no room,
// each once.
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
