package host

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/dataplane/encap"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/plan"
)

// Addresses of the traffic tests: a client, a host with its uplink, a server behind it.
const (
	client4, client6 = "198.51.100.11", "2001:db8:100::11"
	router4, router6 = "198.51.100.1", "2001:db8:100::1" // of the uplink, on the client's link
	host4, host6     = "10.20.1.1", "2001:db8:20:1::1"
	dip4, dip6       = "10.20.1.11", "2001:db8:20:1::11"
	gateway4         = "10.20.1.254" // of the host, towards the server
	gateway6         = "2001:db8:20:1::254"
	source4, source6 = "100.64.3.7", "fd53:6875:6e74::a:b"
)

// route is a VIP, its tunnel and its server.
type route struct {
	name            string
	vip, outer, dip string
	rewrite         bool
	mss             int    // the largest that fits the tunnel
	member          uint16 // with GUE; 0 is IPIP
	ports           string // "80", "70-90" or "any"
}

var routes = []route{
	{"4in4", "203.0.113.10", dip4, dip4, true, 1440, 0, "80"},
	{"6in6", "2001:db8:f::10", dip6, dip6, true, 1400, 0, "80"},
	{"4in6", "203.0.113.20", host6, dip4, true, 1420, 0, "80"},
	{"6in4", "2001:db8:f::20", host4, dip6, true, 1420, 0, "80"},
	{"host itself 4", "203.0.113.11", host4, host4, true, 1440, 0, "80"},
	{"host itself 6", "2001:db8:f::11", host6, host6, true, 1400, 0, "80"},
	{"rewrite none 4", "203.0.113.12", dip4, dip4, false, 1440, 0, "80"},
	{"rewrite none 6", "2001:db8:f::12", dip6, dip6, false, 1400, 0, "80"},
	{"second VIP", "203.0.113.77", dip4, dip4, true, 1440, 0, "80"},
	{"GUE 4in4", "203.0.113.30", host4, dip4, true, 1416, 1, "80"},
	{"GUE 6in6", "2001:db8:f::30", host6, dip6, true, 1376, 2, "80"},
	{"GUE 4in6", "203.0.113.31", host6, dip4, true, 1396, 3, "80"},
	{"GUE 6in4", "2001:db8:f::31", host4, dip6, true, 1396, 4, "80"},
	{"range", "203.0.113.32", dip4, dip4, true, 1440, 0, "70-90"},
	{"any, rewrite none 4", "203.0.113.33", host4, dip4, false, 1416, 5, "any"},
	{"any, rewrite none 6", "2001:db8:f::33", dip6, dip6, false, 1400, 0, "any"},
	{"any, rewrite host", "2001:db8:f::34", host6, dip6, true, 1376, 6, "any"},
}

const (
	vipPort    = 80
	serverPort = 8080
)

// testPlan returns a plan with the bindings of all routes, for an underlay of this MTU.
func testPlan(mtu uint32) plan.Plan {
	p := plan.Plan{Revision: 1, MTU: mtu, TunnelSources: []netip.Prefix{
		netip.MustParsePrefix("100.64.0.0/16"), netip.MustParsePrefix("fd53:6875:6e74::/64")}}
	for _, r := range routes {
		p.Bindings = append(p.Bindings, r.bindings()...)
	}
	return p
}

// bindings returns those of TCP and UDP, or the one of all protocols.
func (r route) bindings() []plan.Binding {
	b := plan.Binding{
		Key:   lb.EndpointKey{VIP: netip.MustParseAddr(r.vip), Protocol: lb.TCP, Port: vipPort},
		Outer: netip.MustParseAddr(r.outer), DIP: netip.MustParseAddr(r.dip), DIPPort: serverPort, Rewrite: r.rewrite,
	}
	if r.member != 0 {
		b.Member, b.Encap = r.member, lb.EncapGUE
	}
	switch {
	case r.ports == "any":
		b.Key.Protocol, b.Key.Port, b.Key.PortEnd, b.DIPPort = lb.AnyProtocol, 0, 65535, 0
		return []plan.Binding{b}
	case r.ports != "80":
		b.Key.Port, b.Key.PortEnd, b.DIPPort = 70, 90, 0
	case !r.rewrite:
		b.DIPPort = vipPort
	}
	udp := b
	udp.Key.Protocol = lb.UDP
	return []plan.Binding{b, udp}
}

var nets atomic.Int32

