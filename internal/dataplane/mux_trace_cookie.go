package dataplane

import (
	"net/netip"

	"github.com/shuntlb/shunt/internal/cookie"
)

// cookieKeys are what an endpoint's cookies are read with. A nil one: the endpoint has no cookies.
type cookieKeys struct {
	MuxCookie
	// clock is the shared clock of CookieCO, in milliseconds.
	clock uint32
}

// of is the cookie in a timestamp, and the id of its key.
func (k *cookieKeys) of(stamp uint32) (carried uint16, kid uint8) {
	if k.Form == CookieCO {
		carried = cookie.OffsetCookie(stamp, k.clock)
		return carried, cookie.ShortKeyID(carried)
	}
	if k.Form.Split() {
		carried = uint16(cookie.SplitBits.Cookie(stamp))
		return carried, cookie.ShortKeyID(carried)
	}
	carried = uint16(cookie.HostBits.Cookie(stamp))
	return carried, cookie.KeyID(carried)
}

// decode is the member that a cookie names.
func (k *cookieKeys) decode(hash uint64, carried uint16, kid uint8) (id uint16, ok bool) {
	if k.Form != CookieEVC {
		return cookie.DecodeShort(hash, carried, k.secret(kid))
	}
	return cookie.Decode(hash, carried, k.secret(kid))
}

// followCookie goes where the cookie of a segment says, and gives the hash that the outer source then varies with; false when it carries none that leads
// to a member.
func (t *Trace) followCookie(p Packet, e endpointView) (hash uint64, ok bool) {
	switch {
	case e.cookies == nil:
		return 0, false
	case p.Segment == SegmentOpening:
		t.step("a SYN carries no cookie")
		return 0, false
	case p.Echo == 0:
		t.step("it echoes no timestamp, so that it carries no cookie")
		return 0, false
	}
	carried, kid := e.cookies.of(p.Echo)
	if !e.cookies.Live[kid] {
		t.step("the echoed timestamp %#08x carries no cookie: there is no key %d", p.Echo, kid)
		return 0, false
	}
	hash = cookie.PRF(e.cookies.Keys[kid], cookie.Flow{
		Client: netip.AddrPortFrom(p.Client, p.ClientPort), VIP: netip.AddrPortFrom(p.VIP, p.Port),
	})
	id, valid := e.cookies.decode(hash, carried, kid)
	m, present := e.members[id]
	switch {
	case !valid:
		t.step("the echoed timestamp %#08x carries no cookie of this flow", p.Echo)
		return 0, false
	case !present || int(id) >= e.count:
		t.step("the echoed timestamp %#08x carries no cookie of this flow: %#04x would be that of member %d, which there is not", p.Echo, carried, id)
		return 0, false
	case !e.keeps(m):
		t.step("by cookie %#04x it is member %d's, which is down: another is chosen", carried, id)
		return 0, false
	}
	t.step("by cookie %#04x, key %d, it is member %d's", carried, kid, id)
	t.forward(id, m)
	return hash >> 16, true // as bpf/mux/forward.h: the lowest bits are the cookie's factor
}

// cookiesAt reads the keys that a policy word names.
func (v tablesView) cookiesAt(policy uint64) *cookieKeys {
	if policy>>muxPolicyShiftPOLICY_FLAGS_SHIFT&uint64(muxEndpointFlagENDPOINT_COOKIE) == 0 {
		return nil
	}
	return &cookieKeys{MuxCookie: cookieOf(&v.t.mem.cookieSets[policy>>muxPolicyShiftPOLICY_COOKIE_SHIFT-1]), clock: sharedClock()}
}

// cookieKeysOf are the keys of a wanted endpoint.
func cookieKeysOf(e MuxEndpoint) *cookieKeys {
	if e.Cookie == nil {
		return nil
	}
	return &cookieKeys{MuxCookie: *e.Cookie, clock: sharedClock()}
}
