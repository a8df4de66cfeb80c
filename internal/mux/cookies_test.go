package mux

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// TestWantedCookie: what plans say of cookies, in the tables' words.
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
		{"of the mux's", plan.Endpoint{Affinity: lb.AffinityCookie, Cookie: lb.CookieSplitZ}, keys, nil},
		{"without keys yet", plan.Endpoint{Affinity: lb.AffinityCookie, Cookie: lb.CookieEVC}, nil, nil},
		{"one key", plan.Endpoint{Affinity: lb.AffinityCookie, Cookie: lb.CookieEVC}, keys[1:], &dataplane.MuxCookie{
			Keys: [2][16]byte{1: {7}}, Live: [2]bool{false, true},
		}},
		{"two keys", plan.Endpoint{Affinity: lb.AffinityCookie, Cookie: lb.CookieEVC}, keys, &dataplane.MuxCookie{
			Keys: [2][16]byte{{6}, {7}}, Live: [2]bool{true, true},
		}},
	} {
		if got := wantedCookie(c.of, c.keys); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, expected %+v", c.name, got, c.want)
		}
	}
}

// TestLingeringKeepsItsCookies: a VIP that left the plan is forwarded by its cookies as long as routers may send to it.
func TestLingeringKeepsItsCookies(t *testing.T) {
	vips := []netip.Addr{netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("203.0.113.11"), netip.MustParseAddr("203.0.113.12")}
	of := func(i int, epoch uint32) plan.CookieKeys {
		return plan.CookieKeys{VIP: vips[i], Keys: []plan.CookieKey{{Epoch: epoch}}, Mint: epoch}
	}
	before := plan.Plan{Cookies: []plan.CookieKeys{of(0, 1), of(1, 2), of(2, 3)}}
	l := lingering{until: map[netip.Addr]time.Time{vips[0]: {}, vips[2]: {}}}
	p := plan.Plan{Cookies: []plan.CookieKeys{of(1, 4), of(2, 5)}}
	l.keepCookies(&p, before)
	if want := []plan.CookieKeys{of(0, 1), of(1, 4), of(2, 5)}; !reflect.DeepEqual(p.Cookies, want) {
		t.Errorf("%+v, expected %+v", p.Cookies, want)
	}
	if got := plan.OtherCookies(before.Cookies, p.Cookies); !reflect.DeepEqual(got, vips[1:]) {
		t.Errorf("%v have other keys", got)
	}
	minted := append([]plan.CookieKeys{}, p.Cookies...)
	minted[0].Mint++
	if got := plan.OtherCookies(p.Cookies, minted); got != nil {
		t.Errorf("which key hosts stamp with made %v other", got)
	}
}
