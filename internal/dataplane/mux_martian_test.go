package dataplane

import (
	"net/netip"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/wire"
)

// martians are addresses that no client has, those of the fixtures' tunnel sources included; neighbours are those next to them.
var (
	martians = []string{
		"0.0.0.0", "0.255.255.255", "127.0.0.1", "127.255.255.255", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
		"::", "::1", "ff02::1", "ff0e::1", "::ffff:198.51.100.11", "::ffff:203.0.113.10",
		"100.64.0.0", "100.64.255.255", "fd53:6875:6e74::", "fd53:6875:6e74::ffff:ffff:ffff:ffff",
	}
	neighbours = []string{
		"1.0.0.0", "126.255.255.255", "128.0.0.1", "223.255.255.255", "::2", "::1:0:0:1", "1::1", "fe00::1", "::fffe:c633:640b", "::1:0:0",
		"100.63.255.255", "100.65.0.0", "fd53:6875:6e73:ffff::1", "fd53:6875:6e74:1::",
	}
)

// TestImpossibleSources: what comes from an address that no host has is dropped: by ring and by flow table, of both families, tagged and in fragments; neither is a ping
// answered nor an ICMP error forwarded. The addresses next to these ranges are clients like others.
func TestImpossibleSources(t *testing.T) {
	bad, good := martians, neighbours
	edge, flow := edgeFixture(t), newFlowFixture(t, flowServers(), sixEndpoint())
	for _, c := range []struct {
		sources []string
		tcp     string
	}{{bad, "bad_source"}, {good, "forwarded"}} {
		for _, s := range c.sources {
			src := netip.MustParseAddr(s)
			p, first := tcp4(80), piece4(7, 0, true, 53)
			if src.Is6() {
				p, first = tcp6(80), piece6(7, 0, true, 53)
			}
			p.Src, first.Src = src, src
			later := 14 + 24
			if src.Is6() {
				later = 14 + 40 + 8 + 4
			}
			frames := map[string][]byte{"segment": p.Frame(), "tagged": tagged(p.Frame(), 0x8100_0007), "fragment": longer(first.Frame(), later)}
			for name, frame := range frames {
				if got := edge.check(frame); got.reason != c.tcp {
					t.Errorf("%s from %v by ring: %s, expected %s", name, src, got.reason, c.tcp)
				}
			}
			if got := flow.check(p.Frame()); got.reason != c.tcp {
				t.Errorf("segment from %v by flow table: %s, expected %s", src, got.reason, c.tcp)
			}
			about, code := tcp4(80), [2]byte{3, 4}
			if src.Is6() {
				about, code = tcp6(80), [2]byte{1, 4}
			}
			told := errorAbout(answerTo(about), code[0], code[1], 60)
			told.Src = src
			if got := edge.check(told.Frame()); got.reason != c.tcp {
				t.Errorf("ICMP error from %v: %s, expected %s", src, got.reason, c.tcp)
			}
			want := map[string]string{"forwarded": "forwarded", "bad_source": "icmp_error_unknown"}[c.tcp]
			if got := edge.check(errorAbout(answerTo(p), code[0], code[1], 60).Frame()); got.reason != want {
				t.Errorf("ICMP error about a packet to %v: %s, expected %s", src, got.reason, want)
			}
			ping := p
			ping.Payload = wire.Echo{ID: 1}
			if got := edge.check(ping.Frame()); (got.reason == "echo_replied") != (c.tcp == "forwarded") {
				t.Errorf("ping from %v: %s", src, got.reason)
			}
		}
	}
	flow.checkFlows()
}

