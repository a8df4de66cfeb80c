package dataplane

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
)

var muxEnvs atomic.Int32

// muxEnv is a namespace with a veth for a mux, and a directory for its pins.
type muxEnv struct {
	t         *testing.T
	namespace string
	dir       string
	ifindex   int
}

func newMuxEnv(t *testing.T) *muxEnv {
	t.Helper()
	name := fmt.Sprintf("muxbpf-%d-%d", os.Getpid(), muxEnvs.Add(1))
	e := &muxEnv{t: t, namespace: name, dir: filepath.Join(bpffsRoot, name)}
	must(t, netdev.CreateNamespace(name))
	t.Cleanup(func() { netdev.DeleteNamespace(name) })
	n, err := netdev.OpenNamespace(name)
	must(t, err)
	defer n.Close()
	must(t, n.SetUp("lo", true))
	must(t, netdev.AddVeth(netdev.VethEnd{Namespace: n, Name: "up0"}, netdev.VethEnd{Namespace: n, Name: "up1"}, 1500))
	must(t, netdev.In(name, func() error {
		i, err := netdev.FindInterface("up0")
		e.ifindex = i.Index
		return err
	}))
	t.Cleanup(func() {
		DetachMux(e.dir)
		os.RemoveAll(e.dir)
	})
	return e
}

// open opens the mux as its agent would, in the namespace.
func (e *muxEnv) open(mode XDPMode) (m *Mux, err error) {
	e.t.Helper()
	err = netdev.In(e.namespace, func() error {
		m, err = OpenMux(MuxOptions{Ifindex: e.ifindex, Mode: mode, BPFFS: e.dir, Limits: testLimits, Address: muxSelf,
			DeviceMAC: func(i int) ([6]byte, error) { return testMAC(i), nil }})
		return err
	})
	return m, err
}

func (e *muxEnv) attached() bool {
	e.t.Helper()
	ok, err := MuxAttached(e.dir)
	must(e.t, err)
	return ok
}

// xdp is what ip link shows of the program.
func (e *muxEnv) xdp() string {
	e.t.Helper()
	out, err := exec.Command("ip", "-n", e.namespace, "link", "show", "up0").CombinedOutput()
	must(e.t, err)
	return string(out)
}

func TestMuxSurvivesItsAgent(t *testing.T) {
	e := newMuxEnv(t)
	if e.attached() {
		t.Fatal("attached before the start")
	}
	first, err := e.open(XDPNative)
	must(t, err)
	f := &muxFixture{t, first, &muxModel{alive: map[MemberKey]bool{}, mac: testMAC, ingress: ingress}}
	s := basicState()
	f.apply(s)
	hops := hopsTo(s)
	delete(hops, s.Endpoints[6].Members[0].Outer)
	f.setHops(hops)
	f.setAlive(MemberAlive{s.Endpoints[0].Key, 1, false})
	for _, c := range forwardCases() {
		f.check(c.frame)
	}
	counted, err := first.Counters()
	must(t, err)
	must(t, first.Close())
	if !e.attached() || !strings.Contains(e.xdp(), "prog/xdp") {
		t.Fatalf("the program went with its agent: %s", e.xdp())
	}

	second, err := e.open(XDPNative)
	must(t, err)
	f.mux = second
	adopted, err := second.Counters()
	must(t, err)
	if !maps.Equal(adopted.Members, counted.Members) || !maps.Equal(adopted.Endpoints, counted.Endpoints) {
		t.Errorf("counters changed: %v, then %v", counted, adopted)
	}
	for _, c := range forwardCases() {
		f.check(c.frame)
	}
	dead, _ := second.Alive(s.Endpoints[0].Key, 1)
	alive, _ := second.Alive(s.Endpoints[0].Key, 0)
	if dead || !alive {
		t.Error("alive bits were not adopted")
	}
	// What the new agent wants next is reconciled with what the old one left.
	s.Endpoints = s.Endpoints[:4]
	f.apply(s)
	for _, c := range forwardCases() {
		f.check(c.frame)
	}
	must(t, second.Close())

	must(t, DetachMux(e.dir))
	if e.attached() || strings.Contains(e.xdp(), "xdp") {
		t.Errorf("still attached after detach: %s", e.xdp())
	}
	must(t, DetachMux(e.dir))
}

func TestMuxAttachedSeesDeletedInterface(t *testing.T) {
	e := newMuxEnv(t)
	m, err := e.open(XDPNative)
	must(t, err)
	defer m.Close()
	if out, err := exec.Command("ip", "-n", e.namespace, "link", "del", "up0").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if e.attached() {
		t.Error("attached to an interface that is gone")
	}
}

func TestMuxGenericMode(t *testing.T) {
	e := newMuxEnv(t)
	m, err := e.open(XDPGeneric)
	must(t, err)
	defer m.Close()
	if !strings.Contains(e.xdp(), "xdpgeneric") {
		t.Errorf("expected generic XDP: %s", e.xdp())
	}
}

