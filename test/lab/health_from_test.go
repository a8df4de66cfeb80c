package lab_test

import (
	"context"
	"os/exec"
	"testing"

	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
)

// forbidChecks blocks the muxes' own checks of servers: the router has no route for TCP to the
// port. Tunneled packets are not TCP.
func forbidChecks(t *testing.T, vms []string) {
	t.Helper()
	for _, n := range shared.Topology.Nodes() {
		if n.Kind != lab.KindRouter {
			continue
		}
		for _, name := range vms {
			vm, err := shared.Topology.Find(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, rule := range [][]string{
				{"-4", "to", vm.Addresses().V4.Addr().String()}, {"-6", "to", vm.Addresses().V6.Addr().String()},
			} {
				rule = append(rule, "ipproto", "tcp", "dport", "8080", "prohibit")
				change := func(verb string) {
					cmd := exec.Command("ip", append([]string{rule[0], "rule", verb}, rule[1:]...)...)
					err := netdev.In(n.Namespace(shared.Topology.Name), func() error {
						out, err := cmd.CombinedOutput()
						if err != nil {
							t.Logf("%s: %s", cmd, out)
						}
						return err
					})
					if err != nil {
						t.Errorf("%s: rule %s %v: %v", n.Name, verb, rule, err)
					}
				}
				change("add")
				t.Cleanup(func() { change("del") })
			}
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

// Servers that accept checks only from their host: muxes follow the host, and no request goes to a
// dead server after they received its report. When the host stops reporting, the muxes check by
// themselves, which is blocked here, and leave its servers out until it returns.
func TestHostsCheckForMuxes(t *testing.T) {
	logsOnFailure(t, shared)
	web := service{
		name: "hostsays", number: 78, protocol: "tcp", port: 80, dipPort: 8080, backends: []string{"host1-vm1", "host2-vm1", "host3-vm1"},
		health: "{from: host, http: {path: /healthz}, port: 8080, interval: 250ms, timeout: 250ms, rise: 2, fall: 4}",
	}
	forbidChecks(t, web.backends)
	web.up(t)
	answers := func(when, without string) {
		t.Helper()
		for _, target := range web.targets() {
			counts := servers(t, target, 60)
			want := len(web.backends)
			if without != "" {
				want--
			}
			if len(counts) != want || counts[without] > 0 {
				t.Errorf("%s: %s: answers came from %v", target, when, counts)
			}
		}
	}
	answers("all are alive", "")

	if err := shared.StopServer(t.Context(), "host1-vm1"); err != nil {
		t.Fatal(err)
	}
	web.awaitAlive(t, 2)
	answers("host1-vm1 is stopped", "host1-vm1")
	if err := shared.StartServer(t.Context(), "host1-vm1"); err != nil {
		t.Fatal(err)
	}
	web.awaitAlive(t, 3)
	answers("host1-vm1 is back", "")

	if err := shared.KillAgent(t.Context(), "host2"); err != nil {
		t.Fatal(err)
	}
	back := func() {
		if err := shared.StartAgent("host2"); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() {
		if back != nil {
			back()
		}
	})
	web.awaitAlive(t, 2)
	answers("host2 is silent", "host2-vm1")
	back()
	back = nil
	web.awaitAlive(t, 3)
	answers("host2 is back", "")
	if err := shared.WaitReady(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// A host's agent reports that its server is healthy, while no mux reaches the machine. Muxes detect
// it by themselves, although no manager receives a bad report.
func TestMuxesNoticeACutPath(t *testing.T) {
	logsOnFailure(t, shared)
	web := service{
		name: "cutpath", number: 79, protocol: "tcp", port: 80, dipPort: 8080, backends: []string{"host1-vm1", "host2-vm1", "host3-vm1"},
		health: "{from: host, http: {path: /healthz}, port: 8080, interval: 250ms, timeout: 250ms, rise: 2, fall: 4}",
	}
	web.up(t)
	var ends []func()
	for _, to := range []string{"host2", "host2-vm1"} {
		n, err := shared.Topology.Find(to)
		if err != nil {
			t.Fatal(err)
		}
		sources4, sources6 := []string{lb.DefaultTunnelSourcesV4}, []string{lb.DefaultTunnelSourcesV6}
		for _, mux := range shared.Topology.Nodes() {
			if mux.Kind == lab.KindMux {
				sources4, sources6 = append(sources4, mux.Addresses().V4.Addr().String()), append(sources6, mux.Addresses().V6.Addr().String())
			}
		}
		for _, from := range sources4 {
			ends = append(ends, rule(t, "router1", "-4", "from", from, "to", n.Addresses().V4.Addr().String(), "blackhole"))
		}
		for _, from := range sources6 {
			ends = append(ends, rule(t, "router1", "-6", "from", from, "to", n.Addresses().V6.Addr().String(), "blackhole"))
		}
	}
	web.awaitAlive(t, 2)
	for _, target := range web.targets() {
		if counts := servers(t, target, 60); len(counts) != 2 || counts["host2-vm1"] > 0 {
			t.Errorf("%s: answers came from %v", target, counts)
		}
	}
	for _, end := range ends {
		end()
	}
	web.awaitAlive(t, 3)
}
