package lb

import (
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

// The functions of this file turn text into values. Their second result is empty, or says what is allowed.

var (
	decimal   = regexp.MustCompile(`^(0|[1-9][0-9]*)$`)
	portRange = regexp.MustCompile(`^[0-9]+-[0-9]+$`)
)

// ParsePort reads "1" to "65535".
func ParsePort(s string) (port uint16, allowed string) {
	if s == "*" || portRange.MatchString(s) {
		return 0, NotSupported + ", must be one port, 1 to 65535"
	}
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 || !decimal.MatchString(s) {
		return 0, allowedPort
	}
	return uint16(n), ""
}

// ParseProtocol reads "tcp" or "udp".
func ParseProtocol(s string) (p Protocol, allowed string) {
	switch s {
	case "tcp":
		return TCP, ""
	case "udp":
		return UDP, ""
	case "quic", "any":
		return 0, NotSupported + ", must be tcp or udp"
	}
	return 0, "must be tcp or udp"
}

// ParseAddr reads an IPv4 or IPv6 address in its text form. IPv4-mapped addresses and zones are refused.
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
		return netip.Prefix{}, "must be a prefix such as 203.0.113.0/24 or 2001:db8:f::/64"
	}
	return p, plainPrefix(p)
}

// plainAddr refuses the forms of an address that have a second spelling.
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

// addrText shows an address that may be absent.
func addrText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

const allowedPort = "must be 1 to 65535"

// anyOf lists choices: "must be a, b or c".
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
