package mux

import (
	"slices"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// wantedCookie is what the cookies of an endpoint are read with, under the live keys of its VIP; nil where there are none. Without keys, which come with
// the plan or a moment later, connections are known by the flow table alone.
func wantedCookie(e plan.Endpoint, keys []plan.CookieKey) *dataplane.MuxCookie {
	if e.Affinity != lb.AffinityCookie || e.Cookie != lb.CookieEVC && e.Cookie != lb.CookieCO || len(keys) == 0 {
		return nil
	}
	out := &dataplane.MuxCookie{}
	if e.Cookie == lb.CookieCO {
		out.Form = dataplane.CookieCO
	}
	for _, k := range keys {
		out.Keys[k.ID()], out.Live[k.ID()] = k.Key, true
	}
	return out
}

// keepCookies gives a plan the keys that VIPs had in the plan before which linger in it.
func (l *lingering) keepCookies(p *plan.Plan, before plan.Plan) {
	var stay []plan.CookieKeys
	for _, k := range before.Cookies {
		if l.has(k.VIP) && plan.CookiesOf(p.Cookies, lb.EndpointKey{VNI: k.VNI, VIP: k.VIP}) == nil {
			stay = append(stay, k)
		}
	}
	if len(stay) > 0 {
		p.Cookies = slices.SortedFunc(slices.Values(append(stay, p.Cookies...)), plan.CompareCookies)
	}
}
