package lab_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/netdev"
)

// inNode returns the namespace of a node.
func inNode(node string) string { return shared.Topology.Name + "-" + node }

// getFrom is get from a node.
func getFrom(node, target, path string, to io.Writer) (int64, error) {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: netdev.Dialer(inNode(node))}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: 2 * eventually}
	answer, err := client.Get("http://" + target + path)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return 0, errors.New(answer.Status)
	}
	return io.Copy(to, answer.Body)
}

// serversFrom sends requests to a target from a node until every one of these servers responded,
// and at least `times`. No other server may respond.
func serversFrom(t *testing.T, node, target string, times int, want ...string) {
	t.Helper()
	counts, missing := map[string]int{}, len(want)
	for i := 0; i < times || missing > 0; i++ {
		if i > 400 {
			t.Errorf("%s from %s: %v answered, want %v", target, node, counts, want)
			return
		}
		var body bytes.Buffer
		if _, err := getFrom(node, target, "/", &body); err != nil {
			t.Fatalf("GET http://%s/ from %s: %v", target, node, err)
		}
		counts[strings.TrimSpace(body.String())]++
		missing = 0
		for _, name := range want {
			if counts[name] == 0 {
				missing++
			}
		}
	}
	if len(counts) != len(want) {
		t.Errorf("%s from %s: %v answered, want %v", target, node, counts, want)
	}
}

// bulkFrom fetches from a web server, and sends to an echo server and back, byte for byte.
func bulkFrom(t *testing.T, node, web, echo string, size int64) {
	t.Helper()
	check := &patternChecker{}
	n, err := getFrom(node, web, fmt.Sprintf("/bytes/%d", size), check)
	if err != nil || n != size || check.bad {
		t.Errorf("%s from %s: %d bytes of %d, wrong %v at %d: %v", web, node, n, size, check.bad, check.wrong, err)
	}
	conn := dialFrom(t, node, "tcp", echo)
	defer conn.Close()
	sent := make(chan error, 1)
	go func() {
		_, err := io.CopyN(conn, &patternReader{}, size)
		sent <- err
	}()
	check = &patternChecker{}
	n, err = io.CopyN(check, conn, size)
	if err := <-sent; err != nil {
		t.Errorf("%s from %s: send: %v", echo, node, err)
	}
	if err != nil || n != size || check.bad {
		t.Errorf("%s from %s: %d bytes of %d came back, wrong %v at %d: %v", echo, node, n, size, check.bad, check.wrong, err)
	}
}

// dialFrom is dial from a node.
func dialFrom(t *testing.T, node, network, target string) net.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), eventually)
	defer cancel()
	conn, err := netdev.Dialer(inNode(node))(ctx, network, target)
	if err == nil {
		err = conn.SetDeadline(time.Now().Add(2 * eventually))
	}
	if err != nil {
		t.Fatalf("%s %s from %s: %v", network, target, node, err)
	}
	return conn
}

// datagramsFrom sends datagrams from a node, each from a new port, and expects them back.
func datagramsFrom(t *testing.T, node, target string, times int) {
	t.Helper()
	for i := range times {
		message := strings.Repeat(fmt.Sprintf("datagram %d ", i), 1+i%100)
		conn := dialFrom(t, node, "udp", target)
		buf := make([]byte, 2048)
		if _, err := io.WriteString(conn, message); err != nil {
			t.Fatalf("%s from %s: %v", target, node, err)
		}
		if n, err := conn.Read(buf); err != nil || string(buf[:n]) != message {
			t.Fatalf("%s from %s: datagram %d: %d bytes back, %v", target, node, i, n, err)
		}
		conn.Close()
	}
}

// trio returns services of the same servers: web, echo over TCP, echo over UDP, on VIPs of this
// number and the two after it.
func trio(name string, number int, backends ...string) (web, echo, datagrams service) {
	web = service{name: name + "-web", number: number, protocol: "tcp", port: 80, dipPort: 8080, backends: backends}
	echo = service{name: name + "-echo", number: number + 1, protocol: "tcp", port: 7, dipPort: 7, backends: backends}
	datagrams = service{name: name + "-udp", number: number + 2, protocol: "udp", port: 5007, dipPort: 7, backends: backends}
	return web, echo, datagrams
}

