package host

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/netdev"
)

// Addresses behind the client, which is then a router; the tests append one octet each.
const (
	far4, far6         = "192.0.2.", "2001:db8:fa::"
	farGateway4        = far4 + "1"
	farGateway6        = far6 + "1"
	farNet4, farNet6   = "192.0.2.0/24", "2001:db8:fa::/64"
	narrow             = 1300
	narrowText         = "mtu 1300"
	vipNet4, vipNet6   = "203.0.113.0/24", "2001:db8:f::/64"
	farFirst, farAfter = 11, 20
)

// addFar adds a network behind the client. Its link has a smaller MTU than both of its ends assume.
func (n *testNet) addFar() (far string) {
	n.t.Helper()
	far = strings.TrimSuffix(n.client, "client") + "far"
	ns := n.open(far)
	client, err := netdev.OpenNamespace(n.client)
	check(n.t, err)
	defer client.Close()
	host, err := netdev.OpenNamespace(n.host)
	check(n.t, err)
	defer host.Close()
	check(n.t, netdev.AddVeth(netdev.VethEnd{Namespace: ns, Name: "f1"}, netdev.VethEnd{Namespace: client, Name: "f0"}, 1500))
	n.command(n.client, "ip", "link", "set", "f0", "mtu", fmt.Sprint(narrow))
	n.address(client, "f0", farGateway4+"/24", farGateway6+"/64")
	for i := farFirst; i < farAfter; i++ {
		n.address(ns, "f1", far4+fmt.Sprint(i)+"/24", far6+fmt.Sprint(i)+"/64")
	}
	n.route(ns, "f1", farGateway4, "0.0.0.0/0")
	n.route(ns, "f1", farGateway6, "::/0")
	n.route(host, "up0", client4, farNet4)
	n.route(host, "up0", client6, farNet6)
	check(n.t, netdev.SetSysctls(n.client, []netdev.Sysctl{
		{Key: "net/ipv4/ip_forward", Value: "1"}, {Key: "net/ipv6/conf/all/forwarding", Value: "1"}}))
	return far
}

// command runs a command in a namespace.
func (n *testNet) command(namespace string, args ...string) string {
	n.t.Helper()
	var out []byte
	check(n.t, netdev.In(namespace, func() (err error) {
		out, err = exec.Command(args[0], args[1:]...).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%v: %w: %s", args, err, out)
		}
		return err
	}))
	return string(out)
}

// find returns the route with a name.
func find(t *testing.T, name string) route {
	t.Helper()
	i := slices.IndexFunc(routes, func(r route) bool { return r.name == name })
	if i < 0 {
		t.Fatalf("no route %q", name)
	}
	return routes[i]
}

// TestPathMTU lets a router on the return path report to the VIP that answers are too big, and
// checks that the server's kernel receives the error, lowers the path MTU and continues.
func TestPathMTU(t *testing.T) {
	n := newTestNet(t, 1500)
	n.startServers()
	h := n.attach()
	far := n.addFar()
	before := map[string]uint64{}
	for i, name := range []string{"4in4", "6in6", "GUE 4in6", "GUE 6in4", "any, rewrite host", "rewrite none 4", "any, rewrite none 6"} {
		r := find(t, name)
		from := far4
		if strings.Contains(r.vip, ":") {
			from = far6
		}
		from += fmt.Sprint(farFirst + i)
		var c net.Conn
		check(t, netdev.In(far, func() (err error) {
			d := net.Dialer{Timeout: patience, LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
			c, err = d.DialContext(context.Background(), "tcp", net.JoinHostPort(r.vip, fmt.Sprint(vipPort)))
			return err
		}))
		check(t, c.SetDeadline(time.Now().Add(patience)))
		if _, err := c.Write(binary.BigEndian.AppendUint64([]byte{'D'}, 1<<20)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := readPattern(c, 1<<20); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		c.Close()
		if out := n.command(n.server, "ip", "route", "get", from); !strings.Contains(out, narrowText) {
			t.Errorf("%s: the server's way back is %s, want %s", name, out, narrowText)
		}
		reason := "in_icmp_delivered"
		if !r.rewrite {
			reason = "in_untouched"
		}
		if now := reasonsOf(t, h); now[reason] == before[reason] {
			t.Errorf("%s: %s not counted", name, reason)
		} else {
			before = now
		}
	}
}

func reasonsOf(t *testing.T, h *dataplane.Host) map[string]uint64 {
	t.Helper()
	c, err := h.Counters()
	check(t, err)
	return c.Reasons
}

// TestUnreachable checks that the client receives the server's error about a port without a
// listener from the VIP.
func TestUnreachable(t *testing.T) {
	n := newTestNet(t, 1500)
	h := n.attach()
	for _, name := range []string{"4in4", "6in6", "host itself 4", "GUE 4in4", "GUE 6in6", "range", "any, rewrite host", "rewrite none 4"} {
		r := find(t, name)
		before := reasonsOf(t, h)["out_icmp_returned"]
		c := n.dial("udp", r.vip, 0)
		if _, err := c.Write([]byte("anybody there")); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 10)); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: %v, want connection refused", name, err)
		}
		if r.rewrite && reasonsOf(t, h)["out_icmp_returned"] != before+1 {
			t.Errorf("%s: out_icmp_returned not counted", name)
		}
	}
}

// TestFragments sends datagrams of several packets, fragmented by the kernels of both ends.
func TestFragments(t *testing.T) {
	n := newTestNet(t, 1500)
	n.startServers()
	h := n.attach()
	for _, way := range []struct{ prefix, via string }{{vipNet4, router4}, {vipNet6, router6}} {
		n.command(n.client, "ip", "route", "change", way.prefix, "via", way.via, "dev", "c0", "mtu", "lock", "1400")
	}
	for _, name := range []string{"4in4", "6in6", "4in6", "6in4", "GUE 4in4", "GUE 6in6", "range", "any, rewrite host", "rewrite none 4", "any, rewrite none 6", "host itself 6"} {
		r := find(t, name)
		before := reasonsOf(t, h)["fragment_followed"]
		c := n.dial("udp", r.vip, 0)
		for _, size := range []int{1373, 2800, 4001, 20000} {
			if _, err := c.Write(pattern[:size]); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			in := make([]byte, 1<<16)
			k, err := c.Read(in)
			if err != nil || string(in[:k]) != string(pattern[:size]) {
				t.Errorf("%s: %d bytes back of %d: %v", name, k, size, err)
				break
			}
		}
		if reasonsOf(t, h)["fragment_followed"] == before {
			t.Errorf("%s: fragment_followed not counted", name)
		}
	}
	if lost := reasonsOf(t, h)["in_fragment"]; lost != 0 {
		t.Errorf("%d fragments lost", lost)
	}
}
