package dataplane

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
)

// attachForeign puts a program that works with no tables behind the mux's link, as one of another build would work with other tables: the agent
// that starts cannot find the present ones by it.
func (e *muxEnv) attachForeign() {
	e.t.Helper()
	l, err := link.LoadPinnedLink(filepath.Join(e.dir, muxPinLink), nil)
	must(e.t, err)
	defer l.Close()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: muxProgMux, Type: ebpf.XDP, AttachType: ebpf.AttachXDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass), asm.Return()}})
	must(e.t, err)
	defer p.Close()
	must(e.t, l.Update(p))
}

// newMuxEnvWithout is a mux that took over tables which lack some, as those of a version that did not know them: nothing that was
// known is lost, every flow goes where it went, and counters go on.
func newMuxEnvWithout(t *testing.T, missing ...string) (*muxEnv, *muxFixture) {
	t.Helper()
	e := newMuxEnv(t)
	s, counted := e.traffic()
	e.attachForeign()
	for _, name := range missing {
		must(t, os.Remove(filepath.Join(e.dir, muxPinTables, name)))
	}
	m, err := e.open(XDPNative)
	must(t, err)
	t.Cleanup(func() { m.Close() })
	if m.former == nil || m.former.flows == nil {
		t.Fatalf("former tables %+v", m.former)
	}
	must(t, e.applyIn(m, s))
	e.whole()
	after, err := m.Counters()
	must(t, err)
	sameCounts(t, after, counted)
	return e, &muxFixture{t, m, &muxModel{alive: map[MemberKey]bool{}, mac: testMAC, ingress: ingress}}
}
