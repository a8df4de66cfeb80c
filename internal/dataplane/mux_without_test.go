package dataplane

import (
	"os"
	"path/filepath"
	"testing"
)

// newMuxEnvWithout is a mux that took over tables which lack some, as those of a version that did not know them: nothing that was
// known is lost, every flow goes where it went, and counters go on.
func newMuxEnvWithout(t *testing.T, missing ...string) (*muxEnv, *muxFixture) {
	t.Helper()
	e := newMuxEnv(t)
	s, counted := e.traffic()
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
