package dataplane

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/netdev"
)

// TestSeveralInterfaces: the program is on all, takes frames to the address of each, survives its agent, and is mended.
func TestSeveralInterfaces(t *testing.T) {
	e := newMuxEnv(t)
	ip := func(arguments string) {
		t.Helper()
		if out, err := exec.Command("ip", slices.Concat([]string{"-n", e.namespace}, strings.Fields(arguments))...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v %s", arguments, err, out)
		}
	}
	index := func(name string) (found int) {
		t.Helper()
		must(t, netdev.In(e.namespace, func() error {
			i, err := netdev.FindInterface(name)
			found = i.Index
			return err
		}))
		return found
	}
	on := func(name string) bool {
		t.Helper()
		out, err := exec.Command("ip", "-n", e.namespace, "link", "show", name).CombinedOutput()
		must(t, err)
		return strings.Contains(string(out), "prog/xdp")
	}
	ip("link add up2 type veth peer name up3")
	options := MuxOptions{Ifindex: e.ifindex, Others: []int{index("up2")}, BPFFS: e.dir, Limits: testLimits, Address: muxSelf,
		DeviceMAC: func(i int) ([6]byte, error) { return testMAC(i), nil }}
	open := func() (m *Mux) {
		t.Helper()
		must(t, netdev.In(e.namespace, func() (err error) {
			m, err = OpenMux(options)
			return err
		}))
		return m
	}
	m := open()
	if !on("up0") || !on("up2") || !e.attached() {
		t.Fatal("the program is not on both interfaces")
	}
	f := &muxFixture{t: t, mux: m, model: &muxModel{alive: map[MemberKey]bool{}, mac: testMAC, ingress: ingress}}
	s := basicState()
	f.apply(s)
	f.setHops(hopsTo(s))
	for mac, want := range map[[6]byte]uint32{muxSelf: xdpTX, testMAC(options.Others[0]): xdpTX, testMAC(77): xdpPass} {
		frame := tcp4(80)
		frame.DstMAC = mac
		if verdict, _ := f.run(frame.Frame()); verdict != want {
			t.Errorf("frame to %x: verdict %d, expected %d", mac, verdict, want)
		}
	}
	must(t, m.Close())
	if !on("up0") || !on("up2") {
		t.Error("the program went with its agent")
	}
	m = open()
	tend := func() (mended string) {
		t.Helper()
		must(t, netdev.In(e.namespace, func() (err error) {
			mended, err = m.Tend(index("up0"), index("up2"))
			return err
		}))
		return mended
	}
	if got := tend(); got != "" {
		t.Errorf("nothing happened, but it mended %q", got)
	}
	ip("link del up2")
	ip("link add up2 type veth peer name up3")
	if got := tend(); got == "" || !on("up2") {
		t.Errorf("interface made again: mended %q", got)
	}
	must(t, os.Remove(otherPin(e.dir, index("up2"))))
	if got := tend(); got == "" || !on("up2") {
		t.Errorf("pin removed: mended %q", got)
	}
	must(t, m.Close())
	options.Others = nil
	m = open()
	if on("up2") || !on("up0") {
		t.Error("an interface that is not wanted any more keeps its program, or the first lost it")
	}
	must(t, m.Close())
	must(t, DetachMux(e.dir))
	if on("up0") || e.attached() {
		t.Error("attached after DetachMux")
	}
	options.Others = []int{e.ifindex}
	if _, err := OpenMux(options); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("the same interface twice: error %v", err)
	}
}