// testNet is client c0 - up0 host vm0 - v0 server. The client's packets to VIPs are tunnelled as by
// a mux.
type testNet struct {
	t                    *testing.T
	client, host, server string
	dir                  string // of pins
	mtu                  int    // of all links
	unguard              func() // stops the guarded agent; nil: there is none
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// sweepNets removes the namespaces and pins of test processes that were killed.
var sweepNets = sync.OnceFunc(func() {
	left, _ := filepath.Glob("/run/netns/hostnet-*")
	for _, path := range left {
		name := filepath.Base(path)
		pid, _, _ := strings.Cut(strings.TrimPrefix(name, "hostnet-"), "-")
		if _, err := os.Stat("/proc/" + pid); !errors.Is(err, os.ErrNotExist) {
			continue // still running
		}
		if strings.HasSuffix(name, "-host") {
			_ = dataplane.DetachHost("/sys/fs/bpf/test-" + name)
		}
		_ = netdev.DeleteNamespace(name)
	}
})

func newTestNet(t *testing.T, mtu int) *testNet {
	t.Helper()
	sweepNets()
	base := fmt.Sprintf("hostnet-%d-%d-", os.Getpid(), nets.Add(1))
	n := &testNet{t: t, client: base + "client", host: base + "host", server: base + "server", dir: "/sys/fs/bpf/test-" + base + "host", mtu: mtu}
	client, host, server := n.open(n.client), n.open(n.host), n.open(n.server)
	check(t, netdev.AddVeth(netdev.VethEnd{Namespace: client, Name: "c0"}, netdev.VethEnd{Namespace: host, Name: "up0"}, mtu))
	check(t, netdev.AddVeth(netdev.VethEnd{Namespace: host, Name: "vm0"}, netdev.VethEnd{Namespace: server, Name: "v0"}, mtu))

	n.address(client, "c0", client4+"/24", client6+"/64")
	n.address(host, "up0", router4+"/24", router6+"/64", host4+"/32", host6+"/128")
	n.address(host, "vm0", gateway4+"/32", gateway6+"/128")
	n.address(server, "v0", dip4+"/32", dip6+"/128")
	for _, r := range routes {
		if !r.rewrite {
			a := netip.MustParseAddr(r.vip)
			check(t, server.AddAddress("lo", netip.PrefixFrom(a, a.BitLen())))
		}
	}
	n.route(client, "c0", router4, "203.0.113.0/24", "10.20.1.0/24")
	n.route(client, "c0", router6, "2001:db8:f::/64", "2001:db8:20:1::/64")
	n.route(host, "vm0", "", dip4+"/32", dip6+"/128")
	n.route(server, "v0", "", gateway4+"/32", gateway6+"/128")
	n.route(server, "v0", gateway4, "0.0.0.0/0")
	n.route(server, "v0", gateway6, "::/0")
	check(t, netdev.SetSysctls(n.host, []netdev.Sysctl{
		{Key: "net/ipv4/ip_forward", Value: "1"}, {Key: "net/ipv6/conf/all/forwarding", Value: "1"}}))
	n.tunnelVIPs()
	t.Cleanup(func() { check(t, dataplane.DetachHost(n.dir)) })
	return n
}

func (n *testNet) open(name string) *netdev.Namespace {
	n.t.Helper()
	check(n.t, netdev.CreateNamespace(name))
	n.t.Cleanup(func() { netdev.DeleteNamespace(name) })
	// Without duplicate address detection of link-local addresses neighbours are resolved
	// immediately.
	check(n.t, netdev.SetSysctls(name, []netdev.Sysctl{
		{Key: "net/ipv6/conf/default/accept_dad", Value: "0"}, {Key: "net/ipv6/conf/default/dad_transmits", Value: "0"}}))
	ns, err := netdev.OpenNamespace(name)
	check(n.t, err)
	n.t.Cleanup(ns.Close)
	check(n.t, ns.SetUp("lo", true))
	return ns
}

func (n *testNet) address(ns *netdev.Namespace, dev string, prefixes ...string) {
	n.t.Helper()
	for _, p := range prefixes {
		check(n.t, ns.AddAddress(dev, netip.MustParsePrefix(p)))
	}
}

func (n *testNet) route(ns *netdev.Namespace, dev, via string, prefixes ...string) {
	n.t.Helper()
	for _, p := range prefixes {
		r := netdev.Route{Destination: netip.MustParsePrefix(p), Device: dev}
		if via != "" {
			r.Via = netip.MustParseAddr(via)
		}
		check(n.t, ns.AddRoute(r))
	}
}

// tunnelVIPs attaches the replacement for a mux to the client's device.
func (n *testNet) tunnelVIPs() {
	n.t.Helper()
	tunnels := map[netip.Addr]encap.Tunnel{}
	for _, r := range routes {
		tunnel := encap.Tunnel{Source: netip.MustParseAddr(source4), Destination: netip.MustParseAddr(r.outer), Member: plan.NoMember}
		if r.member != 0 {
			tunnel.Member = r.member
		}
		if tunnel.Destination.Is6() {
			tunnel.Source = netip.MustParseAddr(source6)
		}
		tunnels[netip.MustParseAddr(r.vip)] = tunnel
	}
	check(n.t, netdev.In(n.client, func() error {
		e, err := encap.Attach(ifindex(n.t, "c0"), tunnels)
		if err == nil {
			n.t.Cleanup(func() { e.Close() })
		}
		return err
	}))
}

func ifindex(t *testing.T, name string) int {
	t.Helper()
	i, err := net.InterfaceByName(name)
	check(t, err)
	return i.Index
}

// attach opens the data plane and applies the plan.
func (n *testNet) attach() *dataplane.Host {
	n.t.Helper()
	h, err := openTables(n.host, n.dir, uint32(n.mtu))
	check(n.t, err)
	n.t.Cleanup(func() { h.Close() })
	return h
}

// openTables does the work of an agent's start, in the host's namespace.
func openTables(namespace, dir string, mtu uint32) (h *dataplane.Host, err error) {
	err = netdev.In(namespace, func() error {
		dev, err := netdev.FindInterface("up0")
		if err != nil {
			return err
		}
		if h, err = dataplane.OpenHost(dataplane.HostOptions{Ifindex: dev.Index, Dir: filepath.Clean(dir)}); err != nil {
			return err
		}
		return New(h, thisMachine("up0"), &prober{}, clock.System{}, nil).Apply(nil, testPlan(mtu))
	})
	return h, err
}

// offloads sets transmit checksums (and with them GSO) and GRO of a device.
func (n *testNet) offloads(namespace, dev string, tx, gro bool) {
	n.t.Helper()
	ns, err := netdev.OpenNamespace(namespace)
	check(n.t, err)
	defer ns.Close()
	check(n.t, ns.SetOffload(dev, netdev.OffloadTxChecksum, tx))
	check(n.t, ns.SetOffload(dev, netdev.OffloadGRO, gro))
}
