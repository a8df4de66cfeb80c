package host

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/netdev"
)

// Another machine behind the host, without a server.
const near4, near6 = "10.20.1.21", "2001:db8:20:1::21"

// addNear adds another machine behind the host. Packets to VIPs from the host's side are routed to
// the client's namespace, which tunnels them like all others. Strict reverse path filtering is on
// for the host and the machines behind it.
func (n *testNet) addNear() (near string) {
	n.t.Helper()
	near = strings.TrimSuffix(n.client, "client") + "near"
	ns := n.open(near)
	host, err := netdev.OpenNamespace(n.host)
	check(n.t, err)
	defer host.Close()
	check(n.t, netdev.AddVeth(netdev.VethEnd{Namespace: host, Name: "vm1"}, netdev.VethEnd{Namespace: ns, Name: "v1"}, n.mtu))
	n.address(ns, "v1", near4+"/32", near6+"/128")
	n.route(host, "vm1", "", near4+"/32", near6+"/128")
	check(n.t, host.AddAddress("vm1", netip.MustParsePrefix("fe80::1/64")))
	n.route(ns, "v1", gateway4, "0.0.0.0/0")
	n.route(ns, "v1", "fe80::1", "::/0")
	n.route(host, "up0", client4, "203.0.113.0/24")
	n.route(host, "up0", client6, "2001:db8:f::/64")
	check(n.t, netdev.SetSysctls(n.client, []netdev.Sysctl{
		{Key: "net/ipv4/ip_forward", Value: "1"}, {Key: "net/ipv6/conf/all/forwarding", Value: "1"},
		{Key: "net/ipv4/conf/all/send_redirects", Value: "0"}, {Key: "net/ipv4/conf/c0/send_redirects", Value: "0"}}))
	for _, namespace := range []string{n.host, n.server, near} {
		check(n.t, netdev.SetSysctls(namespace, []netdev.Sysctl{{Key: "net/ipv4/conf/all/rp_filter", Value: "1"}}))
	}
	return near
}

// dialFrom connects from a namespace.
func (n *testNet) dialFrom(namespace, network, vip string) (c net.Conn) {
	n.t.Helper()
	check(n.t, netdev.In(namespace, func() (err error) {
		d := net.Dialer{FallbackDelay: -1, Timeout: patience}
		c, err = d.DialContext(context.Background(), network, net.JoinHostPort(vip, strconv.Itoa(vipPort)))
		return err
	}))
	n.t.Cleanup(func() { c.Close() })
	check(n.t, c.SetDeadline(time.Now().Add(3*patience)))
	return c
}

// offloadMode selects offloads: transmit checksums of the client's device, the uplink, the servers'
// devices on the host and in the servers, and GRO. size is the number of bytes to transfer.
type offloadMode struct {
	name             string
	c0, up0, vm0, v0 bool
	gro              bool
	size             int
}

// offloadModes are the states of checksums and segments that the programs can receive.
var offloadModes = []offloadMode{
	{"all offloads", true, true, true, true, true, 8 << 20},
	{"partial checksums, finished behind the programs", true, false, false, true, false, 1 << 20},
	{"whole checksums, one segment a packet", false, false, false, false, false, 1 << 20},
}

// addNearIn is addNear with a mode for all devices.
func (n *testNet) addNearIn(m offloadMode) (near string) {
	near = n.addNear()
	n.offloads(n.client, "c0", m.c0, m.gro)
	n.offloads(n.host, "up0", m.up0, m.gro)
	n.offloads(n.host, "vm0", m.vm0, m.gro)
	n.offloads(n.server, "v0", m.v0, m.gro)
	n.offloads(n.host, "vm1", m.vm0, m.gro)
	n.offloads(near, "v1", m.v0, m.gro)
	return near
}

