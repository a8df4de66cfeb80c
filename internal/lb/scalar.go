package lb

import (
	"fmt"
	"math/bits"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

// The functions of this file parse text into values. Their second result is empty, or the fault.

var decimal = regexp.MustCompile(`^(0|[1-9][0-9]*)$`)

// ParsePort reads "1" to "65535".
func ParsePort(s string) (port uint16, allowed string) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 || !decimal.MatchString(s) {
		return 0, allowedPort
	}
	return uint16(n), ""
}

// ParsePorts reads the ports of an endpoint: one port, a range "8000-8100", or "*" for all. The
// results are those of EndpointKey.
func ParsePorts(s string) (port, end uint16, allowed string) {
	if s == "*" {
		return 0, AllPorts, ""
	}
	low, high, isRange := strings.Cut(s, "-")
	if !isRange {
		if port, allowed = ParsePort(s); allowed != "" {
			return 0, 0, allowedPorts
		}
		return port, 0, ""
	}
	port, wrongLow := ParsePort(low)
	end, wrongHigh := ParsePort(high)
	if wrongLow != "" || wrongHigh != "" || port >= end {
		return 0, 0, allowedPorts
	}
	return port, end, ""
}

// PortBlock returns the size of the largest block of ports that starts at `at` and ends before end.
// The alignment of its start and the number of ports left limit it.
func PortBlock(at, end uint32) uint32 {
	return uint32(1) << min(bits.TrailingZeros32(at|1<<16), bits.Len32(end-at)-1)
}

// PortBlocks returns the number of such blocks in the ports first to last.
func PortBlocks(first, last uint16) (n int) {
	for at, end := uint32(first), uint32(last)+1; at < end; n++ {
		at += PortBlock(at, end)
	}
	return n
}

// PortsText returns the text that ParsePorts reads.
func PortsText(port, end uint16) string {
	switch {
	case end == 0:
		return strconv.Itoa(int(port))
	case port == 0:
		return "*"
	}
	return fmt.Sprintf("%d-%d", port, end)
}

// ParseProtocol reads "tcp", "udp" or "any".
func ParseProtocol(s string) (p Protocol, allowed string) {
	switch s {
	case "tcp":
		return TCP, ""
	case "udp":
		return UDP, ""
	case "any":
		return AnyProtocol, ""
	}
	return 0, allowedProtocol
}

// Transport is the written protocol of an endpoint: QUIC is UDP in packets and keys.
type Transport struct {
	Protocol Protocol
	QUIC     bool
}

// ParseTransport reads the protocols of ParseProtocol, and "quic".
func ParseTransport(s string) (t Transport, allowed string) {
	if s == "quic" {
		return Transport{Protocol: UDP, QUIC: true}, ""
	}
	if t.Protocol, allowed = ParseProtocol(s); allowed != "" {
		allowed = allowedTransport
	}
	return t, allowed
}

// ProtocolName returns the written protocol of the endpoint: "quic" although Protocol is UDP.
func (e *Endpoint) ProtocolName() string {
	if e.QUIC != nil && e.Protocol == UDP {
		return "quic"
	}
	return e.Protocol.String()
}

// ParseAddr reads an IPv4 or IPv6 address in its text form. IPv4-mapped addresses and zones are
// refused.
func ParseAddr(s string) (a netip.Addr, allowed string) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Addr{}, "must be an IPv4 or IPv6 address"
	}
	return a, plainAddr(a)
}

// ParsePrefix reads an IPv4 or IPv6 prefix whose bits after the length are zero.
func ParsePrefix(s string) (p netip.Prefix, allowed string) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, allowedPrefix
	}
	return p, plainPrefix(p)
}

// plainAddr refuses addresses with a second spelling.
func plainAddr(a netip.Addr) string {
	switch {
	case a.Is4In6():
		return "must not be IPv4-mapped, write " + a.Unmap().String()
	case a.Zone() != "":
		return "must not have a zone"
	}
	return ""
}

// plainPrefix refuses prefixes with a second spelling.
func plainPrefix(p netip.Prefix) string {
	switch {
	case p.Addr().Is4In6():
		return "must not be IPv4-mapped"
	case p != p.Masked():
		return fmt.Sprintf("must have no bits set after its length, write %s", p.Masked())
	}
	return ""
}

// addrText returns the text of an address; empty if it is not set.
func addrText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

const (
	allowedPrefix    = "must be a prefix such as 203.0.113.0/24 or 2001:db8:f::/64"
	allowedPort      = "must be 1 to 65535"
	allowedPorts     = `must be 1 to 65535, a range such as "8000-8100", or "*"`
	allowedProtocol  = "must be tcp, udp or any"
	allowedTransport = "must be tcp, udp, quic or any"
)

// AllowedKind lists the kinds.
var AllowedKind = anyOf(KindNames()...)

// KindNames returns the kinds as strings.
func KindNames() (out []string) {
	for _, k := range Kinds {
		out = append(out, string(k))
	}
	return out
}

// anyOf joins choices: "must be a, b or c".
func anyOf(choices ...string) string {
	switch len(choices) {
	case 0:
		return "must be left out"
	case 1:
		return "must be " + choices[0]
	}
	last := len(choices) - 1
	return "must be " + strings.Join(choices[:last], ", ") + " or " + choices[last]
}

// words joins at least two texts: "a, b and c".
func words(of ...string) string {
	last := len(of) - 1
	return strings.Join(of[:last], ", ") + " and " + of[last]
}
