package dataplane

import (
	"net/netip"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
)

// TestAliveWordsFollowTheTables: who looks from outside sees the members, and each flip, without asking again.
func TestAliveWordsFollowTheTables(t *testing.T) {
	e := newMuxEnv(t)
	m, err := e.open(XDPNative)
	must(t, err)
	defer m.Close()
	if w, err := OpenAliveWords(e.dir); err == nil {
		w.Close()
		t.Error("opened the words of a mux without members")
	}
	one := endpointOf(netip.MustParseAddr("203.0.113.10"), lb.TCP, 80, "10.0.0.1", "10.0.0.2", "10.0.0.3")
	two := endpointOf(netip.MustParseAddr("203.0.113.11"), lb.TCP, 80, "10.0.0.4", "10.0.0.5")
	must(t, m.Apply(MuxState{RingKeys: testKeys, TunnelSources: sources, Endpoints: []MuxEndpoint{one, two}}))
	w, err := OpenAliveWords(e.dir)
	must(t, err)
	expect := func(wantAlive, wantMembers int) {
		t.Helper()
		if alive, members := w.Count(); alive != wantAlive || members != wantMembers {
			t.Errorf("%d of %d members are alive, want %d of %d", alive, members, wantAlive, wantMembers)
		}
	}
	all := []MemberAlive{{one.Key, 0, true}, {one.Key, 1, true}, {one.Key, 2, true}, {two.Key, 0, true}, {two.Key, 1, true}}
	m.SetAlive(all)
	expect(5, 5)
	m.SetAlive([]MemberAlive{{one.Key, 1, false}, {two.Key, 1, false}})
	expect(3, 5)
	m.SetAlive([]MemberAlive{{one.Key, 1, true}})
	expect(4, 5)
	must(t, w.Close())

	if w, err := OpenAliveWords(e.dir + "-none"); err == nil {
		w.Close()
		t.Error("opened the words of no mux")
	}
}
