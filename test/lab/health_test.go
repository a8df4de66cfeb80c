package lab_test

import (
	"context"
	"fmt"
	"os/exec"
	"testing"

	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/netdev"
)

// rule adds an `ip rule` on a node until the returned function is called or the test ends.
func rule(t *testing.T, node string, argv ...string) (end func()) {
	t.Helper()
	n, err := shared.Topology.Find(node)
	if err != nil {
		t.Fatal(err)
	}
	change := func(verb string) {
		all := append([]string{argv[0], "rule", verb}, argv[1:]...)
		err := netdev.In(n.Namespace(shared.Topology.Name), func() error {
			out, err := exec.Command("ip", all...).CombinedOutput()
			if err != nil {
				return fmt.Errorf("ip %v: %w: %s", all, err, out)
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", node, err)
		}
	}
	change("add")
	there := true
	end = func() {
		if there {
			there = false
			change("del")
		}
	}
	t.Cleanup(end)
	return end
}

// A server that responds to direct requests, but whose tunnels lead nowhere, is of no use to
// clients. Only a check through the tunnel detects it.
func TestChecksThroughTheTunnel(t *testing.T) {
	logsOnFailure(t, shared)
	web := service{
		name: "through", number: 90, protocol: "tcp", port: 80, dipPort: 8080, backends: []string{"host1-vm1", "host2-vm1", "host3-vm1"},
		health: "{http: {path: /healthz}, through: tunnel, interval: 200ms, timeout: 200ms, rise: 2, fall: 4}",
	}
	direct := service{
		name: "directly", number: 91, protocol: "tcp", port: 80, dipPort: 8080, backends: web.backends,
		health: "{http: {path: /healthz}, through: direct, interval: 200ms, timeout: 200ms, rise: 2, fall: 4}",
	}
	web.up(t)
	direct.up(t)
	for _, encap := range []string{"ipip", "gue"} {
		if web.encap = encap; encap != "ipip" {
			web.apply(t)
			web.awaitAlive(t, 3)
		}
		vm, err := shared.Topology.Find("host2-vm1")
		if err != nil {
			t.Fatal(err)
		}
		host, err := shared.Topology.Find("host2")
		if err != nil {
			t.Fatal(err)
		}
		var ends []func()
		for _, n := range []lab.Node{vm, host} {
			v4, v6 := n.Addresses().V4.Addr().String(), n.Addresses().V6.Addr().String()
			for _, packets := range [][]string{{"ipproto", "4"}, {"ipproto", "41"}, {"ipproto", "udp", "dport", "6080"}} {
				ends = append(ends, rule(t, "router1", append([]string{"-4", "to", v4}, append(packets, "blackhole")...)...),
					rule(t, "router1", append([]string{"-6", "to", v6}, append(packets, "blackhole")...)...))
			}
		}
		web.awaitAlive(t, 2)
		for _, target := range web.targets() {
			if counts := servers(t, target, 60); len(counts) != 2 || counts["host2-vm1"] > 0 {
				t.Errorf("%s, %s: answers came from %v", encap, target, counts)
			}
		}
		direct.awaitAlive(t, 3)
		for _, end := range ends {
			end()
		}
		web.awaitAlive(t, 3)
	}
}

// The results of clients' own connections take out a server that passes its checks.
func TestClientsTakeAServerOut(t *testing.T) {
	logsOnFailure(t, shared)
	web := service{
		name: "seen", number: 92, protocol: "tcp", port: 80, dipPort: 8080, backends: []string{"host1-vm1", "host2-vm1", "host3-vm1"},
		health: "{icmp: {}, from: host, interval: 500ms, timeout: 500ms, rise: 1, fall: 4, passive: {failures: 3, within: 30s, hold: 3s}}",
	}
	web.up(t)
	if err := shared.StopServer(t.Context(), "host2-vm1"); err != nil {
		t.Fatal(err)
	}
	await(t, "clients take host2-vm1 out", func(ctx context.Context) error {
		for _, target := range web.targets() {
			for range 20 {
				_, _ = get(target, "/") // some are refused: they are the evidence
			}
		}
		for _, n := range status(ctx, t).GetNodes() {
			for _, m := range n.GetMembers() {
				if n.GetRole() == "mux" && m.GetService() == web.name && m.GetDip() == web.dips(t)[1] && m.GetAlive() {
					return fmt.Errorf("%s sends clients to it", n.GetName())
				}
			}
		}
		return nil
	})
	if err := shared.StartServer(t.Context(), "host2-vm1"); err != nil {
		t.Fatal(err)
	}
	web.awaitAlive(t, 3)
	for _, target := range web.targets() {
		if counts := servers(t, target, 60); len(counts) != 3 {
			t.Errorf("%s: answers came from %v", target, counts)
		}
	}
}

// dips returns the IPv4 addresses of the service's backends.
func (s service) dips(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, name := range s.backends {
		vm, err := shared.Topology.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, vm.Addresses().V4.Addr().String())
	}
	return all
}

// Checks of all kinds that the lab's servers support, combined: each detects a stopped server.
func TestKindsOfChecks(t *testing.T) {
	logsOnFailure(t, shared)
	for i, c := range []struct{ name, health string }{
		{"body", `{http: {path: /healthz, body: "."}, port: 8080, interval: 200ms, timeout: 200ms, rise: 2, fall: 4}`},
		{"send", `{tcp: {send: "hello\n", expect: "hello"}, port: 7, interval: 200ms, timeout: 200ms, rise: 2, fall: 4}`},
		{"datagram", `{udp: {send: "hello", expect: "hello"}, port: 7, interval: 200ms, timeout: 200ms, rise: 2, fall: 4}`},
		{"two", `{checks: [{icmp: {}}, {http: {path: /healthz}, engine: socket}], interval: 200ms, timeout: 200ms, rise: 2, fall: 4}`},
		{"several", `{checks: [{icmp: {}}, {http: {path: /healthz}}, {http: {path: /nowhere, status: [404]}}], combine: {atLeast: 2}, interval: 200ms, timeout: 200ms, rise: 2, fall: 4}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			web := service{
				name: c.name, number: 93 + i, protocol: "tcp", port: 80, dipPort: 8080, backends: []string{"host1-vm1", "host2-vm1"}, health: c.health,
			}
			web.up(t)
			if err := shared.StopServer(t.Context(), "host2-vm1"); err != nil {
				t.Fatal(err)
			}
			web.awaitAlive(t, 1)
			if err := shared.StartServer(t.Context(), "host2-vm1"); err != nil {
				t.Fatal(err)
			}
			web.awaitAlive(t, 2)
		})
	}
}
