package dataplane

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/netdev"
)

// tend runs Tend for the present uplink, in the environment's namespace.
func (e *hostEnv) tend() (restored string) {
	e.t.Helper()
	must(e.t, netdev.In(e.namespace, func() error {
		i, err := net.InterfaceByName("up0")
		must(e.t, err)
		all, err := e.host.Tend(i.Index)
		restored = strings.Join(all, "; ")
		return err
	}))
	return restored
}

func (e *hostEnv) index(name string) (index int) {
	e.t.Helper()
	must(e.t, netdev.In(e.namespace, func() error {
		i, err := net.InterfaceByName(name)
		index = i.Index
		return err
	}))
	return index
}

// TestHostTend breaks each thing that the host's agent attaches or pins, twice, and expects it restored.
func TestHostTend(t *testing.T) {
	e := newHostEnv(t)
	vm := e.index("vm0")
	must(t, netdev.In(e.namespace, func() error {
		_, err := e.host.Serve(HostServers{Devices: []int{vm}})
		return err
	}))
	ip := func(line string) {
		t.Helper()
		if out, err := exec.Command("ip", append([]string{"-n", e.namespace}, strings.Fields(line)...)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", line, err, out)
		}
	}
	serve := filepath.Join(e.dir, serveLinkPin+strconv.Itoa(vm))
	whole := func() {
		t.Helper()
		attached, err := HostAttached(e.dir)
		missing, missErr := badPins(e.dir, e.host.pinnedMaps(), nil)
		if err != nil || missErr != nil || !attached || len(missing) > 0 {
			t.Errorf("attached %v, bad pins %q, errors %v, %v", attached, missing, err, missErr)
		}
		if _, err := os.Stat(serve); err != nil || linkIfindex(e.host.serve[vm]) != vm {
			t.Errorf("the program of the servers' device: pin %v, on interface %d", err, linkIfindex(e.host.serve[vm]))
		}
		if got := e.tend(); got != "" {
			t.Errorf("nothing was broken, but it restored %s", got)
		}
	}
	whole()
	for _, c := range []struct {
		name, restored string
		damage         func()
	}{
		{"pin of a table", "pins of tables: " + hostMapFlowRecords, func() { must(t, os.Remove(filepath.Join(e.dir, hostMapFlowRecords))) }},
		{"pin of host_in", "pin of link_in", func() { must(t, os.Remove(filepath.Join(e.dir, "link_in"))) }},
		{"pin of host_out", "pin of link_out", func() { must(t, os.Remove(filepath.Join(e.dir, "link_out"))) }},
		{"pin of host_serve", "pin of link_serve_", func() { must(t, os.Remove(serve)) }},
		{"host_in", "attachment of link_in", func() { must(t, e.host.links[0].Detach()) }},
		{"host_out", "attachment of link_out", func() { must(t, e.host.links[1].Detach()) }},
		{"host_serve", "attachment of link_serve_", func() { must(t, e.host.serve[vm].Detach()) }},
		{"directory", "pins of all tables", func() { must(t, os.RemoveAll(e.dir)) }},
		{"uplink", "attachment of link_in", func() {
			ip("link del up0")
			ip("link add up0 type veth peer name up1")
		}},
	} {
		for range 2 {
			c.damage()
			if got := e.tend(); !strings.Contains(got, c.restored) {
				t.Errorf("%s: restored %q, expected %q", c.name, got, c.restored)
			}
			whole()
		}
	}
	// The next agent adopts the same tables.
	key := e.host.flows.key
	must(t, e.host.Close())
	e.ifindex = e.index("up0")
	e.open()
	if e.host.flows.key != key {
		t.Error("the next agent has another flow key: its tables are new")
	}
	whole()
}
