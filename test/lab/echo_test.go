package lab_test

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/lab"
)

func TestTCPEcho(t *testing.T) {
	logsOnFailure(t, shared)
	echo := service{name: "echo-tcp", number: 23, protocol: "tcp", port: 7, dipPort: 7, backends: []string{"host1-vm1", "host3-vm2"}}
	echo.up(t)
	for _, target := range echo.targets() {
		for i := range 20 {
			echoOnce(t, "tcp", target, fmt.Sprintf("line %d over tcp\n", i))
		}
	}
}

func TestUDPEcho(t *testing.T) {
	logsOnFailure(t, shared)
	echo := service{name: "echo-udp", number: 24, protocol: "udp", port: 5007, dipPort: 7, backends: []string{"host1-vm1", "host3-vm2"}}
	echo.up(t)
	for _, target := range echo.targets() {
		for i := range 20 {
			echoOnce(t, "udp", target, fmt.Sprintf("datagram %d", i))
		}
		echoOnce(t, "udp", target, strings.Repeat("x", 1400))
		echoOnce(t, "udp", target, "x")
	}
}

// echoOnce sends a message over a new connection and expects it back.
func echoOnce(t *testing.T, network, target, message string) {
	t.Helper()
	conn, err := dial(network, target)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, message); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, len(message))
	if _, err := io.ReadFull(conn, buf); err != nil || string(buf) != message {
		t.Fatalf("%s %s: sent %q, got %q: %v", network, target, message, buf, err)
	}
}

// The tunnel has the family of the host's address, not of the service: IPv4 inside IPv6.
func TestTunnel4In6(t *testing.T) {
	logsOnFailure(t, shared)
	web := service{name: "tunnel-4in6", number: 25, protocol: "tcp", port: 80, dipPort: 8080, only4: true, backends: []string{"host1-vm1", "host2-vm1"}}
	web.entry = func(vm lab.Node) string {
		return fmt.Sprintf("  - {dip: %q, port: 8080, host: %q}\n", vm.Addresses().V4.Addr(), lab.HostAddresses(vm.Index).V6.Addr())
	}
	web.up(t)
	for _, target := range web.targets() {
		if counts := servers(t, target, 40); len(counts) != 2 {
			t.Errorf("%s: answers came from %v", target, counts)
		}
		transfer(t, target)
	}
}

// IPv6 inside IPv4.
func TestTunnel6In4(t *testing.T) {
	logsOnFailure(t, shared)
	web := service{name: "tunnel-6in4", number: 26, protocol: "tcp", port: 80, dipPort: 8080, only6: true, backends: []string{"host1-vm1", "host2-vm1"}}
	web.entry = func(vm lab.Node) string {
		return fmt.Sprintf("  - {dip: %q, port: 8080, host: %q}\n", vm.Addresses().V6.Addr(), lab.HostAddresses(vm.Index).V4.Addr())
	}
	web.up(t)
	for _, target := range web.targets() {
		if counts := servers(t, target, 40); len(counts) != 2 {
			t.Errorf("%s: answers came from %v", target, counts)
		}
		transfer(t, target)
	}
}

// transfer fetches a megabyte and compares it.
func transfer(t *testing.T, target string) {
	t.Helper()
	check := &patternChecker{}
	n, err := fetch(target, "/bytes/1000000", check)
	if err != nil || n != 1_000_000 || check.bad {
		t.Errorf("%s: %d bytes of 1000000, wrong %v at %d: %v", target, n, check.bad, check.wrong, err)
	}
}
