package dataplane

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
)

// covers is what the program compares.
func (c cover) covers(a netip.Addr) bool {
	if a.Is4() {
		b := a.As4()
		return uint64(binary.NativeEndian.Uint32(b[:]))&(c.v4>>32) == c.v4&0xffffffff
	}
	b := a.As16()
	return binary.NativeEndian.Uint64(b[:])&c.mask6 == c.value6
}

// TestCover: every VIP is covered, without VIPs nothing is, and one VIP covers no neighbour.
func TestCover(t *testing.T) {
	r := seeded(t)
	if c := coverOf(nil); c.covers(muxVIP4) || c.covers(muxVIP6) || c.covers(netip.IPv4Unspecified()) || c.covers(netip.IPv6Unspecified()) {
		t.Error("something is covered without VIPs")
	}
	if c := coverOf([]netip.Addr{muxVIP4}); !c.covers(muxVIP4) || c.covers(muxVIP4.Next()) || c.covers(muxVIP6) {
		t.Error("one VIP covers more than itself")
	}
	for range 2000 {
		var vips []netip.Addr
		for range r.IntN(6) {
			vips = append(vips, randomAddr(r))
		}
		c := coverOf(vips)
		for _, v := range vips {
			if !c.covers(v) {
				t.Fatalf("%v of %v is not covered by %+v", v, vips, c)
			}
		}
	}
	wide := coverOf([]netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.3.9")})
	if !wide.covers(netip.MustParseAddr("10.0.2.2")) || wide.covers(netip.MustParseAddr("10.0.4.0")) {
		t.Errorf("cover of 10.0.0.1 and 10.0.3.9: %+v, must be 10.0.0.0/22", wide)
	}
}

// TestVIPsDoNotTalk: a packet from one VIP to another is refused, also after the VIPs changed and after an adoption's
// like; one from beside them is not.
func TestVIPsDoNotTalk(t *testing.T) {
	f := newMuxFixture(t)
	other, beside := netip.MustParseAddr("203.0.113.90"), netip.MustParseAddr("203.0.113.91")
	s := MuxState{RingKeys: testKeys, TunnelSources: sources, Endpoints: []MuxEndpoint{endpointOf(muxVIP4, lb.UDP, 53, "10.20.1.11")}}
	f.apply(s)
	f.setHops(hopsTo(s))
	from := func(a netip.Addr) string {
		t.Helper()
		p := udp4(53)
		p.Src = a
		return f.check(p.Frame()).reason
	}
	if a, b := from(muxVIP4), from(other); a != "bad_source" || b != "forwarded" {
		t.Errorf("one VIP: %s, %s", a, b)
	}
	two := s
	two.Endpoints = append(two.Endpoints[:1:1], endpointOf(other, lb.UDP, 53, "10.20.1.11"))
	f.apply(two)
	if a, b, c := from(muxVIP4), from(other), from(beside); a != "bad_source" || b != "bad_source" || c != "forwarded" {
		t.Errorf("two VIPs: %s, %s, %s", a, b, c)
	}
	f.apply(s)
	if got := from(other); got != "forwarded" {
		t.Errorf("the other VIP is gone, but packets from its address are %s", got)
	}
}
