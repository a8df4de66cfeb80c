package dataplane

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/cookie"
	"github.com/shuntlb/shunt/internal/lb"
)

// natEndpoint is an endpoint of path nat with one server on port 8080 at each address.
func natEndpoint(vip netip.Addr, protocol lb.Protocol, port uint16, servers ...string) MuxEndpoint {
	e := endpointOf(vip, protocol, port, servers...)
	e.NAT, e.Affinity = true, AffinityFlow
	for i := range e.Members {
		e.Members[i].Port = 8080
	}
	return e
}

func TestNATEndpointsThatAreRefused(t *testing.T) {
	for _, c := range []struct {
		want  string
		spoil func(*MuxEndpoint)
	}{
		{"", func(*MuxEndpoint) {}},
		{"", func(e *MuxEndpoint) { e.Members[1].Outer, e.Members[1].Port = e.Members[0].Outer, 8081 }},
		{"", func(e *MuxEndpoint) {
			e.Affinity, e.Cookie = AffinityCookie, &MuxCookie{Live: [2]bool{true, false}, Form: CookieSplitR}
		}},
		{"must not be shared", func(e *MuxEndpoint) { e.Members[1].Outer = e.Members[0].Outer }},
		{"has no port", func(e *MuxEndpoint) { e.Members[1].Port = 0 }},
		{"must be of the family", func(e *MuxEndpoint) { e.Members[1].Outer = netip.MustParseAddr("2001:db8::1") }},
		{"must be tcp or udp", func(e *MuxEndpoint) { e.Key.Protocol, e.Key.Port, e.Key.PortEnd = lb.AnyProtocol, 0, 65535 }},
		{"not with one packet", func(e *MuxEndpoint) { e.Key.Protocol, e.OnePacket = lb.UDP, true }},
		{"not with one packet", func(e *MuxEndpoint) { e.Fragments3Tuple = true }},
		{"not encapsulated", func(e *MuxEndpoint) { e.Encap = EncapGUE }},
		{"must be split-r or split-z", func(e *MuxEndpoint) { e.Affinity, e.Cookie = AffinityCookie, &MuxCookie{Live: [2]bool{true, true}} }},
		{"does not count", func(e *MuxEndpoint) {
			e.Affinity, e.Cookie = AffinityCookie, &MuxCookie{Live: [2]bool{true, false}, Form: CookieSplitZ, Mint: 1}
		}},
		{"must have path nat", func(e *MuxEndpoint) {
			e.NAT, e.Affinity, e.Cookie = false, AffinityCookie, &MuxCookie{Live: [2]bool{true, true}, Form: CookieSplitZ}
		}},
		{fmt.Sprintf("ids must be at most %d", cookie.MaxShortID), func(e *MuxEndpoint) {
			e.Members[1].ID, e.Ring = cookie.MaxShortID+1, nil
			e.Affinity, e.Cookie = AffinityCookie, &MuxCookie{Live: [2]bool{true, true}, Form: CookieSplitZ}
		}},
	} {
		e := natEndpoint(muxVIP4, lb.TCP, 80, "10.20.1.11", "10.20.2.11")
		c.spoil(&e)
		err := checkEndpoint(e)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v: want %q", e, err, c.want)
		}
	}
}

func TestNATAddressesThatAreRefused(t *testing.T) {
	four, six := netip.MustParseAddr("10.10.0.211"), netip.MustParseAddr("2001:db8:10::d3")
	many := make([]NATAddress, MaxNATAddresses+1)
	for i := range many {
		many[i] = NATAddress{numbered(i + 1), 1024, 65535}
	}
	for _, c := range []struct {
		want      string
		addresses []NATAddress
	}{
		{"", nil},
		{"", []NATAddress{{four, 1024, 65535}, {six, 7, 7}}},
		{"", many[:MaxNATAddresses]},
		{"at most 16", many},
		{"given twice", []NATAddress{{four, 1024, 2047}, {four, 2048, 4095}}},
		{"must be a range", []NATAddress{{four, 0, 65535}}},
		{"must be a range", []NATAddress{{four, 2000, 1999}}},
		{"must be a unicast", []NATAddress{{netip.Addr{}, 1, 2}}},
		{"must be a unicast", []NATAddress{{netip.MustParseAddr("::ffff:10.0.0.1"), 1, 2}}},
		{"must be a unicast", []NATAddress{{netip.MustParseAddr("224.0.0.1"), 1, 2}}},
	} {
		err := checkNATAddresses(c.addresses)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%v: %v: want %q", c.addresses, err, c.want)
		}
	}
}
