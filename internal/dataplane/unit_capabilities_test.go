package dataplane

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
)

// withoutSysAdmin calls f in a namespace on a thread that has not CAP_SYS_ADMIN, as the service units start agents. Without it the kernel opens
// no program, map or link by its id.
func withoutSysAdmin(t *testing.T, namespace string, f func() error) {
	t.Helper()
	must(t, netdev.In(namespace, func() (err error) {
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var had [2]unix.CapUserData
		if err := unix.Capget(&header, &had[0]); err != nil {
			return err
		}
		less := had
		less[0].Effective &^= 1 << unix.CAP_SYS_ADMIN
		if err := unix.Capset(&header, &less[0]); err != nil {
			return err
		}
		defer func() {
			if back := unix.Capset(&header, &had[0]); err == nil {
				err = back
			}
		}()
		return f()
	}))
}

// TestMuxStartsAgainWithoutSysAdmin: an agent of the service unit takes over the pins of the one before, finds its program attached, and restores pins that are
// removed, those of links too.
func TestMuxStartsAgainWithoutSysAdmin(t *testing.T) {
	e := newMuxEnv(t)
	open := func() (m *Mux) {
		withoutSysAdmin(t, e.namespace, func() (err error) {
			m, err = OpenMux(MuxOptions{Ifindex: e.ifindex, BPFFS: e.dir, Limits: testLimits, Address: muxSelf,
				DeviceMAC: func(i int) ([6]byte, error) { return testMAC(i), nil }})
			return err
		})
		return m
	}
	m := open()
	key := m.memory.config.FlowKey
	must(t, m.Close())
	m = open()
	defer func() { m.Close() }()
	if m.memory.config.FlowKey != key {
		t.Error("the second start has other tables")
	}
	withoutSysAdmin(t, e.namespace, func() error {
		w, err := m.Watch(WatchFilter{VIP: netip.MustParseAddr(vip4), Protocol: 6, First: 1, Last: 1, Snaplen: 64, SentSnaplen: 64})
		if err != nil {
			return err
		}
		return w.Close()
	})
	for _, pin := range []string{muxPinLink, filepath.Join(muxPinTables, muxMapFlows)} {
		must(t, os.Remove(filepath.Join(e.dir, pin)))
		withoutSysAdmin(t, e.namespace, func() error {
			attached, err := MuxAttached(e.dir)
			if err == nil && attached != (pin != muxPinLink) {
				t.Errorf("without %s: attached %v", pin, attached)
			}
			mended, tendErr := m.Tend(e.ifindex)
			if !strings.Contains(mended, filepath.Base(pin)) {
				t.Errorf("without %s: restored %q", pin, mended)
			}
			if err != nil {
				return err
			}
			return tendErr
		})
	}
	must(t, m.Close())
	// A migration that was killed: the set of tables that is to come is there beside the present one.
	must(t, os.Rename(filepath.Join(e.dir, muxPinTables), filepath.Join(e.dir, muxPinNext)))
	if m = open(); m.memory.config.FlowKey != key {
		t.Error("after a killed migration: other tables")
	}
}

// TestHostStartsAgainWithoutSysAdmin is TestMuxStartsAgainWithoutSysAdmin for a host.
func TestHostStartsAgainWithoutSysAdmin(t *testing.T) {
	e := newHostEnv(t)
	vm := e.index("vm0")
	key := e.host.flows.key
	start := func() {
		t.Helper()
		withoutSysAdmin(t, e.namespace, func() (err error) {
			if e.host, err = OpenHost(HostOptions{Ifindex: e.ifindex, Dir: e.dir, Flows: e.flows}); err != nil {
				return err
			}
			_, err = e.host.Serve(HostServers{Devices: []int{vm}})
			return err
		})
		h := e.host
		t.Cleanup(func() { h.Close() })
	}
	must(t, e.host.Close())
	start()
	must(t, e.host.Close())
	start()
	if e.host.flows.key != key {
		t.Error("the third start has other tables")
	}
	for _, pin := range []string{hostHooks[0].pin, hostMapFlowTags} {
		must(t, os.Remove(filepath.Join(e.dir, pin)))
		withoutSysAdmin(t, e.namespace, func() error {
			restored, err := e.host.Tend(e.ifindex)
			if !strings.Contains(strings.Join(restored, " "), pin) {
				t.Errorf("without %s: restored %q", pin, restored)
			}
			return err
		})
	}
	withoutSysAdmin(t, e.namespace, func() error {
		attached, err := HostAttached(e.dir)
		if err == nil && !attached {
			t.Error("the programs do not count as attached")
		}
		return err
	})
}

// TestHostResizesWithoutSysAdmin: the flow table gets another size with all of its flows, also where an agent was killed while it filled the table of a
// size before.
func TestHostResizesWithoutSysAdmin(t *testing.T) {
	e := newHostEnv(t)
	e.apply(bind(lb.TCP, vip4, dip4, dip4, true))
	const flows = 100
	for i := range uint16(flows) {
		e.in4(packet{sport: 1 + i, ack: true})
	}
	start := func(size uint32) {
		t.Helper()
		must(t, e.host.Close())
		e.flows = size
		withoutSysAdmin(t, e.namespace, func() (err error) {
			e.host, err = OpenHost(HostOptions{Ifindex: e.ifindex, Dir: e.dir, Flows: size})
			return err
		})
		h := e.host
		t.Cleanup(func() { h.Close() })
		n := 0
		h.flows.all(e.tick(), func(flowTag, *hostFlowRecord) { n++ })
		if got := len(h.flows.records); n != flows || got != int(size) {
			t.Errorf("%d flows in a table of %d, want %d in %d", n, got, flows, size)
		}
		if left, err := filepath.Glob(filepath.Join(e.dir, "*_was")); err != nil || len(left) != 0 {
			t.Errorf("%v is left", left)
		}
	}
	start(MinHostFlows * 2)
	for _, size := range []uint32{MinHostFlows * 4, MinHostFlows, MinHostFlows * 8} {
		must(t, asideFlows(e.dir))
		spec, err := hostSpec()
		must(t, err)
		for name, entries := range map[string]uint32{hostMapFlowTags: MinHostFlows * 4 / uint32(flowWays), hostMapFlowRecords: MinHostFlows * 4, hostMapFlowCookies: MinHostFlows * 4} {
			spec.Maps[name].MaxEntries = entries
			m, err := ebpf.NewMapWithOptions(spec.Maps[name], ebpf.MapOptions{PinPath: e.dir})
			must(t, err)
			must(t, m.Close())
		}
		start(size)
	}
}
