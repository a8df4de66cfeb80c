package dataplane

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/shuntlb/shunt/internal/netdev"
)

// foreignPins are other objects at the path of a pin, in the words of logs.
var foreignPins = []struct {
	words string
	pin   func(t *testing.T, path string)
}{
	{"another map, shunt_test of type Hash", func(t *testing.T, path string) { pinTestMap(t, path, "shunt_test") }},
	{"a program", pinTestProgram},
	{directoryWords, func(t *testing.T, path string) {
		must(t, os.Mkdir(path, 0o700))
		pinTestProgram(t, filepath.Join(path, "inside"))
	}},
	{"a symbolic link", func(t *testing.T, path string) { must(t, os.Symlink("nowhere", path)) }},
}

func pinTestMap(t *testing.T, path, name string) {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: name, Type: ebpf.Hash, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	must(t, err)
	defer m.Close()
	must(t, m.Pin(path))
}

func newTestInstructions() asm.Instructions {
	return asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}
}

// newTestProgram returns an XDP program that passes all packets.
func newTestProgram(t *testing.T) *ebpf.Program {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "shunt_test", Type: ebpf.XDP, License: "GPL",
		Instructions: newTestInstructions()})
	must(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

func pinTestProgram(t *testing.T, path string) {
	t.Helper()
	must(t, newTestProgram(t).Pin(path))
}

// logTo returns a logger that writes to b.
func logTo(b *bytes.Buffer) *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }

// openWithLog is open with a log.
func (e *muxEnv) openWithLog(b *bytes.Buffer) *Mux {
	e.t.Helper()
	var m *Mux
	must(e.t, netdev.In(e.namespace, func() (err error) {
		m, err = OpenMux(MuxOptions{Ifindex: e.ifindex, BPFFS: e.dir, Limits: testLimits, Address: muxSelf, Log: logTo(b),
			DeviceMAC: func(i int) ([6]byte, error) { return testMAC(i), nil }})
		return err
	}))
	return m
}

// TestMuxForeignPins puts other objects at the paths of a mux's pins, while its agent runs and while none does. Each is named and replaced. The
// tables stay, and the agent's next start adopts them.
func TestMuxForeignPins(t *testing.T) {
	e := newMuxEnv(t)
	var log bytes.Buffer
	m := e.openWithLog(&log)
	defer func() { m.Close() }()
	f := &muxFixture{t, m, &muxModel{alive: map[MemberKey]bool{}, mac: testMAC, ingress: ingress}}
	f.apply(basicState())
	key := m.memory.config.FlowKey
	whole := func(c string) {
		t.Helper()
		bad, err := badPins(filepath.Join(e.dir, muxPinTables), m.objects.byName(), nil)
		must(t, err)
		badLink, err := badLinkPin(m.linkPin(), m.link)
		must(t, err)
		if len(bad) > 0 || badLink != nil || xdpIfindex(m.link) != e.ifindex || m.memory.config.FlowKey != key {
			t.Fatalf("%s: bad pins %s, of the link %v, attached to %d, tables are the former: %v", c, pinWords(bad), badLink, xdpIfindex(m.link), m.memory.config.FlowKey == key)
		}
		if got := e.tend(m); got != "" {
			t.Fatalf("%s: restored again: %s", c, got)
		}
	}
	for i, foreign := range foreignPins {
		words := foreign.words
		for j, pin := range []string{filepath.Join(muxPinTables, muxMapFlows), muxPinTables, filepath.Join(muxPinTables, muxMapConfigs), muxPinLink} {
			path := filepath.Join(e.dir, pin)
			if pin == muxPinTables && words == directoryWords {
				continue // it is one
			}
			must(t, os.RemoveAll(path))
			foreign.pin(t, path)
			got := e.tend(m)
			if name := filepath.Base(pin); pin != muxPinTables && !strings.Contains(got, name+" ("+words+" was there)") {
				t.Errorf("%s at %s: restored %q", words, pin, got)
			}
			whole("running, " + words + " at " + pin)

			if i != j%len(foreignPins) {
				continue // a start takes long
			}
			must(t, m.Close())
			must(t, os.RemoveAll(path))
			foreign.pin(t, path)
			log.Reset()
			m = e.openWithLog(&log)
			if !strings.Contains(log.String(), words) {
				t.Errorf("start with %s at %s: logged %s", words, pin, log.String())
			}
			whole("start, " + words + " at " + pin)
		}
	}
}

