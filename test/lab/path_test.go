package lab_test

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/netdev"
)

// Two servers behind one address of their host: only GUE can distinguish them.
func TestGUE(t *testing.T) {
	logsOnFailure(t, shared)
	web := service{name: "gue", number: 72, protocol: "tcp", port: 80, dipPort: 8080, encap: "gue",
		backends: []string{"host1-vm1", "host1-vm2", "host2-vm1"}}
	web.entry = web.both
	web.up(t)
	for _, target := range web.targets() {
		if counts := servers(t, target, 60); len(counts) != 3 {
			t.Errorf("%s: answers came from %v", target, counts)
		}
		transfer(t, target)
	}
}

// A link behind the router has a smaller MTU than both ends assume. The router sends the ICMP
// message to the VIP, and the server's kernel receives it.
func TestPathMTU(t *testing.T) {
	logsOnFailure(t, shared)
	web := service{name: "mtu", number: 73, protocol: "tcp", port: 80, dipPort: 8080, backends: []string{"host2-vm1"}}
	web.up(t)
	narrowClientLink(t, 1300)
	for _, target := range web.targets() {
		transfer(t, target)
	}
	await(t, "host2 counts errors that it delivered", func(ctx context.Context) error {
		if n := reasons(ctx, t, "host2")["in_icmp_delivered"]; n < 2 {
			return fmt.Errorf("in_icmp_delivered is %d", n)
		}
		return nil
	})
}

// narrowClientLink sets the MTU of the router's end of the client's link for the duration of the
// test, and clears the servers' path MTU caches.
func narrowClientLink(t *testing.T, mtu int) {
	t.Helper()
	router := shared.Topology.Name + "-router1"
	run := func(namespace string, args ...string) string { t.Helper(); return runIP(t, namespace, args...) }
	client, err := shared.Topology.Find("client1")
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(run(router, "-o", "route", "get", client.Addresses().V4.Addr().String()))
	dev := ""
	for i, f := range fields {
		if f == "dev" {
			dev = fields[i+1]
		}
	}
	run(router, "link", "set", dev, "mtu", fmt.Sprint(mtu))
	t.Cleanup(func() {
		run(router, "link", "set", dev, "mtu", "1500")
		for _, vm := range []string{"host2-vm1"} {
			run(shared.Topology.Name+"-"+vm, "route", "flush", "cache")
			run(shared.Topology.Name+"-"+vm, "-6", "route", "flush", "cache")
		}
	})
}

// runIP runs ip in a namespace.
func runIP(t *testing.T, namespace string, args ...string) string {
	t.Helper()
	var out []byte
	err := netdev.In(namespace, func() (err error) {
		out, err = exec.Command("ip", args...).CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatalf("ip %v in %s: %v: %s", args, namespace, err, out)
	}
	return string(out)
}

// Datagrams of several packets: the client's kernel fragments them, and muxes and hosts keep the
// fragments together. The same holds for replies.
func TestFragments(t *testing.T) {
	logsOnFailure(t, shared)
	echo := service{name: "fragments", number: 74, protocol: "udp", port: 5007, dipPort: 7, fragments: "3tuple",
		backends: []string{"host1-vm1", "host2-vm1", "host3-vm1"}}
	echo.up(t)
	for i, vip := range echo.vips() {
		to := netip.PrefixFrom(vip, vip.BitLen()).String()
		via := []string{"198.51.100.1", "2001:db8:100::1"}[i]
		runIP(t, client1(), "route", "add", to, "via", via, "mtu", "lock", "1400")
		t.Cleanup(func() { runIP(t, client1(), "route", "del", to) })
	}
	for _, target := range echo.targets() {
		for i := range 10 {
			message := strings.Repeat(string(rune('a'+i)), 1500+400*i)
			await(t, fmt.Sprintf("an echo of %d bytes from %s", len(message), target), func(context.Context) error { return tryEcho(target, message) })
		}
	}
}

// tryEcho sends a datagram once. It may be lost, also because one of its fragments overtook
// another.
func tryEcho(target, message string) error {
	conn, err := dial("udp", target)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(500 * time.Millisecond)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, message); err != nil {
		return err
	}
	buf := make([]byte, len(message))
	if n, err := conn.Read(buf); err != nil || string(buf[:n]) != message {
		return fmt.Errorf("%d bytes came back of %d: %w", n, len(message), err)
	}
	return nil
}
