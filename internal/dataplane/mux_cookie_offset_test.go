package dataplane

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/cookie"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/wire"
)

// offsetStamp is a timestamp of form CO, made some milliseconds ago, that carries the cookie of a member for the flow of a client's packet.
func offsetStamp(p wire.Packet, keys MuxCookie, kid uint8, id uint16, ago uint32) uint32 {
	l4 := p.Payload.(wire.TCP)
	prf := cookie.PRF(keys.Keys[kid], cookie.Flow{
		Client: netip.AddrPortFrom(p.Src, l4.SrcPort), VIP: netip.AddrPortFrom(p.Dst, l4.DstPort),
	})
	return cookie.PlaceOffset(sharedClock()-ago, cookie.EncodeShort(prf, kid, id, testCookies.secret(kid)))
}

// TestCookiesInServersClocks: muxes read the cookie whatever the echo's age, by their own clock; what is too old or another's is none.
func TestCookiesInServersClocks(t *testing.T) {
	bothFamilies(t, func(t *testing.T, segment func(uint16, uint8, ...byte) wire.Packet) {
		servers := cookieServers()
		for i := range servers {
			servers[i].Cookie.Form = CookieCO
		}
		f := newFlowFixture(t, servers...)
		old, told := 0, 0
		for from := uint16(1); from <= 50; from++ {
			for id := range uint16(3) {
				kid, p := uint8(from%2), segment(from, wire.ACK)
				for _, ago := range []uint32{0, 1, 1000, 500_000, 1_040_000} {
					stamp := offsetStamp(p, testCookies, kid, id, ago)
					got, counted := f.noted(segment(from, wire.ACK, usualOptions(stamp)...))
					if got.member == nil || got.member.Member != id || len(counted) > 0 {
						t.Fatalf("port %d: an echo of member %d, %d ms old: %+v, counted %v", from, id, ago, got, counted)
					}
					trace, err := f.mux.Trace(Packet{
						Client: p.Src, VIP: p.Dst, Protocol: lb.TCP, ClientPort: from, Port: 80, Segment: SegmentLater, Echo: stamp,
					})
					must(t, err)
					if trace.Member != id || !strings.Contains(strings.Join(trace.Steps, "\n"), "by cookie") {
						t.Fatalf("port %d: the trace says member %d: %q", from, trace.Member, trace.Steps)
					}
				}
			}
		}
		if n := f.entries(); n > 0 {
			t.Errorf("%d flows are remembered", n)
		}
		// 2^20 ms later an echo names another cookie, which reads as none seven times of eight.
		for from := uint16(1); from <= 50; from++ {
			stamp := offsetStamp(segment(from, wire.ACK), testCookies, uint8(from%2), 1, 1<<20+5000)
			_, counted := f.noted(segment(from, wire.ACK, usualOptions(stamp)...))
			if old++; slices.Contains(counted, "cookie_invalid") {
				told++
			}
		}
		if told < old*3/4 {
			t.Errorf("of %d echoes that are too old %d were told", old, told)
		}
	})
	bad := cookieEndpoint(muxVIP4, 80, "10.20.1.11")
	bad.Cookie.Form, bad.Members[0].ID, bad.Ring = CookieCO, 2039, slices.Repeat([]uint16{2039}, len(bad.Ring))
	if err := checkCookie(bad); err == nil || !strings.Contains(err.Error(), "ids must be at most 2038") {
		t.Errorf("member 2039: %v", err)
	}
}