// A server that connects to its own VIP reaches itself, or another server of its host, or one of
// another host. So do the host and a machine on it.
func TestClientsOnTheServersHost(t *testing.T) {
	logsOnFailure(t, shared)
	web, echo, datagrams := trio("local", 120, "host1-vm1", "host1-vm2", "host2-vm1")
	for _, s := range []service{web, echo, datagrams} {
		s.up(t)
	}
	before := reasons(t.Context(), t, "host1")["client_here"]
	for i := range web.vips() {
		for _, from := range []string{"host1-vm1", "host1-vm2", "host1", "host2-vm2"} {
			serversFrom(t, from, web.targets()[i], 20, web.backends...)
			datagramsFrom(t, from, datagrams.targets()[i], 20)
			bulkFrom(t, from, web.targets()[i], echo.targets()[i], 2_000_000)
		}
	}
	await(t, "client_here of host1", func(ctx context.Context) error {
		if n := reasons(ctx, t, "host1")["client_here"]; n == before {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
}

// The only server of a VIP reaches itself through it, with bulk data too, and so do machines of its
// host that do not serve the VIP.
func TestHairpin(t *testing.T) {
	logsOnFailure(t, shared)
	web, echo, datagrams := trio("hairpin", 123, "host1-vm1")
	for _, s := range []service{web, echo, datagrams} {
		s.up(t)
	}
	for i := range web.vips() {
		for _, from := range []string{"host1-vm1", "host1-vm2", "host1", "host3-vm1", "client1"} {
			serversFrom(t, from, web.targets()[i], 5, "host1-vm1")
			datagramsFrom(t, from, datagrams.targets()[i], 10)
			bulkFrom(t, from, web.targets()[i], echo.targets()[i], 10_000_000)
		}
	}
}

// serve runs a lab's server on a host itself until the test ends.
func serve(t *testing.T, node string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		if err := netdev.In(inNode(node), func() error { return lab.Serve(ctx, node) }); err != nil {
			t.Errorf("server of %s: %v", node, err)
		}
	})
	t.Cleanup(func() {
		cancel()
		done.Wait()
	})
}

// onHost writes a backend of each family that is a process of the host.
func (s service) onHost(vm lab.Node) string {
	host := lab.HostAddresses(vm.Index)
	return fmt.Sprintf("  - {dip: %q, port: %d, host: %q}\n  - {dip: %q, port: %d, host: %q}\n",
		host.V4.Addr(), s.dipPort, host.V4.Addr(), host.V6.Addr(), s.dipPort, host.V6.Addr())
}

// A server that is a process of a host is reached by the host itself and by machines on it.
func TestServerOnTheHost(t *testing.T) {
	logsOnFailure(t, shared)
	serve(t, "host1")
	web, echo, datagrams := trio("onhost", 126, "host1-vm1")
	for _, s := range []service{web, echo, datagrams} {
		s.entry = s.onHost
		s.up(t)
	}
	for i := range web.vips() {
		for _, from := range []string{"host1", "host1-vm1", "host2", "host2-vm1", "client1"} {
			serversFrom(t, from, web.targets()[i], 5, "host1")
			datagramsFrom(t, from, datagrams.targets()[i], 10)
			bulkFrom(t, from, web.targets()[i], echo.targets()[i], 5_000_000)
		}
	}
}

// Servers that own the VIP respond to clients on their machine without the programs, and reach only
// themselves through the VIP.
func TestClientsOfOwners(t *testing.T) {
	logsOnFailure(t, shared)
	all := service{name: "localown", number: 129, protocol: "any", ports: `"*"`, rewrite: "none", backends: []string{"host1-vm1", "host2-vm1"}}
	all.entry = all.without
	for _, vm := range all.backends {
		own(t, vm, all.vips())
	}
	all.up(t)
	for _, vip := range all.vips() {
		web, echo := netip.AddrPortFrom(vip, 8080).String(), netip.AddrPortFrom(vip, 7).String()
		for from, servers := range map[string][]string{
			"host1-vm1": {"host1-vm1"}, "host1-vm2": all.backends, "host1": all.backends, "host2-vm2": all.backends,
		} {
			serversFrom(t, from, web, 10, servers...)
			datagramsFrom(t, from, echo, 10)
			bulkFrom(t, from, web, echo, 1_000_000)
		}
	}
}

// If the host itself owns the VIP, it and its machines reach that server and no other, without a
// mux.
func TestClientsOfTheHostThatOwns(t *testing.T) {
	logsOnFailure(t, shared)
	serve(t, "host1")
	all := service{name: "hostown", number: 130, protocol: "any", ports: `"*"`, rewrite: "none", backends: []string{"host1-vm1"}}
	all.entry = func(vm lab.Node) string { return strings.ReplaceAll(all.onHost(vm), "port: 0, ", "") }
	own(t, "host1", all.vips())
	all.up(t)
	for _, vip := range all.vips() {
		for _, from := range []string{"host1", "host1-vm1", "host2-vm1", "client1"} {
			serversFrom(t, from, netip.AddrPortFrom(vip, 8080).String(), 5, "host1")
			datagramsFrom(t, from, netip.AddrPortFrom(vip, 7).String(), 5)
		}
	}
}
