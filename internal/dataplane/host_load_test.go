package dataplane

import (
	"net"
	"strings"
	"testing"

	"github.com/cilium/ebpf/link"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
)

// TestHostRefusesOtherABI: pins of another version are left alone, and the error says what to do.
func TestHostRefusesOtherABI(t *testing.T) {
	e := newHostEnv(t)
	must(t, e.host.objects.HostConfigs.Put(uint32(0), hostHostConfig{AbiVersion: 99}))
	err := netdev.In(e.namespace, func() error {
		_, err := OpenHost(HostOptions{Ifindex: e.ifindex, Dir: e.dir})
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "have ABI version 99, this binary has 4: stop the host agent with --stop first") {
		t.Errorf("error %v", err)
	}
	if attached, err := HostAttached(e.dir); err != nil || !attached {
		t.Errorf("attached %v, %v: the running programs were touched", attached, err)
	}
}

// TestHostRefusesDirectory: pins need a bpf file system.
func TestHostRefusesDirectory(t *testing.T) {
	_, err := OpenHost(HostOptions{Ifindex: 1, Dir: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "it must lie on a bpf file system (mount -t bpf bpf /sys/fs/bpf)") {
		t.Errorf("error %v", err)
	}
}

// TestHostMoves: an agent that starts with another interface takes the programs there, tables and all.
func TestHostMoves(t *testing.T) {
	e := newHostEnv(t)
	b := bind(lb.TCP, vip4, dip4, dip4, true)
	e.apply(b)
	must(t, netdev.In(e.namespace, func() error {
		i, err := net.InterfaceByName("vm0")
		e.ifindex = i.Index
		return err
	}))
	e.open()
	for _, l := range e.host.links {
		if got := linkIfindex(l); got != e.ifindex {
			t.Errorf("link on interface %d, want %d", got, e.ifindex)
		}
	}
	must(t, netdev.In(e.namespace, func() error {
		up, err := net.InterfaceByName("up0")
		must(t, err)
		for _, hook := range hostHooks {
			left, err := link.QueryPrograms(link.QueryOptions{Target: up.Index, Attach: hook.attach})
			must(t, err)
			if n := len(left.Programs); n != 0 {
				t.Errorf("%d programs left on the old interface", n)
			}
		}
		return nil
	}))
	if len(e.host.state.bindings) != 1 {
		t.Errorf("%d bindings after the move, want 1", len(e.host.state.bindings))
	}
}