func TestMuxNativeRefused(t *testing.T) {
	e := newMuxEnv(t)
	must(t, netdev.In(e.namespace, func() error {
		i, err := netdev.FindInterface("lo")
		e.ifindex = i.Index
		return err
	}))
	if _, err := e.open(XDPNative); err == nil || !strings.Contains(err.Error(), "--xdp-mode generic") {
		t.Errorf("the loopback has no native XDP; got %v", err)
	}
}

func TestMuxRefusesOtherABI(t *testing.T) {
	e := newMuxEnv(t)
	m, err := e.open(XDPNative)
	must(t, err)
	m.memory.config.AbiVersion = 99
	must(t, m.Close())
	_, err = e.open(XDPNative)
	if err == nil || !strings.Contains(err.Error(), "ABI version 99") || !strings.Contains(err.Error(), "shunt mux --stop") {
		t.Errorf("got %v", err)
	}
	if !e.attached() {
		t.Error("the refusal took the old program away")
	}
}

func TestMuxHalfPinned(t *testing.T) {
	e := newMuxEnv(t)
	must(t, EnsureBPFFS(e.dir))
	must(t, os.Mkdir(filepath.Join(e.dir, muxPinTables+"_new"), 0o700))
	m, err := e.open(XDPNative)
	must(t, err)
	must(t, m.Close())
}

// TestMuxAsksTheKernel: an empty next hop word is answered from the FIB, when that knows the neighbour.
func TestMuxAsksTheKernel(t *testing.T) {
	e := newMuxEnv(t)
	m, err := e.open(XDPNative)
	must(t, err)
	defer m.Close()
	s := MuxState{RingKeys: testKeys, TunnelSources: sources, Endpoints: []MuxEndpoint{
		endpointOf(muxVIP4, lb.TCP, 80, "10.9.0.2"), endpointOf(muxVIP6, lb.TCP, 80, "fd00:9::2"),
	}}
	must(t, m.Apply(s))
	for _, line := range []string{
		"link set up0 address 02:00:00:00:00:01", "link set up0 up", "link set up1 up", "addr add 10.9.0.1/24 dev up0",
		"addr add fd00:9::1/64 dev up0 nodad",
		"neigh replace 10.9.0.2 dev up0 lladdr 02:00:00:00:00:02", "neigh replace fd00:9::2 dev up0 lladdr 02:00:00:00:00:03",
	} {
		if out, err := exec.Command("ip", append([]string{"-n", e.namespace}, strings.Fields(line)...)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", line, err, out)
		}
	}
	sysctls := []netdev.Sysctl{{Key: "net/ipv4/ip_forward", Value: "1"}, {Key: "net/ipv6/conf/all/forwarding", Value: "1"}}
	must(t, netdev.SetSysctls(e.namespace, sysctls))
	f := &muxFixture{t, m, &muxModel{state: s, alive: map[MemberKey]bool{
		{s.Endpoints[0].Key, 0}: true, {s.Endpoints[1].Key, 0}: true,
	}, mac: func(int) [6]byte { return [6]byte{2, 0, 0, 0, 0, 1} }, ingress: ingress}}
	f.model.hops = map[netip.Addr]NextHop{
		netip.MustParseAddr("10.9.0.2"):  {MAC: [6]byte{2, 0, 0, 0, 0, 2}, Ifindex: e.ifindex},
		netip.MustParseAddr("fd00:9::2"): {MAC: [6]byte{2, 0, 0, 0, 0, 3}, Ifindex: e.ifindex},
	}
	must(t, netdev.In(e.namespace, func() error {
		for _, frame := range [][]byte{tcp4(80).Frame(), tcp6(80).Frame()} {
			want := f.model.walk(frame)
			verdict, out := f.run(frame)
			if verdict != want.verdict || string(out) != string(want.frame) {
				t.Errorf("got verdict %d, %x\nwant %d, %x", verdict, out, want.verdict, want.frame)
			}
		}
		return nil
	}))
	if got := f.reasonsNow()["fib_fallback"]; got != 2 {
		t.Errorf("fib_fallback counted %d times, expected 2", got)
	}
}

