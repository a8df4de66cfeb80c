package mux

import (
	"slices"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// cookieForms are the forms of cookies that muxes read, by their names in plans.
var cookieForms = map[string]dataplane.CookieForm{
	lb.CookieEVC: dataplane.CookieEVC, lb.CookieCO: dataplane.CookieCO, lb.CookieSplitR: dataplane.CookieSplitR, lb.CookieSplitZ: dataplane.CookieSplitZ,
}

// wantedCookie is what the cookies of an endpoint are read with, and stamped where the mux does it, under the live keys of its VIP; nil where there are none. Without keys, which come with
// the plan or a moment later, connections are known by the flow table alone.
func wantedCookie(e plan.Endpoint, keys plan.CookieKeys) *dataplane.MuxCookie {
	form, known := cookieForms[e.Cookie]
	if e.Affinity != lb.AffinityCookie || !known || len(keys.Keys) == 0 {
		return nil
	}
	out := &dataplane.MuxCookie{Form: form}
	if form.Split() {
		mint := plan.CookieKey{Epoch: keys.Mint}
		out.Mint = mint.ID()
	}
	for _, k := range keys.Keys {
		out.Keys[k.ID()], out.Live[k.ID()], out.Shuffled[k.ID()] = k.Key, true, k.Shuffled
	}
	return out
}

// keepCookies gives a plan the keys that VIPs had in the plan before which linger in it.
func (l *lingering) keepCookies(p *plan.Plan, before plan.Plan) {
	var stay []plan.CookieKeys
	for _, k := range before.Cookies {
		if l.has(k.VIP) && plan.CookiesOf(p.Cookies, lb.EndpointKey{VNI: k.VNI, VIP: k.VIP}).Keys == nil {
			stay = append(stay, k)
		}
	}
	if len(stay) > 0 {
		p.Cookies = slices.SortedFunc(slices.Values(append(stay, p.Cookies...)), plan.CompareCookies)
	}
}
