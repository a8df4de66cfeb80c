package lab

import (
	"fmt"
	"net/netip"
)

// Prefixes of a lab (documentation prefixes of RFC 5737 and RFC 3849, and RFC 1918).
var (
	VIPs4 = netip.MustParsePrefix("203.0.113.0/24")
	VIPs6 = netip.MustParsePrefix("2001:db8:f::/64")
	// Clients4, Clients6, Muxes4, Muxes6, Managers4 are the LANs at the router.
	Clients4  = netip.MustParsePrefix("198.51.100.0/24")
	Clients6  = netip.MustParsePrefix("2001:db8:100::/64")
	Muxes4    = netip.MustParsePrefix("10.10.0.0/24")
	Muxes6    = netip.MustParsePrefix("2001:db8:10::/64")
	Managers4 = netip.MustParsePrefix("10.99.0.0/24")
	// NAT4 and NAT6 contain the source addresses of muxes to servers of path nat.
	NAT4 = netip.MustParsePrefix("10.40.0.0/24")
	NAT6 = netip.MustParsePrefix("2001:db8:40::/64")
	// Hosts4 and Hosts6 contain the subnets of all hosts.
	Hosts4 = netip.MustParsePrefix("10.20.0.0/16")
	Hosts6 = netip.MustParsePrefix("2001:db8:20::/48")
)

// Autonomous systems of a lab.
const (
	RouterASN = 65000
	MuxASN    = 65010
)

// Ports of a lab's servers, of QUIC servers if there are any, and of its managers: their API, and
// the peer port of the store's members.
const (
	ServerPort  = 8080
	EchoPort    = 7
	QUICPort    = 4433
	ManagerPort = 8443
	PeerPort    = 2380
)

// Pair is an address of each family with its on-link prefix. V6 is the zero value without IPv6.
type Pair struct {
	V4, V6 netip.Prefix
}

// The numbers in IPv6 addresses below are written in decimal digits: client 1 is ::11 and no ::1a
// ever appears.

// ClientAddresses returns the addresses of client i, from 1.
func ClientAddresses(i int) Pair {
	return Pair{pfx("198.51.100.%d/24", 10+i), pfx("2001:db8:100::%d/64", 10+i)}
}

// MuxAddresses returns the addresses of mux i, from 1.
func MuxAddresses(i int) Pair {
	return Pair{pfx("10.10.0.%d/24", 10+i), pfx("2001:db8:10::%d/64", 10+i)}
}

// NATAddresses returns the source addresses of mux i, from 1, to servers of path nat.
func NATAddresses(i int) Pair {
	return Pair{pfx("10.40.0.%d/32", 10+i), pfx("2001:db8:40::%d/128", 10+i)}
}

// HostAddresses returns the underlay addresses of host i, from 1.
func HostAddresses(i int) Pair {
	return Pair{pfx("10.20.%d.1/24", i), pfx("2001:db8:20:%d::1/64", i)}
}

// VMAddresses returns the DIPs of VM j on host i, both from 1. A VM is routed, so the prefixes are
// /32 and /128.
func VMAddresses(i, j int) Pair {
	return Pair{pfx("10.20.%d.%d/32", i, 10+j), pfx("2001:db8:20:%d::%d/128", i, 10+j)}
}

// ManagerAddress returns the address of manager i, from 1.
func ManagerAddress(i int) Pair { return Pair{V4: pfx("10.99.0.%d/24", 10+i)} }

// The router's addresses on each of its links.
func routerOnClients() Pair  { return Pair{pfx("198.51.100.1/24"), pfx("2001:db8:100::1/64")} }
func routerOnMuxes() Pair    { return Pair{pfx("10.10.0.1/24"), pfx("2001:db8:10::1/64")} }
func routerOnManagers() Pair { return Pair{V4: pfx("10.99.0.1/24")} }
func routerOnHost(i int) Pair {
	return Pair{pfx("10.20.%d.254/24", i), pfx("2001:db8:20:%d::254/64", i)}
}

// VIPAddresses returns the n-th VIPs: 203.0.113.n and 2001:db8:f::n.
func VIPAddresses(n int) (v4, v6 netip.Addr) {
	return pfx("203.0.113.%d/32", n).Addr(), pfx("2001:db8:f::%d/128", n).Addr()
}

func pfx(format string, args ...any) netip.Prefix {
	return netip.MustParsePrefix(fmt.Sprintf(format, args...))
}
