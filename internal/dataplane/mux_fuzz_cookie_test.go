package dataplane

import (
	"net/netip"
	"slices"

	"github.com/shuntlb/shunt/internal/cookie"
	"github.com/shuntlb/shunt/internal/lb"
)

// newCookies makes an endpoint that may be one of cookies one, now and then.
func (f *fuzz) newCookies(e *MuxEndpoint) {
	if e.Cookie = nil; e.Affinity == AffinityCookie {
		e.Affinity = AffinityFlow
	}
	if e.Affinity != AffinityFlow || e.Key.Protocol != lb.TCP || e.sourceBits() != 0 || e.Fragments3Tuple || f.cr.IntN(3) > 0 {
		return
	}
	e.Affinity, e.Cookie = AffinityCookie, randomCookieKeys(f.cr)
}

// cookied makes the options of a segment carry the cookie of a member, in the clock of the client or of the server, when the flow is one of cookies.
func (g *fuzzFrames) cookied(w fuzzFlow, options []byte) []byte {
	r, fromServer := g.f.cr, false
	e, ok := g.f.model.endpointOf(w.vip, w.protocol, w.to)
	if !ok {
		e, ok = g.f.model.endpointOf(w.client, w.protocol, w.from)
		w.client, w.vip, w.from, w.to, fromServer = w.vip, w.client, w.to, w.from, true
	}
	if !ok || e.Cookie == nil || r.IntN(5) == 0 {
		return options
	}
	keys, kid := *e.Cookie, uint8(r.IntN(2))
	if r.IntN(10) == 0 {
		keys = *randomCookieKeys(r)
	}
	prf := cookie.PRF(keys.Keys[kid], cookie.Flow{
		Client: netip.AddrPortFrom(w.client, w.from), VIP: netip.AddrPortFrom(w.vip, w.to),
	})
	stamp := cookie.HostBits.Place(r.Uint32(), uint32(cookie.Encode(prf, kid, uint16(r.IntN(len(e.Members)+3)), e.Cookie.secret(kid))))
	if r.IntN(6) == 0 {
		stamp ^= 1 << r.IntN(32)
	}
	option := timestampsOption(5, stamp)
	if fromServer {
		option = timestampsOption(stamp, 5)
	}
	switch r.IntN(5) {
	case 0:
		return slices.Concat([]byte{1}, option, []byte{0})
	case 1:
		return slices.Concat([]byte{1, 1, 5, 10, 1, 2, 3, 4, 5, 6, 7, 8, 1, 1}, option)
	}
	return append([]byte{1, 1}, option...)
}
