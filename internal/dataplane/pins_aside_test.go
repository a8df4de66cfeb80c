package dataplane

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/shuntlb/shunt/internal/netdev"
)

const loopback = 1

// pinStranger attaches a program of others to a namespace's loopback device, by a link whose only pin is at path.
func pinStranger(t *testing.T, namespace, path string, tcx bool) {
	t.Helper()
	must(t, netdev.In(namespace, func() error {
		var l link.Link
		var err error
		if tcx {
			var p *ebpf.Program
			if p, err = ebpf.NewProgram(&ebpf.ProgramSpec{Name: "stranger", Type: ebpf.SchedCLS, AttachType: ebpf.AttachTCXIngress, License: "GPL", Instructions: newTestInstructions()}); err != nil {
				return err
			}
			defer p.Close()
			l, err = link.AttachTCX(link.TCXOptions{Program: p, Interface: loopback, Attach: ebpf.AttachTCXIngress})
		} else {
			l, err = link.AttachXDP(link.XDPOptions{Program: newTestProgram(t), Interface: loopback, Flags: link.XDPGenericMode})
		}
		if err != nil {
			return err
		}
		defer l.Close()
		return l.Pin(path)
	}))
}

// takeStranger expects a link of others, still attached, at a path, and removes it.
func takeStranger(t *testing.T, c, path string) {
	t.Helper()
	l, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		names, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
		t.Fatalf("%s: %v; there are %v", c, err, names)
	}
	defer l.Close()
	if xdpIfindex(l) != loopback && linkIfindex(l) != loopback {
		t.Errorf("%s: the stranger's program is detached", c)
	}
	must(t, os.Remove(path))
}

// aside is where the first object from the path of a pin goes.
func aside(dir, pin string) string { return filepath.Join(dir, foreignPrefix+filepath.Base(pin)+"-1") }

// TestMuxKeepsStrangersAttached: programs of others whose links have their only pins at paths of a mux's go on, while the agent runs, when it
// starts and when it is stopped; also without CAP_SYS_ADMIN, as the service units start it.
func TestMuxKeepsStrangersAttached(t *testing.T) {
	e := newMuxEnv(t)
	open := func() (m *Mux) {
		withoutSysAdmin(t, e.namespace, func() (err error) {
			m, err = OpenMux(MuxOptions{Ifindex: e.ifindex, BPFFS: e.dir, Limits: testLimits, Address: muxSelf,
				DeviceMAC: func(i int) ([6]byte, error) { return testMAC(i), nil }})
			return err
		})
		return m
	}
	put := func(pins ...string) {
		t.Helper()
		for _, pin := range pins {
			path := filepath.Join(e.dir, pin)
			must(t, os.RemoveAll(path))
			must(t, os.MkdirAll(filepath.Dir(path), 0o700))
			pinStranger(t, e.namespace, path, pin != muxPinLink)
		}
	}
	m := open()
	flows, other := filepath.Join(muxPinTables, muxMapFlows), muxPinOther+"7"
	for _, pins := range [][]string{{muxPinLink, flows}, {muxPinTables}} {
		put(pins...)
		withoutSysAdmin(t, e.namespace, func() error { _, err := m.Tend(e.ifindex); return err })
		for _, pin := range pins {
			takeStranger(t, "running, "+pin, aside(e.dir, pin))
		}
	}
	for _, pins := range [][]string{{other, muxPinNext}, {muxPinLink, flows}} {
		must(t, m.Close())
		if slices.Contains(pins, flows) {
			must(t, DetachMux(e.dir)) // nothing is attached that holds the tables
		}
		put(pins...)
		m = open()
		for _, pin := range pins {
			takeStranger(t, "start, "+pin, aside(e.dir, pin))
		}
	}
	must(t, m.Close())
	for _, pins := range [][]string{
		{other, muxPinOther + "07", "foreign-link-1", muxPinNext, filepath.Join(muxPinTables, "others"), filepath.Join(muxPinOld, muxMapFlows)}, {muxPinLink, muxPinTables},
	} {
		put(pins...)
		withoutSysAdmin(t, e.namespace, func() error { return DetachMux(e.dir) })
		for _, pin := range pins {
			takeStranger(t, "stop, "+pin, filepath.Join(e.dir, pin))
		}
		left, err := filepath.Glob(filepath.Join(e.dir, "*", "*"))
		must(t, err)
		if len(left) > 0 {
			t.Errorf("stop: %v is left", left)
		}
		must(t, os.RemoveAll(e.dir))
	}
}

