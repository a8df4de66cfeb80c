package dataplane

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/plan"
)

// Addresses of the packet tests. host is the machine itself, dip a server behind it, lost an unreachable DIP.
const (
	client4, client6 = "198.51.100.11", "2001:db8:100::11"
	vip4, vip6       = "203.0.113.10", "2001:db8:f::10"
	host4, host6     = "10.20.1.1", "2001:db8:20:1::1"
	dip4, dip6       = "10.20.1.11", "2001:db8:20:1::11"
	lost4            = "10.66.0.1"
	narrow4          = "10.20.1.12"   // a server behind an MTU of 1280
	owned4           = "203.0.113.15" // a VIP on the host's own loopback
	source4, source6 = "100.64.3.7", "fd53:6875:6e74::a:b"
)

var tunnelSources = []netip.Prefix{netip.MustParsePrefix("100.64.0.0/16"), netip.MustParsePrefix("fd53:6875:6e74::/64")}

var hostEnvs atomic.Int32

// hostEnv is a Host on a veth of a namespace of its own.
type hostEnv struct {
	t         *testing.T
	namespace string
	dir       string
	ifindex   int
	host      *Host
	testClock bool
	flows     uint32 // size of the flow table
	timeBits  uint32 // of stamps, if not 0
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newHostEnv makes the namespace: uplink up0 with the host's addresses, vm0 towards the DIPs, forwarding on.
func newHostEnv(t *testing.T) *hostEnv {
	t.Helper()
	e := &hostEnv{t: t, flows: MinHostFlows, namespace: fmt.Sprintf("hostbpf-%d-%d", os.Getpid(), hostEnvs.Add(1))}
	must(t, netdev.CreateNamespace(e.namespace))
	t.Cleanup(func() { netdev.DeleteNamespace(e.namespace) })
	n, err := netdev.OpenNamespace(e.namespace)
	must(t, err)
	defer n.Close()
	must(t, n.SetUp("lo", true))
	for dev, mtu := range map[string]int{"up": 1500, "vm": 1500, "nm": 1280} {
		must(t, netdev.AddVeth(netdev.VethEnd{Namespace: n, Name: dev + "0"}, netdev.VethEnd{Namespace: n, Name: dev + "1"}, mtu))
	}
	must(t, n.AddRoute(netdev.Route{Destination: netip.MustParsePrefix(narrow4 + "/32"), Device: "nm0"}))
	must(t, n.AddAddress("lo", netip.MustParsePrefix(owned4+"/32")))
	for _, a := range []string{host4 + "/32", host6 + "/128"} {
		must(t, n.AddAddress("up0", netip.MustParsePrefix(a)))
	}
	for _, a := range []string{dip4 + "/32", dip6 + "/128"} {
		must(t, n.AddRoute(netdev.Route{Destination: netip.MustParsePrefix(a), Device: "vm0"}))
	}
	for _, a := range []string{"198.51.100.0/24", "203.0.113.0/24", "2001:db8:100::/64", "2001:db8:f::/64"} {
		must(t, n.AddRoute(netdev.Route{Destination: netip.MustParsePrefix(a), Device: "up0"}))
	}
	must(t, netdev.SetSysctls(e.namespace, []netdev.Sysctl{
		{Key: "net/ipv4/ip_forward", Value: "1"}, {Key: "net/ipv6/conf/all/forwarding", Value: "1"},
	}))
	must(t, netdev.In(e.namespace, func() error {
		if out, err := exec.Command("ip", "route", "add", "unreachable", lost4).CombinedOutput(); err != nil {
			return fmt.Errorf("add unreachable route: %w: %s", err, out)
		}
		i, err := net.InterfaceByName("up0")
		e.ifindex = i.Index
		return err
	}))
	e.dir = filepath.Join(bpffsRoot, "test-"+e.namespace)
	t.Cleanup(func() {
		must(t, DetachHost(e.dir))
		must(t, os.RemoveAll(e.dir)) // objects of others
	})
	e.open()
	return e
}

// open loads and attaches, as an agent does that starts.
func (e *hostEnv) open() {
	e.t.Helper()
	var err error
	must(e.t, netdev.In(e.namespace, func() error {
		e.host, err = OpenHost(HostOptions{Ifindex: e.ifindex, Dir: e.dir, Flows: e.flows, testClock: e.testClock, testTimeBits: e.timeBits})
		return err
	}))
	h := e.host
	e.t.Cleanup(func() { h.Close() })
}

// quiet takes the programs off the device, so that they see and count only what run gives them.
func (e *hostEnv) quiet() *hostEnv {
	e.t.Helper()
	for _, l := range e.host.links {
		must(e.t, l.Detach())
	}
	for _, l := range e.host.serve {
		must(e.t, l.Detach())
	}
	return e
}

func (e *hostEnv) apply(bindings ...plan.Binding) {
	e.t.Helper()
	must(e.t, e.host.Apply(HostState{TunnelSources: tunnelSources, MTU: 1500, Bindings: bindings}))
}

// route sends packets for an address out of a device.
func (e *hostEnv) route(addr, dev string) {
	e.t.Helper()
	n, err := netdev.OpenNamespace(e.namespace)
	must(e.t, err)
	defer n.Close()
	a := netip.MustParseAddr(addr)
	must(e.t, n.AddRoute(netdev.Route{Destination: netip.PrefixFrom(a, a.BitLen()), Device: dev}))
}

// skbContext is the beginning of struct __sk_buff.
type skbContext struct {
	_       [10]uint32
	Ifindex uint32
}

// run gives a frame of the uplink to a program and returns verdict and frame.
func (e *hostEnv) run(p *ebpf.Program, frame []byte) (int32, []byte) {
	e.t.Helper()
	return e.runOn(p, e.ifindex, frame)
}

// runOn gives a frame of a device to a program and returns verdict and frame.
func (e *hostEnv) runOn(p *ebpf.Program, ifindex int, frame []byte) (int32, []byte) {
	e.t.Helper()
	opts := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+2048), Context: skbContext{Ifindex: uint32(ifindex)}}
	var verdict uint32
	must(e.t, netdev.In(e.namespace, func() (err error) {
		verdict, err = p.Run(opts)
		return err
	}))
	return int32(verdict), opts.DataOut
}