// TestHairpin checks that a server reaches its own VIP, and that the host and a machine behind it
// reach the VIPs of that server and of one on the host itself, in all offloadModes and with strict
// reverse path filtering.
func TestHairpin(t *testing.T) {
	for _, mode := range offloadModes {
		t.Run(mode.name, func(t *testing.T) {
			n := newTestNet(t, 1500)
			near := n.addNearIn(mode)
			n.startServers()
			h := n.attach()
			for _, name := range []string{"4in4", "6in6", "4in6", "6in4", "host itself 4", "host itself 6", "GUE 4in4", "GUE 6in6", "range"} {
				r := find(t, name)
				for _, from := range []string{n.server, n.host, near} {
					before := reasonsOf(t, h)["client_here"]
					c := n.dialFrom(from, "tcp", r.vip)
					if got := maxSegment(t, c); got != r.mss {
						t.Errorf("%s from %s: segments of %d, want %d", name, from, got, r.mss)
					}
					if err := transfer(c, mode.size); err != nil {
						t.Errorf("%s from %s: TCP: %v", name, from, err)
					}
					c.Close()
					u := n.dialFrom(from, "udp", r.vip)
					for i := range 5 {
						if err := ping(u, i); err != nil {
							t.Errorf("%s from %s: UDP: %v", name, from, err)
							break
						}
					}
					if reasonsOf(t, h)["client_here"] == before {
						t.Errorf("%s from %s: client_here not counted", name, from)
					}
				}
			}
			for _, reason := range []string{"in_no_port", "in_no_route", "in_adjust_failed", "out_rewrite_failed", "in_state_full", "in_icmp_unknown"} {
				if k := reasonsOf(t, h)[reason]; k != 0 {
					t.Errorf("%s counted %d", reason, k)
				}
			}
		})
	}
}

// serveDevice attaches host_serve to the server's device, as an agent does for known servers.
func (n *testNet) serveDevice(h *dataplane.Host) {
	n.t.Helper()
	check(n.t, netdev.In(n.host, func() error {
		s := dataplane.HostServers{Devices: []int{ifindex(n.t, "vm0")}}
		for _, dip := range []string{dip4, dip6} {
			s.Senders = append(s.Senders, dataplane.HostSender{Ifindex: s.Devices[0], Address: netip.MustParseAddr(dip)})
		}
		_, err := h.Serve(s)
		return err
	}))
}

// TestBeside checks that a server receives the packets of a client behind another device of its
// host with the client's own address, in all offloadModes and with strict reverse path filtering.
// The client receives answers and errors from the VIP.
func TestBeside(t *testing.T) {
	for _, mode := range offloadModes {
		t.Run(mode.name, func(t *testing.T) {
			n := newTestNet(t, 1500)
			near := n.addNearIn(mode)
			h := n.attach()
			n.serveDevice(h)
			refused := n.dialFrom(near, "udp", find(t, "4in4").vip)
			if _, err := refused.Write([]byte("anybody there")); err != nil {
				t.Fatal(err)
			}
			if _, err := refused.Read(make([]byte, 10)); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%v, want connection refused", err)
			}
			n.startServers()
			for _, name := range []string{"4in4", "6in6", "4in6", "6in4", "GUE 4in4", "GUE 6in6", "range"} {
				r := find(t, name)
				c := n.dialFrom(near, "tcp", r.vip)
				if got := maxSegment(t, c); got != r.mss {
					t.Errorf("%s: segments of %d, want %d", name, got, r.mss)
				}
				if err := transfer(c, mode.size); err != nil {
					t.Errorf("%s: TCP: %v", name, err)
				}
				c.Close()
				u := n.dialFrom(near, "udp", r.vip)
				for i := range 5 {
					if err := ping(u, i); err != nil {
						t.Errorf("%s: UDP: %v", name, err)
						break
					}
				}
			}
			if k := reasonsOf(t, h)["client_here"]; k != 0 {
				t.Errorf("client_here counted %d", k)
			}
			for _, from := range []string{n.server, n.host} {
				if err := transfer(n.dialFrom(from, "tcp", "203.0.113.10"), 1<<16); err != nil {
					t.Errorf("from %s: %v", from, err)
				}
			}
			if reasonsOf(t, h)["client_here"] == 0 {
				t.Error("client_here not counted")
			}
		})
	}
}

