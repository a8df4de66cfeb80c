package lab_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/shuntlb/shunt/internal/lab"
)

// `lab up` may be killed at any point: the next one completes the lab, and `lab down` leaves
// nothing behind.
func TestUpAfterKillAndDown(t *testing.T) {
	name := fmt.Sprintf("kill%d", os.Getpid())
	t.Cleanup(func() {
		if err := lab.Down(context.Background(), name); err != nil {
			t.Error(err)
		}
		nothingLeft(t, name)
	})
	for _, point := range []string{"network:", "manager1:", "agents:"} {
		killUp(t, name, point)
		names, err := lab.Names()
		if err != nil || !slices.Contains(names, name) {
			t.Fatalf("after kill -9 at %q lab %s is not among %v: %v", point, name, names, err)
		}
		if point == "manager1:" { // at this point, check that down alone suffices
			if err := lab.Down(t.Context(), name); err != nil {
				t.Fatal(err)
			}
			nothingLeft(t, name)
		}
	}
	topology := lab.DefaultTopology()
	topology.Name, topology.Routers.Daemon = name, lab.BIRD
	l, err := lab.Up(t.Context(), topology, lab.Options{Binary: program})
	if err != nil {
		t.Fatal(err)
	}
	logsOnFailure(t, l)
	worksWithBIRD(t, l)
	upAgainChangesNothing(t, l)
	upRepairsTheRouter(t, l)
}

// worksWithBIRD sends traffic through a lab whose router is BIRD.
func worksWithBIRD(t *testing.T, l *lab.Lab) {
	t.Helper()
	web := service{name: "web", number: 10, protocol: "tcp", port: 80, dipPort: 8080, backends: []string{"host1-vm1", "host2-vm1", "host3-vm1"}}
	if _, err := l.Apply(t.Context(), web.yaml(t)); err != nil {
		t.Fatal(err)
	}
	if err := l.WaitRoutes(t.Context(), web.number, l.Topology.Muxes); err != nil {
		t.Fatal(err)
	}
	for _, target := range web.targets() {
		if err := l.FirstAnswer(t.Context(), "client1", target); err != nil {
			t.Error(err)
		}
	}
	if err := l.LoseMux(t.Context(), "mux1"); err != nil {
		t.Fatal(err)
	}
	if err := l.WaitRoutes(t.Context(), web.number, l.Topology.Muxes-1); err != nil {
		t.Error(err)
	}
	if err := l.ReviveMux("mux1"); err != nil {
		t.Fatal(err)
	}
	if err := l.WaitRoutes(t.Context(), web.number, l.Topology.Muxes); err != nil {
		t.Error(err)
	}
}

// upAgainChangesNothing brings a complete lab up a second time.
func upAgainChangesNothing(t *testing.T, l *lab.Lab) {
	t.Helper()
	before, err := l.Processes()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lab.Up(t.Context(), l.Topology, lab.Options{Binary: program}); err != nil {
		t.Fatal(err)
	}
	after, err := l.Processes()
	if err != nil || !slices.Equal(before, after) {
		t.Errorf("the second up changed processes from %v to %v: %v", before, after, err)
	}
	vip, _ := lab.VIPAddresses(10)
	if via, err := l.RoutesAtRouter(netip.PrefixFrom(vip, 32)); err != nil || len(via) != l.Topology.Muxes {
		t.Errorf("after the second up routes are %v: %v", via, err)
	}
}

// upRepairsTheRouter kills the routing daemon. The next up starts it, and applied objects remain.
func upRepairsTheRouter(t *testing.T, l *lab.Lab) {
	t.Helper()
	processes, err := l.Processes()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range processes {
		if p.Node != "router1" {
			continue
		}
		if err := syscall.Kill(p.Pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		await(t, "the daemon's end", func(context.Context) error {
			if p.Alive() {
				return errors.New("it runs")
			}
			return nil
		})
	}
	if _, err := lab.Up(t.Context(), l.Topology, lab.Options{Binary: program}); err != nil {
		t.Fatal(err)
	}
	if err := l.WaitRoutes(t.Context(), 10, l.Topology.Muxes); err != nil {
		t.Error(err)
	}
}

// killUp starts `lab up` and kills it when its progress reaches a line.
func killUp(t *testing.T, name, line string) {
	t.Helper()
	cmd := exec.Command(program, "lab", "up", "--name", name, "--daemon", "bird")
	progress, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	reached := false
	for lines := bufio.NewScanner(progress); !reached && lines.Scan(); {
		t.Logf("lab up: %s", lines.Text())
		reached = strings.HasPrefix(lines.Text(), line)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // killed
	if !reached {
		t.Fatalf("lab up ended before it said %q", line)
	}
}

// nothingLeft checks that no part of a lab remains.
func nothingLeft(t *testing.T, name string) {
	t.Helper()
	for _, pattern := range []string{"/run/netns/" + name + "-*", lab.Dir(name), lab.Root + "/." + name + "*", "/sys/fs/bpf/shunt-lab/" + name} {
		if left, _ := filepath.Glob(pattern); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
	environments, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range environments {
		env, err := os.ReadFile(path)
		if err == nil && slices.Contains(strings.Split(string(env), "\x00"), "SHUNT_LAB="+name) {
			t.Errorf("left behind: process %s", filepath.Base(filepath.Dir(path)))
		}
	}
}