// reasons are the counters that changed since the snapshot before.
func (e *hostEnv) reasons(before map[string]uint64) map[string]uint64 {
	e.t.Helper()
	c, err := e.host.Counters()
	must(e.t, err)
	diff := map[string]uint64{}
	for name, n := range c.Reasons {
		if d := n - before[name]; d != 0 {
			diff[name] = d
		}
	}
	return diff
}

// gue makes a binding one of GUE.
func gue(member uint16, b plan.Binding) plan.Binding {
	b.Encap, b.Member = lb.EncapGUE, member
	return b
}

// bind makes a binding VIP:80 (TCP) or VIP:53 (UDP) to port 8080 or 5353 of the DIP.
func bind(protocol lb.Protocol, vip, outer, dip string, rewrite bool) plan.Binding {
	b := plan.Binding{
		Key:   lb.EndpointKey{VIP: netip.MustParseAddr(vip), Protocol: protocol, Port: 80},
		Outer: netip.MustParseAddr(outer), DIP: netip.MustParseAddr(dip), DIPPort: 8080, Rewrite: rewrite,
	}
	if protocol == lb.UDP {
		b.Key.Port, b.DIPPort = 53, 5353
	}
	if !rewrite {
		b.DIPPort = b.Key.Port
	}
	return b
}

func mustPrefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// listen makes a server of the host's own namespace.
func (e *hostEnv) listen(addr string) {
	e.t.Helper()
	must(e.t, netdev.In(e.namespace, func() error {
		l, err := net.Listen("tcp4", addr)
		if err == nil {
			e.t.Cleanup(func() { l.Close() })
		}
		return err
	}))
}
