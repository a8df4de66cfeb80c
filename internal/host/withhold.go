package host

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/agent"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/fit"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

const (
	// A host retries withheld bindings after withheldPace, because entries removed from the tables
	// may not have been free yet. While nothing changes, each wait is twice as long as the last, up
	// to withheldRest.
	withheldPace = time.Second
	withheldRest = time.Minute
	// mostWithheldMembers bounds the verdicts on members without a binding. A report has room for
	// so many in addition to those of all bindings.
	mostWithheldMembers = 1 << 17
	// reasonedMembers is up to how many of these verdicts have a text.
	reasonedMembers = 256
)

// withholding holds the withheld VIPs, and when the host retries them. It is guarded by Agent.mu.
type withholding struct {
	vips  map[lb.EndpointKey]agent.WithheldVIP
	retry time.Time // zero: nothing is withheld
	after time.Duration
}

// set sets the withheld VIPs and reports whether they changed.
func (w *withholding) set(vips map[lb.EndpointKey]agent.WithheldVIP, now time.Time) (changed bool) {
	w.after = min(2*w.after, withheldRest)
	if changed = !maps.Equal(w.vips, vips); changed {
		w.after = withheldPace
	}
	w.vips, w.retry = vips, time.Time{}
	if len(vips) > 0 {
		w.retry = now.Add(w.after)
	}
	return changed
}

// hurry makes the next retry due now, because the tables have more room.
func (w *withholding) hurry(now time.Time) {
	if !w.retry.IsZero() {
		w.retry = now
	}
}

// fitting reduces the manager's plan to one that the tables have room for, by withholding the
// bindings of some VIPs.
type fitting struct {
	*fit.Fitting
	wanted *plan.Plan
	before *plan.Plan // the last applied one; nil: none
	// vips are the VIPs of the first claims, in their order; left those of the other claims, whose
	// bindings are leaving. Both are empty until claims are needed.
	vips, left []lb.EndpointKey
}

// fittingTo returns a fitting that already withholds the necessary VIPs if some are withheld at
// present. applying is held.
func (a *Agent) fittingTo(wanted *plan.Plan) *fitting {
	f := &fitting{Fitting: fit.NewFitting(), wanted: wanted, before: a.planned}
	a.mu.Lock()
	some := len(a.withheld.vips) > 0
	a.mu.Unlock()
	if some {
		a.claim(f)
		f.Choose()
	}
	return f
}

// claim computes how many table entries the bindings of each VIP need.
func (a *Agent) claim(f *fitting) {
	f.Capacity = a.tables.Capacity()
	eachVIP(f.wanted.Bindings, func(vip lb.EndpointKey, bindings []plan.Binding) {
		c := fit.Claim{
			Name: fmt.Sprintf("%d/%s", vip.VNI, vip.VIP.StringExpanded()), Need: needOf(f.wanted, vip, bindings),
			Tenant: bindings[0].Tenant, Created: bindings[0].Created,
		}
		switch {
		case f.before == nil:
			c.Served = slices.ContainsFunc(bindings, func(b plan.Binding) bool { return a.tables.Has(&b) })
		default:
			had := bindingsOf(f.before.Bindings, vip)
			c.Had = needOf(f.before, vip, had)
			f.Same[len(f.vips)] = slices.EqualFunc(had, bindings, func(x, y plan.Binding) bool { return reflect.DeepEqual(x, y) })
		}
		f.vips, f.Claims = append(f.vips, vip), append(f.Claims, c)
	})
	a.claimLeavers(f)
}

// claimLeavers computes how many table entries the leaving bindings need, by VIP. They give way
// before the VIPs of their tenant, as its youngest. Those of other tenants keep their grace period,
// because the tenant that takes most gives way first.
func (a *Agent) claimLeavers(f *fitting) {
	var leaving []plan.Binding
	for _, l := range leave(a.leavers, a.state.Bindings, f.wanted.Bindings, a.clock.Now()) {
		leaving = append(leaving, l.Binding)
	}
	slices.SortFunc(leaving, plan.CompareBindings)
	eachVIP(leaving, func(vip lb.EndpointKey, bindings []plan.Binding) {
		bindings = slices.Clone(bindings)
		stay := bindingsOf(f.wanted.Bindings, vip)
		for i := range bindings {
			b := &bindings[i]
			// The handshakes of an endpoint that stays are in the claim of its VIP.
			b.Cookie = b.Cookie && !slices.ContainsFunc(stay, func(s plan.Binding) bool { return s.Key == b.Key && s.Cookie })
		}
		f.left = append(f.left, vip)
		f.Claims = append(f.Claims, fit.Claim{
			Name:   fmt.Sprintf("left %d/%s", vip.VNI, vip.VIP.StringExpanded()),
			Tenant: bindings[0].Tenant, Created: math.MaxInt64,
			Need: dataplane.HostNeeds(bindings, 0, false),
		})
	})
}

