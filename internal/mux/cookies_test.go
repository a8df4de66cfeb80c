package mux

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// TestWantedCookie converts the cookie settings of plans to the tables' form.
func TestWantedCookie(t *testing.T) {
	keys := []plan.CookieKey{{Epoch: 6, Key: [16]byte{6}}, {Epoch: 7, Key: [16]byte{7}}}
	for _, c := range []struct {
		name string
		of   plan.Endpoint
		keys []plan.CookieKey
		want *dataplane.MuxCookie
	}{
		{"of flows", plan.Endpoint{Affinity: lb.AffinityFlow}, keys, nil},
		{"of QUIC", plan.Endpoint{Affinity: lb.AffinityCookie, QUIC: &lb.QUIC{Format: lb.QUICLB}}, keys, nil},
		{"in the server's clock", plan.Endpoint{Affinity: lb.AffinityCookie, Cookie: lb.CookieCO}, keys[:1], &dataplane.MuxCookie{
			Keys: [2][16]byte{{6}}, Live: [2]bool{true}, Form: dataplane.CookieCO,
		}},
		{"of the mux's", plan.Endpoint{Affinity: lb.AffinityCookie, Cookie: lb.CookieSplitZ, NAT: true}, keys, &dataplane.MuxCookie{
			Keys: [2][16]byte{{6}, {7}}, Live: [2]bool{true, true}, Form: dataplane.CookieSplitZ, Mint: 1,
		}},
		{"of the mux's, with the old one", plan.Endpoint{Affinity: lb.AffinityCookie, Cookie: lb.CookieSplitR, NAT: true}, keys, &dataplane.MuxCookie{
			Keys: [2][16]byte{{6}, {7}}, Live: [2]bool{true, true}, Form: dataplane.CookieSplitR,
		}},
		{"without keys yet", plan.Endpoint{Affinity: lb.AffinityCookie, Cookie: lb.CookieEVC}, nil, nil},
		{"one key", plan.Endpoint{Affinity: lb.AffinityCookie, Cookie: lb.CookieEVC}, keys[1:], &dataplane.MuxCookie{
			Keys: [2][16]byte{1: {7}}, Live: [2]bool{false, true},
		}},
		{"two keys", plan.Endpoint{Affinity: lb.AffinityCookie, Cookie: lb.CookieEVC}, keys, &dataplane.MuxCookie{
			Keys: [2][16]byte{{6}, {7}}, Live: [2]bool{true, true},
		}},
	} {
		mint := uint32(7)
		if strings.Contains(c.name, "old one") {
			mint = 6
		}
		if got := wantedCookie(c.of, plan.CookieKeys{Keys: c.keys, Mint: mint}); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, expected %+v", c.name, got, c.want)
		}
	}
}

// TestLingeringKeepsItsCookies: a VIP that left the plan is forwarded by its cookies during its
// grace period.
func TestLingeringKeepsItsCookies(t *testing.T) {
	vips := []netip.Addr{netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("203.0.113.11"), netip.MustParseAddr("203.0.113.12")}
	of := func(i int, epoch uint32) plan.CookieKeys {
		return plan.CookieKeys{VIP: vips[i], Keys: []plan.CookieKey{{Epoch: epoch}}, Mint: epoch}
	}
	before := plan.Plan{Cookies: []plan.CookieKeys{of(0, 1), of(1, 2), of(2, 3)}}
	l := lingering{until: map[netip.Addr]time.Time{vips[0]: {}, vips[2]: {}}}
	p := plan.Plan{Cookies: []plan.CookieKeys{of(1, 4), of(2, 5)}}
	l.keepCookies(&p, before)
	never := func(netip.Addr) bool { return false }
	if want := []plan.CookieKeys{of(0, 1), of(1, 4), of(2, 5)}; !reflect.DeepEqual(p.Cookies, want) {
		t.Errorf("%+v, expected %+v", p.Cookies, want)
	}
	if got := plan.OtherCookies(before.Cookies, p.Cookies, never); !reflect.DeepEqual(got, vips[1:]) {
		t.Errorf("%v have other keys", got)
	}
	minted := append([]plan.CookieKeys{}, p.Cookies...)
	minted[0].Mint++
	if got := plan.OtherCookies(p.Cookies, minted, never); got != nil {
		t.Errorf("which key hosts stamp with made %v other", got)
	}
	stamped := func(vip netip.Addr) bool { return vip == minted[0].VIP }
	if got := plan.OtherCookies(p.Cookies, minted, stamped); !reflect.DeepEqual(got, []netip.Addr{minted[0].VIP}) {
		t.Errorf("which key the mux stamps with made %v other", got)
	}
}
