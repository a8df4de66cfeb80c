package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/shuntlb/shunt/internal/agent"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/host"
	"github.com/shuntlb/shunt/internal/netdev"
)

func TestMuxRefusesWrongStarts(t *testing.T) {
	run1 := t.TempDir()
	cases := []struct {
		args string
		exit int
		want string
	}{
		{"mux", exitUsage, `shunt mux: --interface: "": must be a device of this machine`},
		{"mux --interface lo", exitUsage, `shunt mux: --manager: "": must be ADDRESS:PORT`},
		{"mux --interface lo --manager :8443", exitUsage, `shunt mux: --manager: ":8443": must be ADDRESS:PORT`},
		{"mux --interface lo --manager 10.0.0.1:1 --xdp-mode skb", exitUsage, `shunt mux: --xdp-mode: "skb": must be native or generic`},
		{"mux --interface lo --manager 10.0.0.1:1 --speaker-hold 0s", exitUsage, `shunt mux: --speaker-hold: 0s: must be above 0`},
		{"mux --interface lo --manager 10.0.0.1:1 --flows 1000000", exitUsage, `shunt mux: --flows: 1000000: must be a power of two from 65536 to 67108864`},
		{"mux --interface lo --manager 10.0.0.1:1 --ring-slots 268435456", exitUsage, `shunt mux: --ring-slots: 268435456: must be a power of two from 4096 to 134217728`},
		{"mux --interface lo --manager 10.0.0.1:1 --suspect-grace -1s", exitUsage, `shunt mux: --suspect-grace: -1s: must be 0 to 1h0m0s`},
		{"mux --interface lo --manager 10.0.0.1:1 --suspect-grace 2h", exitUsage, `shunt mux: --suspect-grace: 2h0m0s: must be 0 to 1h0m0s`},
		{"mux --interface lo --manager 10.0.0.1:1 --suspect-grace soon", exitUsage, `shunt mux: --suspect-grace: "soon": must be a duration such as 30s or 1m30s`},
		{"run -f x --interface lo --suspect-grace -1s", exitUsage, `shunt run: --suspect-grace: -1s: must be 0 to 1h0m0s`},
		{"mux --interface none0 --manager 10.0.0.1:1", exitFailed, `shunt mux: --interface: interface none0: there is none; this machine has `},
		{"mux --drain --run " + run1, exitFailed, "shunt mux: no agent is running with run directory " + run1},
		{"mux --drain --stop", exitUsage, "shunt mux: if any flags in the group [drain undrain stop check-program] are set"},
		{"mux-speaker --hold 0s", exitUsage, "shunt mux-speaker: --hold: 0s: must be above 0"},
	}
	for _, c := range cases {
		var stderr bytes.Buffer
		exit := run(strings.Fields(c.args), nil, new(bytes.Buffer), &stderr)
		if exit != c.exit || !strings.HasPrefix(stderr.String(), c.want) {
			t.Errorf("shunt %s: exit %d, %q; want %d, %q", c.args, exit, stderr.String(), c.exit, c.want)
		}
	}
}

// TestMuxWithoutTokenLeavesNothing checks that a mux that could not join detaches its program.
func TestMuxWithoutTokenLeavesNothing(t *testing.T) {
	name := fmt.Sprintf("cmdmux-%d", os.Getpid())
	pins := filepath.Join("/sys/fs/bpf", name)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(netdev.CreateNamespace(name))
	t.Cleanup(func() {
		dataplane.DetachMux(pins)
		os.Remove(pins)
		netdev.DeleteNamespace(name)
	})
	n, err := netdev.OpenNamespace(name)
	must(err)
	defer n.Close()
	must(netdev.AddVeth(netdev.VethEnd{Namespace: n, Name: "up0"}, netdev.VethEnd{Namespace: n, Name: "up1"}, 1500))
	must(n.SetUp("up0", true))
	dir := t.TempDir()
	f := muxFlags{
		ifaces: []string{"up0"}, manager: "127.0.0.1:1", tokenFile: filepath.Join(dir, "none"), name: "mux1", state: filepath.Join(dir, "state"),
		run: filepath.Join(dir, "run"), bpffs: pins, xdpMode: "native", hold: time.Second, drainWait: time.Second, sweep: time.Second,
	}
	var log bytes.Buffer
	err = netdev.In(name, func() error { return runMux(t.Context(), f, &log) })
	if err == nil || !strings.Contains(err.Error(), f.tokenFile) {
		t.Errorf("error %v: must name the token file", err)
	}
	if attached, err := dataplane.MuxAttached(pins); attached || err != nil {
		t.Errorf("attached %v, %v", attached, err)
	}
	if left, _ := os.ReadDir(pins); len(left) > 0 {
		t.Errorf("pins left: %v", left)
	}
}

// TestSuspectGrace checks that the agent gets the value of the flag from either command. 0 means no
// grace, not the default.
func TestSuspectGrace(t *testing.T) {
	for line, want := range map[string]time.Duration{
		"": health.DefaultGrace, "--suspect-grace 30s": 30 * time.Second, "--suspect-grace 0": -1, "--suspect-grace 1h": maxSuspectGrace,
	} {
		var f muxFlags
		cmd := &cobra.Command{}
		f.register(cmd)
		if err := cmd.ParseFlags(strings.Fields(line)); err != nil {
			t.Fatal(err)
		}
		if got := f.grace(); got != want {
			t.Errorf("%q: %v, want %v", line, got, want)
		}
	}
}

// TestHostWithoutTokenLeavesNothing checks that a host that could not join detaches its programs.
func TestHostWithoutTokenLeavesNothing(t *testing.T) {
	name := fmt.Sprintf("cmdhost-%d", os.Getpid())
	pins := filepath.Join("/sys/fs/bpf", name)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(netdev.CreateNamespace(name))
	t.Cleanup(func() {
		dataplane.DetachHost(pins)
		netdev.DeleteNamespace(name)
	})
	n, err := netdev.OpenNamespace(name)
	must(err)
	defer n.Close()
	must(netdev.AddVeth(netdev.VethEnd{Namespace: n, Name: "up0"}, netdev.VethEnd{Namespace: n, Name: "up1"}, 1500))
	must(n.SetUp("up0", true))
	dir := t.TempDir()
	token := filepath.Join(dir, "none")
	err = netdev.In(name, func() error {
		return host.Run(t.Context(), host.Options{
			Node:      agent.Options{Name: "host1", Manager: "127.0.0.1:1", TokenFile: token, StateDir: filepath.Join(dir, "state")},
			Interface: "up0", BPFFS: pins, RunDir: filepath.Join(dir, "run"), Flows: dataplane.MinHostFlows,
		})
	})
	if err == nil || !strings.Contains(err.Error(), token) {
		t.Errorf("error %v: must name the token file", err)
	}
	if left, _ := os.ReadDir(pins); len(left) > 0 {
		t.Errorf("pins left: %v", left)
	}
}