// TestMuxTend: what others do to the interface is mended while the agent runs.
func TestMuxTend(t *testing.T) {
	e := newMuxEnv(t)
	ip := func(line string) {
		t.Helper()
		if out, err := exec.Command("ip", append([]string{"-n", e.namespace}, strings.Fields(line)...)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", line, err, out)
		}
	}
	var m *Mux
	tend := func() string {
		t.Helper()
		var mended string
		must(t, netdev.In(e.namespace, func() error {
			i, err := netdev.FindInterface("up0")
			must(t, err)
			mended, err = m.Tend(i.Index)
			return err
		}))
		return mended
	}
	verdictTo := func(mac [6]byte) uint32 {
		f := &muxFixture{t: t, mux: m}
		verdict, _ := f.run(with(tcp4(80).Frame(), func(b []byte) { copy(b, mac[:]) }))
		return verdict
	}
	s := MuxState{RingKeys: testKeys, TunnelSources: sources, Endpoints: []MuxEndpoint{endpointOf(muxVIP4, lb.TCP, 80, "10.9.0.2")}}
	ip("link set up0 address 02:00:00:00:00:01")
	must(t, netdev.In(e.namespace, func() (err error) {
		m, err = OpenMux(MuxOptions{Ifindex: e.ifindex, BPFFS: e.dir, Limits: testLimits})
		return err
	}))
	defer func() { m.Close() }()
	must(t, m.Apply(s))
	must(t, m.SetNextHops(map[netip.Addr]NextHop{s.Endpoints[0].Members[0].Outer: {MAC: muxRouter, Ifindex: ingress}}))
	if got := tend(); got != "" {
		t.Errorf("nothing happened, but it mended %q", got)
	}

	old, new := [6]byte{2, 0, 0, 0, 0, 1}, [6]byte{2, 0, 0, 0, 0, 7}
	if a, b := verdictTo(old), verdictTo(new); a == xdpPass || b != xdpPass {
		t.Errorf("before the address changed: verdicts %d and %d", a, b)
	}
	ip("link set up0 address 02:00:00:00:00:07")
	tend()
	if a, b := verdictTo(old), verdictTo(new); a != xdpPass || b == xdpPass {
		t.Errorf("after the address changed: verdicts %d and %d", a, b)
	}

	must(t, os.Remove(filepath.Join(e.dir, muxPinLink)))
	if got := tend(); got == "" || !e.attached() {
		t.Errorf("pin removed: mended %q, attached %v", got, e.attached())
	}
	must(t, m.link.Detach())
	if e.attached() {
		t.Error("attached after detach")
	}
	if got := tend(); got == "" || !e.attached() || !strings.Contains(e.xdp(), "xdp") {
		t.Errorf("detached: mended %q, attached %v", got, e.attached())
	}
	ip("link del up0")
	if e.attached() {
		t.Error("attached to a deleted interface")
	}
	ip("link add up0 type veth peer name up1")
	if got := tend(); got == "" || !e.attached() || !strings.Contains(e.xdp(), "xdp") {
		t.Errorf("interface made again: mended %q, attached %v", got, e.attached())
	}
	if got := tend(); got != "" {
		t.Errorf("nothing happened since, but it mended %q", got)
	}
}

// TestOneBadHopStopsNoOther: a way by an interface that is gone leaves its backend to the kernel, and the others have theirs.
func TestOneBadHopStopsNoOther(t *testing.T) {
	f := newMuxFixture(t)
	f.mux.tables.hops.mac = func(i int) ([6]byte, error) {
		if i == 99 {
			return [6]byte{}, errors.New("no such interface")
		}
		return testMAC(i), nil
	}
	s := MuxState{RingKeys: testKeys, TunnelSources: sources, Endpoints: []MuxEndpoint{
		endpointOf(muxVIP4, lb.TCP, 80, "10.9.0.1", "10.9.0.2", "10.9.0.3", "10.9.0.4"),
	}}
	hops := hopsTo(s)
	f.apply(s)
	f.setHops(hops)
	hops[netip.MustParseAddr("10.9.0.2")] = NextHop{MAC: muxRouter, Ifindex: 99}
	for a, h := range hops {
		h.MAC = [6]byte{2, 9, 9, 9, 9, 9}
		hops[a] = h
	}
	if err := f.mux.SetNextHops(hops); err == nil || !strings.Contains(err.Error(), "10.9.0.2") {
		t.Errorf("error %v: must name the destination", err)
	}
	for _, b := range f.mux.tables.records.byIndex {
		if b == nil {
			continue
		}
		want := NextHop{}
		if b.outer != netip.MustParseAddr("10.9.0.2") {
			want = hops[b.outer]
		}
		if got := f.mux.tables.hops.hop(f.mux.memory.backends[b.index].Nexthop); got != want {
			t.Errorf("next hop of %v: %v, expected %v", b.outer, got, want)
		}
	}
	must(t, f.mux.Apply(s))
}

// TestPinsAreForOneMux: another one, in another namespace, must not take the program for its own.
func TestPinsAreForOneMux(t *testing.T) {
	e, other := newMuxEnv(t), newMuxEnv(t)
	m, err := e.open(XDPNative)
	must(t, err)
	other.dir = e.dir
	if _, err := other.open(XDPNative); err == nil || !strings.Contains(err.Error(), "another mux works with it") {
		t.Errorf("the second: %v", err)
	}
	must(t, m.Close())
	m, err = e.open(XDPNative)
	must(t, err)
	must(t, m.Close())
}