// bridge puts the devices of the server and of the near machine into one bridge, through which the
// two reach each other without the host.
func (n *testNet) bridge(near string) {
	n.t.Helper()
	for _, c := range [][]string{
		{n.host, "ip", "link", "add", "br0", "type", "bridge"},
		{n.host, "ip", "link", "set", "vm0", "master", "br0"},
		{n.host, "ip", "link", "set", "vm1", "master", "br0"},
		{n.host, "ip", "link", "set", "br0", "up"},
		{n.host, "ip", "address", "flush", "dev", "vm0", "scope", "global"},
		{n.host, "ip", "-6", "address", "del", "fe80::1/64", "dev", "vm1"},
		{n.host, "ip", "address", "add", gateway4 + "/32", "dev", "br0"},
		{n.host, "ip", "address", "add", gateway6 + "/128", "dev", "br0", "nodad"},
		{n.host, "ip", "address", "add", "fe80::1/64", "dev", "br0", "nodad"},
		{n.server, "ip", "route", "replace", near4, "dev", "v0"},
		{n.server, "ip", "-6", "route", "replace", near6, "dev", "v0"},
		{near, "ip", "route", "replace", dip4, "dev", "v1"},
		{near, "ip", "-6", "route", "replace", dip6, "dev", "v1"},
	} {
		n.command(c[0], c[1:]...)
	}
	for _, a := range []string{dip4, near4} {
		n.command(n.host, "ip", "route", "replace", a, "dev", "br0")
	}
	for _, a := range []string{dip6, near6} {
		n.command(n.host, "ip", "-6", "route", "del", a)
		n.command(n.host, "ip", "-6", "route", "add", a, "dev", "br0")
	}
}

// TestHairpinOnABridge checks that a client on a bridge with its server receives answers from the
// VIP, although the two could communicate without the host.
func TestHairpinOnABridge(t *testing.T) {
	n := newTestNet(t, 1500)
	near := n.addNear()
	n.bridge(near)
	n.startServers()
	h := n.attach()
	for _, name := range []string{"4in4", "6in6", "GUE 4in6"} {
		r := find(t, name)
		for _, from := range []string{near, n.server, n.host} {
			before := reasonsOf(t, h)["client_here"]
			if err := transfer(n.dialFrom(from, "tcp", r.vip), 1<<20); err != nil {
				t.Errorf("%s from %s: TCP: %v", name, from, err)
			}
			if err := ping(n.dialFrom(from, "udp", r.vip), 1); err != nil {
				t.Errorf("%s from %s: UDP: %v", name, from, err)
			}
			if reasonsOf(t, h)["client_here"] == before {
				t.Errorf("%s from %s: client_here not counted", name, from)
			}
		}
	}
}

// TestWhoTheClientIs checks the client address that a server receives, for each location of the
// client.
func TestWhoTheClientIs(t *testing.T) {
	n := newTestNet(t, 1500)
	near := n.addNear()
	h := n.attach()
	const port = "85" // in the range: it is not rewritten
	clients := make(chan netip.Addr, 1)
	check(t, netdev.In(n.server, func() error {
		l, err := net.Listen("tcp", ":"+port)
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				clients <- c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
				c.Close()
			}
		}()
		return nil
	}))
	vip := find(t, "range").vip
	seen := func(from string) string {
		t.Helper()
		var c net.Conn
		check(t, netdev.In(from, func() (err error) {
			d := net.Dialer{Timeout: patience}
			c, err = d.Dial("tcp4", net.JoinHostPort(vip, port))
			return err
		}))
		defer c.Close()
		return (<-clients).String()
	}
	for from, want := range map[string]string{n.client: client4, near: vip, n.server: vip, n.host: vip} {
		if got := seen(from); got != want {
			t.Errorf("before host_serve: the client of %s is %s, want %s", from, got, want)
		}
	}
	n.serveDevice(h)
	for from, want := range map[string]string{n.client: client4, near: near4, n.server: vip, n.host: vip} {
		if got := seen(from); got != want {
			t.Errorf("with host_serve: the client of %s is %s, want %s", from, got, want)
		}
	}
}

// TestHairpinOwned checks that a server that owns the VIP receives packets of clients on the
// machine with their own addresses, and that its answers bypass the programs. Its connections to
// itself do not leave its machine.
func TestHairpinOwned(t *testing.T) {
	n := newTestNet(t, 1500)
	near := n.addNear()
	// Its answers have a source address that is not behind its device, as for any client.
	check(t, netdev.SetSysctls(n.host, []netdev.Sysctl{{Key: "net/ipv4/conf/vm0/rp_filter", Value: "2"}}))
	n.startServers()
	h := n.attach()
	for _, name := range []string{"rewrite none 4", "rewrite none 6"} {
		r := find(t, name)
		for _, from := range []string{n.server, n.host, near} {
			before := receivedFor(t, h, r.vip)
			c := n.dialFrom(from, "tcp", r.vip)
			if err := transfer(c, 1000); err != nil {
				t.Errorf("%s from %s: TCP: %v", name, from, err)
			}
			if err := ping(n.dialFrom(from, "udp", r.vip), 1); err != nil {
				t.Errorf("%s from %s: UDP: %v", name, from, err)
			}
			if came := receivedFor(t, h, r.vip) != before; came != (from != n.server) {
				t.Errorf("%s from %s: came by a tunnel: %v", name, from, came)
			}
		}
	}
}