// staying returns the leavers that the tables have room for.
func (f *fitting) staying(leavers []leaver) []leaver {
	gone := map[lb.EndpointKey]bool{}
	for i, w := range f.Withheld() {
		switch {
		case i >= len(f.vips):
			gone[f.left[i-len(f.vips)]] = true
		case !w.Held:
			// A VIP that is not held leaves the tables immediately.
			gone[f.vips[i]] = true
		}
	}
	return slices.DeleteFunc(leavers, func(l leaver) bool { return gone[vipOf(l.Key)] })
}

// refused withholds more after the tables refused a plan. It returns false if the reason was not a
// lack of room, or if nothing more can be withheld.
func (a *Agent) refused(f *fitting, err error) bool {
	full := (*dataplane.NoRoom)(nil)
	if !errors.As(err, &full) {
		return false
	}
	return f.Refused(full.Table, func() { a.claim(f) }, func() int {
		if i := slices.Index(f.left, full.VIP); i >= 0 && !slices.Contains(f.vips, full.VIP) {
			return len(f.vips) + i
		}
		return slices.Index(f.vips, full.VIP)
	})
}

// withheld returns the withheld VIPs.
func (f *fitting) withheld() map[lb.EndpointKey]agent.WithheldVIP {
	out := map[lb.EndpointKey]agent.WithheldVIP{}
	for i, w := range f.Withheld() {
		if i >= len(f.vips) {
			continue
		}
		first := bindingsOf(f.wanted.Bindings, f.vips[i])[0]
		out[f.vips[i]] = agent.WithheldVIP{Service: first.Service, Tenant: first.Tenant, Table: w.Table, Held: w.Held}
	}
	return out
}

// plan returns the manager's plan without withheld VIPs. VIPs that are held keep their previous
// bindings and repairs.
func (f *fitting) plan() *plan.Plan {
	withheld := f.withheld()
	if len(withheld) == 0 {
		return f.wanted
	}
	p := *f.wanted
	p.Bindings, p.Repairs, p.Cookies = nil, nil, nil
	eachVIP(f.wanted.Bindings, func(vip lb.EndpointKey, bindings []plan.Binding) {
		of := f.wanted
		if w, yes := withheld[vip]; yes && !w.Held {
			return
		} else if yes {
			of, bindings = f.before, bindingsOf(f.before.Bindings, vip)
		}
		p.Bindings = append(p.Bindings, bindings...)
		p.Repairs = append(p.Repairs, ofVIP(of.Repairs, vip, func(r plan.Repair) lb.EndpointKey { return r.Key })...)
		if !slices.ContainsFunc(bindings, func(b plan.Binding) bool { return b.Cookie }) {
			return
		}
		keys, known := cookiesOf(f.wanted, vip)
		if !known {
			keys, known = cookiesOf(of, vip)
		}
		if known {
			p.Cookies = append(p.Cookies, keys)
		}
	})
	return &p
}

// unbound returns the members that have a binding in the plan but not in the fitted plan, with the
// full table.
func (f *fitting) unbound(fitted *plan.Plan) map[memberRef]string {
	out, withheld := map[memberRef]string{}, f.withheld()
	for _, vip := range slices.SortedFunc(maps.Keys(withheld), plan.CompareKeys) {
		table := withheld[vip].Table
		bound := map[bindingKey]plan.Binding{}
		for _, b := range bindingsOf(fitted.Bindings, vip) {
			bound[keyOf(b)] = b
		}
		for _, b := range bindingsOf(f.wanted.Bindings, vip) {
			have, ok := bound[keyOf(b)]
			if ok && have.Member == b.Member && have.DIP == b.DIP && have.DIPPort == b.DIPPort && have.Rewrite == b.Rewrite {
				continue
			}
			if len(out) == mostWithheldMembers {
				return out
			}
			out[memberRef{b.Key, b.Member}] = table
		}
	}
	return out
}

// vipOf returns the key of an endpoint's VIP.
func vipOf(k lb.EndpointKey) lb.EndpointKey { return lb.EndpointKey{VNI: k.VNI, VIP: k.VIP} }

