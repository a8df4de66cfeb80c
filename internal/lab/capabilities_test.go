package lab

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/netdev"
)

// capabilityNames are the names of unitCapabilities' values in systemd.
var capabilityNames = map[int]string{
	unix.CAP_BPF: "CAP_BPF", unix.CAP_PERFMON: "CAP_PERFMON", unix.CAP_NET_ADMIN: "CAP_NET_ADMIN", unix.CAP_NET_RAW: "CAP_NET_RAW",
	unix.CAP_NET_BIND_SERVICE: "CAP_NET_BIND_SERVICE", unix.CAP_SYS_RESOURCE: "CAP_SYS_RESOURCE", unix.CAP_SETUID: "CAP_SETUID", unix.CAP_SETGID: "CAP_SETGID",
	unix.CAP_KILL: "CAP_KILL", unix.CAP_SYS_NICE: "CAP_SYS_NICE",
}

// TestUnitCapabilities checks that the service units leave the same capabilities.
func TestUnitCapabilities(t *testing.T) {
	for command, have := range unitCapabilities {
		unit, err := os.ReadFile("../../packaging/systemd/shunt-" + command + ".service")
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for line := range strings.Lines(string(unit)) {
			if list, ok := strings.CutPrefix(line, "CapabilityBoundingSet="); ok {
				want = append(want, strings.Fields(list)...)
			}
		}
		var got []string
		for _, c := range have {
			got = append(got, capabilityNames[c])
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: a laboratory leaves %v, the unit %v", command, got, want)
		}
	}
}

// TestStartBounded checks that a process has only these capabilities, and that later processes of
// other threads are not affected.
func TestStartBounded(t *testing.T) {
	name := fmt.Sprintf("bounded-%d", os.Getpid())
	if out, err := exec.Command("ip", "netns", "add", name).CombinedOutput(); err != nil {
		t.Fatalf("make namespace: %v: %s", err, out)
	}
	t.Cleanup(func() { exec.Command("ip", "netns", "del", name).Run() })
	const command = "grep CapEff /proc/self/status"
	var out strings.Builder
	cmd := exec.Command("sh", "-c", command)
	cmd.Stdout = &out
	if err := netdev.In(name, func() error { return startBounded(cmd, []int{unix.CAP_NET_ADMIN, unix.CAP_BPF}) }); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("%016x", 1<<unix.CAP_NET_ADMIN|1<<unix.CAP_BPF); !strings.Contains(out.String(), want) {
		t.Errorf("the process has %s, expected %s", out.String(), want)
	}
	for range 100 {
		after, err := exec.Command("sh", "-c", command).Output()
		if err != nil || string(after) == out.String() {
			t.Fatalf("another process has %s too (%v)", after, err)
		}
	}
}