// TestMuxForeignPinsWithoutProgram: with no program attached nothing holds a table whose pin is another object. The mux begins with empty tables
// and logs that.
func TestMuxForeignPinsWithoutProgram(t *testing.T) {
	e := newMuxEnv(t)
	var log bytes.Buffer
	m := e.openWithLog(&log)
	key := m.memory.config.FlowKey
	must(t, m.Close())
	flows := filepath.Join(e.dir, muxPinTables, muxMapFlows)
	must(t, os.Remove(flows))
	pinTestMap(t, flows, "shunt_test")
	must(t, os.Remove(filepath.Join(e.dir, muxPinLink)))
	m = e.openWithLog(&log)
	defer m.Close()
	if !strings.Contains(log.String(), "tables are lost") || m.memory.config.FlowKey == key {
		t.Errorf("former tables: %v, logged %s", m.memory.config.FlowKey == key, log.String())
	}
}

// TestMuxLeavesOthersLinks: a stranger's link at the path of a mux's pin loses its pin, and stays attached.
func TestMuxLeavesOthersLinks(t *testing.T) {
	e := newMuxEnv(t)
	const lo = 1
	var stranger link.Link
	must(t, netdev.In(e.namespace, func() (err error) {
		stranger, err = link.AttachXDP(link.XDPOptions{Program: newTestProgram(t), Interface: lo, Flags: link.XDPGenericMode})
		return err
	}))
	defer stranger.Close()
	must(t, os.MkdirAll(e.dir, 0o700))
	must(t, stranger.Pin(filepath.Join(e.dir, muxPinLink)))
	m, err := e.open(XDPNative)
	must(t, err)
	defer m.Close()
	if xdpIfindex(stranger) != lo || xdpIfindex(m.link) != e.ifindex {
		t.Errorf("the stranger's link is on %d, expected %d; the mux's on %d, expected %d", xdpIfindex(stranger), lo, xdpIfindex(m.link), e.ifindex)
	}
}

// TestHostForeignPins is TestMuxForeignPins for a host.
func TestHostForeignPins(t *testing.T) {
	e := newHostEnv(t)
	vm := e.index("vm0")
	key := e.host.flows.key
	var log bytes.Buffer
	start := func() {
		t.Helper()
		log.Reset()
		must(t, netdev.In(e.namespace, func() (err error) {
			if e.host, err = OpenHost(HostOptions{Ifindex: e.ifindex, Dir: e.dir, Flows: e.flows, Log: logTo(&log)}); err != nil {
				return err
			}
			_, err = e.host.Serve(HostServers{Devices: []int{vm}})
			return err
		}))
		h := e.host
		t.Cleanup(func() { h.Close() })
	}
	must(t, e.host.Close())
	start()
	whole := func(c string) {
		t.Helper()
		bad, err := badPins(e.dir, e.host.pinnedMaps(), nil)
		must(t, err)
		attached, err := HostAttached(e.dir)
		must(t, err)
		if len(bad) > 0 || !attached || linkIfindex(e.host.serve[vm]) != vm || e.host.flows.key != key {
			t.Fatalf("%s: bad pins %s, attached %v, tables are the former: %v", c, pinWords(bad), attached, e.host.flows.key == key)
		}
		if got := e.tend(); got != "" {
			t.Fatalf("%s: restored again: %s", c, got)
		}
	}
	for i, foreign := range foreignPins {
		words := foreign.words
		for j, pin := range []string{hostMapFlowTags, hostMapFlowSetups, hostMapHostConfigs, "link_in", serveLinkPin + strconv.Itoa(vm)} {
			path := filepath.Join(e.dir, pin)
			must(t, os.RemoveAll(path))
			foreign.pin(t, path)
			if got := e.tend(); !strings.Contains(got, pin+" ("+words+" was there)") {
				t.Errorf("%s at %s: restored %q", words, pin, got)
			}
			whole("running, " + words + " at " + pin)

			if i != j%len(foreignPins) {
				continue // a start takes long
			}
			must(t, e.host.Close())
			must(t, os.RemoveAll(path))
			foreign.pin(t, path)
			start()
			if !strings.Contains(log.String(), words) {
				t.Errorf("start with %s at %s: logged %s", words, pin, log.String())
			}
			whole("start, " + words + " at " + pin)
		}
	}
	// A table of the same name and sizes, of another host.
	must(t, e.host.Close())
	path := filepath.Join(e.dir, hostMapFlowSetups)
	own, err := ebpf.LoadPinnedMap(path, nil)
	must(t, err)
	defer own.Close()
	must(t, os.Remove(path))
	other, err := ebpf.NewMap(&ebpf.MapSpec{Name: hostMapFlowSetups, Type: own.Type(), KeySize: own.KeySize(), ValueSize: own.ValueSize(), MaxEntries: own.MaxEntries(), Flags: own.Flags()})
	must(t, err)
	defer other.Close()
	must(t, other.Pin(path))
	start()
	whole("start, a table of another host")
}