// eachVIP calls f with the bindings of each VIP of an ordered list.
func eachVIP(bindings []plan.Binding, f func(vip lb.EndpointKey, bindings []plan.Binding)) {
	for len(bindings) > 0 {
		vip, n := vipOf(bindings[0].Key), 1
		for n < len(bindings) && vipOf(bindings[n].Key) == vip {
			n++
		}
		f(vip, bindings[:n])
		bindings = bindings[n:]
	}
}

// bindingsOf returns the bindings of a VIP in an ordered list.
func bindingsOf(bindings []plan.Binding, vip lb.EndpointKey) []plan.Binding {
	return ofVIP(bindings, vip, func(b plan.Binding) lb.EndpointKey { return b.Key })
}

// ofVIP returns the part of a list, ordered by the keys of endpoints, that belongs to a VIP.
func ofVIP[T any](list []T, vip lb.EndpointKey, key func(T) lb.EndpointKey) []T {
	first, _ := slices.BinarySearchFunc(list, vip, func(t T, vip lb.EndpointKey) int { return plan.CompareKeys(vipOf(key(t)), vip) })
	n := 0
	for first+n < len(list) && vipOf(key(list[first+n])) == vip {
		n++
	}
	return list[first : first+n]
}

// cookiesOf returns the keys of a VIP's cookies in a plan.
func cookiesOf(p *plan.Plan, vip lb.EndpointKey) (plan.CookieKeys, bool) {
	at, known := slices.BinarySearchFunc(p.Cookies, plan.CookieKeys{VNI: vip.VNI, VIP: vip.VIP}, plan.CompareCookies)
	if !known {
		return plan.CookieKeys{}, false
	}
	return p.Cookies[at], true
}

// withhold records the VIPs and members that the fitted plan leaves out.
func (a *Agent) withhold(f *fitting, fitted *plan.Plan) {
	vips := f.withheld()
	a.mu.Lock()
	changed := a.withheld.set(vips, a.clock.Now())
	a.bound = fitted
	a.mu.Unlock()
	a.checks.withhold(f.unbound(fitted))
	if !changed {
		return
	}
	for _, line := range agent.WithheldLines(vips) {
		a.log.Warn("VIPs are withheld", "reason", line)
	}
	if len(vips) == 0 {
		a.log.Info("all VIPs fit into the tables")
	}
}

// Refit applies the last plan again if VIPs are withheld and a retry is due.
func (a *Agent) Refit() error {
	a.planning.Lock()
	defer a.planning.Unlock()
	a.mu.Lock()
	due := !a.withheld.retry.IsZero() && !a.clock.Now().Before(a.withheld.retry)
	a.mu.Unlock()
	if !due || a.wanted == nil {
		return nil
	}
	return a.apply(a.wanted)
}

// roomStatus adds to a status the use of the tables that plans may exceed.
func (a *Agent) roomStatus(s *apiv1.NodeStatus) {
	a.mu.Lock()
	if a.usedOf != a.bound && a.bound != nil {
		a.usedOf, a.used = a.bound, usedBy(a.bound)
	}
	used := a.used
	a.mu.Unlock()
	capacity := a.tables.Capacity()
	for _, table := range []string{dataplane.TableBindings, dataplane.TableBindingParts, dataplane.TableCookieKeys, dataplane.TableHandshakes} {
		s.Tables = append(s.Tables, &apiv1.TableStatus{Name: table, Used: used[table], Capacity: capacity[table]})
	}
}

// needOf returns how many table entries the bindings of a VIP in a plan need.
func needOf(p *plan.Plan, vip lb.EndpointKey, bindings []plan.Binding) []fit.Need {
	own := 0
	if len(p.Switches) > 0 {
		own = len(p.Node.Addresses)
	}
	_, cookies := cookiesOf(p, vip)
	cookies = cookies && slices.ContainsFunc(bindings, func(b plan.Binding) bool { return b.Cookie })
	return dataplane.HostNeeds(bindings, own, cookies)
}

// usedBy returns how many entries the bindings of a plan take, in tables whose entries VIPs do not
// share.
func usedBy(p *plan.Plan) map[string]uint64 {
	used := map[string]uint64{}
	eachVIP(p.Bindings, func(vip lb.EndpointKey, bindings []plan.Binding) {
		for _, n := range needOf(p, vip, bindings) {
			used[n.Table] += n.Units
		}
	})
	return used
}
