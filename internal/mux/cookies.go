package mux

import (
	"slices"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// cookieForms maps the names in plans to the cookie forms that muxes read.
var cookieForms = map[string]dataplane.CookieForm{
	lb.CookieEVC: dataplane.CookieEVC, lb.CookieCO: dataplane.CookieCO, lb.CookieSplitR: dataplane.CookieSplitR, lb.CookieSplitZ: dataplane.CookieSplitZ,
}

// wantedCookie returns the configuration to read, and where the mux stamps to write, cookies of an
// endpoint under the live keys of its VIP. It returns nil if the endpoint has no cookies. It also
// returns nil without keys, which arrive with the plan or a moment later; then only the flow table
// identifies connections.
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

// keepCookies copies the cookie keys of retired VIPs from the previous plan into p.
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