// TestImpossibleSourcesThatNameAMember: a valid cookie or connection id gets no packet from an address that no client has, or from a VIP, to a server: segments, with
// FIN, tagged and in fragments, of both families; and no connection is entered for it.
func TestImpossibleSourcesThatNameAMember(t *testing.T) {
	servers := cookieServers()
	for i := range servers {
		servers[i].Track = true
	}
	flow := newFlowFixture(t, servers...)
	set := quicKeys
	quic := newQUICFixture(t, set)
	six := quic.e
	six.Key.VIP, six.Members = muxVIP6, endpointOf(muxVIP6, lb.UDP, 443, "2001:db8:20:1::11", "2001:db8:20:2::11", "2001:db8:20:3::11").Members
	quic6 := newFlowFixture(t, six)
	own := []string{muxVIP4.String(), muxVIP6.String()}
	for _, c := range []struct {
		sources []string
		want    string
	}{{martians, "bad_source"}, {own, "bad_source"}, {neighbours, "forwarded"}} {
		for _, s := range c.sources {
			src := netip.MustParseAddr(s)
			segment := segment4
			if src.Is6() {
				segment = segment6
			}
			for name, flags := range map[string]uint8{"segment": wire.ACK, "segment with FIN": wire.ACK | wire.FIN} {
				p := segment(4000, flags)
				p.Src = src
				stamp := stampFor(p, testCookies, 0, 1)
				p = segment(4000, flags, usualOptions(stamp)...)
				p.Src = src
				before := flow.entries()
				for tagged, frame := range map[string][]byte{"": p.Frame(), ", tagged": tagged(p.Frame(), 0x8100_0007)} {
					if got := flow.check(frame); got.reason != c.want {
						t.Errorf("%s%s with a cookie from %v: %s, expected %s", name, tagged, src, got.reason, c.want)
					}
				}
				if after := flow.entries(); c.want != "forwarded" && after != before {
					t.Errorf("%s with a cookie from %v: %d flows are remembered, were %d", name, src, after, before)
				}
			}
			for name, datagram := range map[string][]byte{"short header": shortHeader(quic.id(1)), "long header": longHeader(quicHandshake, quic.id(1), []byte{1, 2, 3, 4})} {
				p, check := quicPacket(src, 4000, datagram), quic.check
				if src.Is6() {
					p.Dst, check = muxVIP6, quic6.check
				}
				if got := check(p.Frame()); got.reason != c.want {
					t.Errorf("%s from %v: %s, expected %s", name, src, got.reason, c.want)
				}
			}
		}
	}
	flow.checkFlows()
	quic.checkFlows()
	quic6.checkFlows()
}

// sixEndpoint is an IPv6 endpoint that remembers flows.
func sixEndpoint() MuxEndpoint {
	e := flowEndpoint(80, "2001:db8:20:1::11", "2001:db8:20:1::12")
	e.Key.VIP = muxVIP6
	return e
}

// TestFragmentShares: a VIP whose first fragments come too fast has those beyond its rate forwarded and not remembered; another VIP's are remembered all the same.
func TestFragmentShares(t *testing.T) {
	f := edgeFixture(t)
	limited := func(frame func(id int) []byte, n int) (count int) {
		for id := range n {
			before := f.reasonsNow()["fragment_limited"]
			if got := f.check(frame(id)); got.reason != "forwarded" {
				t.Fatalf("a first fragment: %s", got.reason)
			}
			count += int(f.reasonsNow()["fragment_limited"] - before)
		}
		return count
	}
	six := func(id int) []byte { return longer(piece6(uint32(id), 0, true, 53).Frame(), 14+40+8+4) }
	four := func(id int) []byte { return longer(piece4(uint16(id), 0, true, 53).Frame(), 14+24) }
	if n := limited(six, 1000); n != 1000-819 {
		t.Errorf("%d of 1,000 first fragments at once were limited, expected those beyond 819, a tenth of a second's", n)
	}
	if n := limited(four, 10); n != 0 {
		t.Errorf("%d first fragments of the other VIP were limited", n)
	}
	if got := f.check(piece4(3, 512, false, 0).Frame()); got.reason != "forwarded" {
		t.Errorf("a later fragment of the other VIP: %s", got.reason)
	}
	if got := f.check(piece6(999, 512, false, 0).Frame()); got.reason != "fragment" {
		t.Errorf("a later fragment whose first one was not remembered: %s", got.reason)
	}
}