// TestHostKeepsStrangersAttached is TestMuxKeepsStrangersAttached for a host.
func TestHostKeepsStrangersAttached(t *testing.T) {
	e := newHostEnv(t)
	vm := e.index("vm0")
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
	serve := serveLinkPin + strconv.Itoa(vm)
	put := func(pins ...string) {
		t.Helper()
		for _, pin := range pins {
			path := filepath.Join(e.dir, pin)
			must(t, os.RemoveAll(path))
			pinStranger(t, e.namespace, path, true)
		}
	}
	pins := []string{hostHooks[0].pin, serve, hostMapFlowSetups, hostMapHostConfigs}
	unused := []string{coLinkPin, hostCOMapCoEndpoints, hostMapFlowsTwo, hostPinFormerTags, hostMapBindingsOne, serveLinkPin + "9999"}
	put(pins...)
	withoutSysAdmin(t, e.namespace, func() error { _, err := e.host.Tend(e.ifindex); return err })
	for _, pin := range pins {
		takeStranger(t, "running, "+pin, aside(e.dir, pin))
	}
	// A device that goes, with another's link at the path of its pin.
	put(serve)
	withoutSysAdmin(t, e.namespace, func() error { _, err := e.host.Serve(HostServers{}); return err })
	takeStranger(t, "device that goes", filepath.Join(e.dir, serve))

	must(t, e.host.Close())
	all := slices.Concat(pins, unused)
	put(all...)
	start()
	for _, pin := range all {
		takeStranger(t, "start, "+pin, aside(e.dir, pin))
	}
	must(t, e.host.Close())
	all = append(all, "foreign-link_in-1", serveLinkPin+"x", serveLinkPin+"07")
	put(all...)
	withoutSysAdmin(t, e.namespace, func() error { return DetachHost(e.dir) })
	for _, pin := range all {
		takeStranger(t, "stop, "+pin, filepath.Join(e.dir, pin))
	}
	if left, err := os.ReadDir(e.dir); err != nil || len(left) != 0 {
		t.Errorf("stop: %v is left, %v", left, err)
	}
}

// TestPutAside: an object that is aside already is not put aside again, and others are so often.
func TestPutAside(t *testing.T) {
	e := newMuxEnv(t)
	must(t, EnsureBPFFS(e.dir))
	path, log := filepath.Join(e.dir, "pin"), slog.New(slog.DiscardHandler)
	p := newTestProgram(t)
	put := func() error { return putAside(e.dir, path, "an object", log) }
	for range 3 {
		clone, err := p.Clone()
		must(t, err)
		defer clone.Close()
		must(t, clone.Pin(path))
		must(t, put())
	}
	for range maxForeign - 1 {
		pinTestMap(t, path, "pin")
		must(t, put())
	}
	pinTestMap(t, path, "pin")
	if err := put(); err == nil || !strings.Contains(err.Error(), "16 objects are aside already") {
		t.Errorf("one more: %v", err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("it does not stay: %v", err)
	}
	if names, err := filepath.Glob(filepath.Join(e.dir, "*")); err != nil || len(names) != maxForeign+1 {
		t.Errorf("%d objects, want %d: %v", len(names), maxForeign+1, err)
	}
}

// TestNumberedPins: only names of interfaces' pins are of the agents.
func TestNumberedPins(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"5", "12", "x", "", "07", "+5", "-5", "0", "5_new", "5x"} {
		must(t, os.WriteFile(filepath.Join(dir, serveLinkPin+name), nil, 0o600))
	}
	if got, err := servePins(dir); err != nil || !slices.Equal(got, []string{servePin(dir, 5), servePin(dir, 12)}) {
		t.Errorf("%v, %v", got, err)
	}
}

// TestSymbolsAreReadOnce: who looks at a link again and again, as the BGP speaker does, reads the kernel's symbols once.
func TestSymbolsAreReadOnce(t *testing.T) {
	e := newMuxEnv(t)
	must(t, netdev.In(e.namespace, func() error {
		m, err := OpenMux(MuxOptions{Ifindex: e.ifindex, BPFFS: e.dir, Limits: testLimits, Address: muxSelf, DeviceMAC: func(i int) ([6]byte, error) { return testMAC(i), nil }})
		if err == nil {
			t.Cleanup(func() { m.Close() })
		}
		return err
	}))
	l, err := link.LoadPinnedLink(filepath.Join(e.dir, muxPinLink), nil)
	must(t, err)
	t.Cleanup(func() { l.Close() })
	had := kernelSymbols
	t.Cleanup(func() { kernelSymbols = had })
	for _, kernelSymbols = range []string{had, filepath.Join(t.TempDir(), "none")} {
		if name := linkSymbol(l); name != muxProgMux {
			t.Errorf("with symbols in %s: program %q, want %q", kernelSymbols, name, muxProgMux)
		}
	}
}