// receivedFor returns the packets that arrived by a tunnel for a VIP. Reasons cannot be used,
// because they also count packets of other connections, whose last acknowledgements may arrive
// later.
func receivedFor(t *testing.T, h *dataplane.Host, vip string) (n uint64) {
	t.Helper()
	c, err := h.Counters()
	check(t, err)
	for _, b := range c.Bindings {
		if b.Binding.Key.VIP.String() == vip {
			n += b.Packets
		}
	}
	return n
}

// TestHairpinUnreachable checks the ICMP errors of a server on the machine without a listener,
// which its clients receive from the VIP, and those of a client that closed its socket, which its
// server receives.
func TestHairpinUnreachable(t *testing.T) {
	n := newTestNet(t, 1500)
	near := n.addNear()
	h := n.attach()
	for _, name := range []string{"4in4", "6in6", "host itself 4", "host itself 6"} {
		r := find(t, name)
		for _, from := range []string{n.server, n.host, near} {
			u := n.dialFrom(from, "udp", r.vip)
			if _, err := u.Write([]byte("anybody there")); err != nil {
				t.Fatal(err)
			}
			if _, err := u.Read(make([]byte, 10)); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%s from %s: %v, want connection refused", name, from, err)
			}
		}
	}
	if reasonsOf(t, h)["out_icmp_returned"] == 0 {
		t.Error("out_icmp_returned not counted")
	}
}

// TestHairpinFragments sends datagrams of several packets in both directions.
func TestHairpinFragments(t *testing.T) {
	n := newTestNet(t, 1500)
	near := n.addNear()
	n.startServers()
	h := n.attach()
	n.serveDevice(h)
	for _, from := range []string{n.server, near} {
		dev, gateways := "v0", []string{gateway4, gateway6}
		if from == near {
			dev, gateways = "v1", []string{gateway4, "fe80::1"}
		}
		for i, prefix := range []string{vipNet4, vipNet6} {
			n.command(from, "ip", "route", "replace", prefix, "via", gateways[i], "dev", dev, "onlink", "mtu", "lock", "1400")
		}
		for _, name := range []string{"4in4", "6in6", "host itself 4"} {
			r := find(t, name)
			before := reasonsOf(t, h)["fragment_followed"]
			u := n.dialFrom(from, "udp", r.vip)
			for _, size := range []int{2800, 4001} {
				if _, err := u.Write(pattern[:size]); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				in := make([]byte, 1<<16)
				if k, err := u.Read(in); err != nil || string(in[:k]) != string(pattern[:size]) {
					t.Errorf("%s from %s: %d bytes back of %d: %v", name, from, k, size, err)
					break
				}
			}
			if reasonsOf(t, h)["fragment_followed"] == before {
				t.Errorf("%s from %s: fragment_followed not counted", name, from)
			}
		}
	}
}

// TestHairpinSamePort lets three clients on the machine, one of them the server itself, use the
// same port to one server at the same time.
func TestHairpinSamePort(t *testing.T) {
	n := newTestNet(t, 1500)
	near := n.addNear()
	n.startServers()
	h := n.attach()
	var conns []net.Conn
	for _, from := range []string{n.server, n.host, near} {
		check(t, netdev.In(from, func() error {
			d := net.Dialer{Timeout: patience, LocalAddr: &net.TCPAddr{Port: 40001}}
			c, err := d.Dial("tcp4", net.JoinHostPort("203.0.113.10", strconv.Itoa(vipPort)))
			if err == nil {
				t.Cleanup(func() { c.Close() })
				conns = append(conns, c)
			}
			return err
		}))
	}
	for range 3 {
		for i, c := range conns {
			check(t, c.SetDeadline(time.Now().Add(patience)))
			request := binary.BigEndian.AppendUint64([]byte{'D'}, 1<<16)
			if _, err := c.Write(request); err != nil {
				t.Fatalf("client %d: %v", i, err)
			}
			if err := readPattern(c, 1<<16); err != nil {
				t.Fatalf("client %d: %v", i, err)
			}
		}
	}
	if reasonsOf(t, h)["client_port_mapped"] == 0 {
		t.Error("client_port_mapped not counted")
	}
}
