package dataplane

import (
	"bytes"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
)

// unitCapabilities are those that the service units leave to muxes and hosts.
var unitCapabilities = []int{
	unix.CAP_BPF, unix.CAP_PERFMON, unix.CAP_NET_ADMIN, unix.CAP_NET_RAW, unix.CAP_NET_BIND_SERVICE, unix.CAP_SYS_RESOURCE, unix.CAP_SETUID, unix.CAP_SETGID,
	unix.CAP_KILL,
}

// withoutSysAdmin calls f in a namespace on a thread that has only unitCapabilities. Without CAP_SYS_ADMIN the kernel opens no program, map or link by
// its id.
func withoutSysAdmin(t *testing.T, namespace string, f func() error) {
	t.Helper()
	must(t, netdev.In(namespace, func() (err error) {
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var had [2]unix.CapUserData
		if err := unix.Capget(&header, &had[0]); err != nil {
			return err
		}
		less := had
		less[0].Effective, less[1].Effective = 0, 0
		for _, c := range unitCapabilities {
			less[c/32].Effective |= had[c/32].Effective & (1 << (c % 32))
		}
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
	// Pins that were removed while no agent ran: the kernel does not show the tables, but the mux starts, and the first plan fills new ones.
	for _, table := range []string{muxMapFlows, muxMapConfigs} {
		must(t, m.Close())
		must(t, os.Remove(filepath.Join(e.dir, muxPinTables, table)))
		m = open()
		withoutSysAdmin(t, e.namespace, func() error {
			(&muxFixture{t, m, &muxModel{alive: map[MemberKey]bool{}, mac: testMAC, ingress: ingress}}).apply(basicState())
			return nil
		})
		bad, err := badPins(filepath.Join(e.dir, muxPinTables), m.objects.byName(), nil)
		must(t, err)
		if len(bad) > 0 || m.former != nil || xdpIfindex(m.link) != e.ifindex {
			t.Errorf("without %s: bad pins %s", table, pinWords(bad))
		}
	}
}

// unitChild is set for a process that TestBurstsInUnits starts: the directory of its pins.
const unitChild = "SHUNT_TEST_UNIT_PINS"

// TestBurstsInUnits: a process with the capabilities of the service units sends long bursts of checks, and makes the device of SNAT. Quick bursts
// need a namespace, which takes CAP_SYS_ADMIN.
func TestBurstsInUnits(t *testing.T) {
	if dir := os.Getenv(unitChild); dir != "" {
		burstsInUnit(t, dir)
		return
	}
	e := newMuxEnv(t)
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestBurstsInUnits$", "-test.v")
	cmd.Env = append(os.Environ(), unitChild+"="+e.dir)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine: nothing gives it its capabilities back
		started <- netdev.In(e.namespace, func() error {
			for c := range unix.CAP_LAST_CAP + 1 {
				if slices.Contains(unitCapabilities, c) {
					continue
				}
				if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil && err != unix.EINVAL {
					return err
				}
			}
			return cmd.Start()
		})
	}()
	must(t, <-started)
	if err := cmd.Wait(); err != nil || !bytes.Contains(out.Bytes(), []byte("PASS: TestBurstsInUnits")) {
		t.Fatalf("%v: %s", err, out.String())
	}
}

// burstsInUnit is what the process does.
func burstsInUnit(t *testing.T, dir string) {
	up, err := netdev.FindInterface("up0")
	must(t, err)
	m, err := OpenMux(MuxOptions{Ifindex: up.Index, BPFFS: dir, Limits: testLimits, Address: muxSelf, DeviceMAC: func(i int) ([6]byte, error) { return testMAC(i), nil }})
	must(t, err)
	defer m.Close()
	probes, err := m.Probes()
	must(t, err)
	if quick, err := probes.OpenBurst(true); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("quick bursts: %v, %v: the documentation says that they need CAP_SYS_ADMIN", quick, err)
	}
	burst, err := probes.OpenBurst(false)
	must(t, err)
	defer burst.Close()
	must(t, burst.Put(0, BurstFrame{Number: 1, Ifindex: int32(up.Index), Data: make([]byte, 60)}))
	burst.Start(1, 1, time.Millisecond)
	for ended := false; !ended; runtime.Gosched() {
		_, ended = burst.Sent()
		_, err := burst.Idle()
		must(t, err)
	}
	tap, err := netdev.OpenTap("unit%d")
	must(t, err)
	must(t, tap.Close())
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
