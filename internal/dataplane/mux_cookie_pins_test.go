package dataplane

import (
	"testing"

	"github.com/shuntlb/shunt/internal/wire"
)

// cookieTraffic fills fresh pinned tables with endpoints of cookies, and closes.
func (e *muxEnv) cookieTraffic() *muxFixture {
	e.t.Helper()
	m, err := e.open(XDPNative)
	must(e.t, err)
	f := &muxFixture{e.t, m, &muxModel{alive: map[MemberKey]bool{}, mac: testMAC, ingress: ingress}}
	s := MuxState{RingKeys: testKeys, TunnelSources: sources, Endpoints: cookieServers()}
	f.apply(s)
	f.setHops(hopsTo(s))
	f.checkCookies()
	must(e.t, m.Close())
	return f
}

// checkCookies sends segments with each member's cookie under each key, and asks nothing of the flow table.
func (f *muxFixture) checkCookies() {
	f.t.Helper()
	f.model.flows = modelFlowsOf(f.mux)
	for id := range uint16(3) {
		for kid := range uint8(2) {
			for _, segment := range []func(uint16, uint8, ...byte) wire.Packet{segment4, segment6} {
				p := segment(70+id, wire.ACK)
				got := f.check(segment(70+id, wire.ACK, usualOptions(stampFor(p, testCookies, kid, id))...).Frame())
				if got.member == nil || got.member.Member != id {
					f.t.Errorf("key %d: %+v instead of member %d", kid, got, id)
				}
			}
		}
	}
}

// TestCookiesSurviveTheirAgent: the next agent's program reads cookies before it is told of keys.
func TestCookiesSurviveTheirAgent(t *testing.T) {
	e := newMuxEnv(t)
	f := e.cookieTraffic()
	var err error
	f.mux, err = e.open(XDPNative)
	must(t, err)
	defer func() { f.mux.Close() }()
	f.checkCookies()
	if n := f.mux.tables.cookies.indices.n; n != 1 {
		t.Errorf("%d sets of keys were adopted", n)
	}
	f.apply(f.model.state)
	f.checkCookies()
}

// TestCookiesMigrate: tables of another size, and such that know no cookies yet, are taken over.
func TestCookiesMigrate(t *testing.T) {
	e := newMuxEnv(t)
	f := e.cookieTraffic()
	var err error
	f.mux, err = e.openSized(larger(), nil)
	must(t, err)
	if f.mux.former == nil {
		t.Error("tables of another size were adopted")
	}
	must(t, e.applyIn(f.mux, f.model.state))
	e.whole()
	f.checkCookies()
	must(t, f.mux.Close())
}

// TestMuxMigratesWithoutCookieSets: tables that know no cookies keep forwarding until a plan, and lose nothing.
func TestMuxMigratesWithoutCookieSets(t *testing.T) {
	e, f := newMuxEnvWithout(t, muxMapCookieSets)
	next := MuxState{RingKeys: testKeys, TunnelSources: sources, Endpoints: cookieServers()}
	f.applyBy(next, e.applyIn(f.mux, next))
	f.setHops(hopsTo(next))
	f.checkCookies()
}

// TestSpreadKey: outer sources have a key of their own, also in tables of a build that had none.
func TestSpreadKey(t *testing.T) {
	e := newMuxEnv(t)
	m, err := e.open(XDPNative)
	must(t, err)
	first := m.memory.config.SpreadKey
	if first.K0|first.K1 == 0 || first.K0 == m.memory.config.FlowKey.K0 {
		t.Errorf("fresh tables have key %#x", first)
	}
	must(t, m.Close())
	m, err = e.open(XDPNative)
	must(t, err)
	if m.memory.config.SpreadKey.K0 != first.K0 {
		t.Error("adopted tables have another key")
	}
	m.memory.config.SpreadKey.K0, m.memory.config.SpreadKey.K1 = 0, 0
	must(t, m.Close())
	m, err = e.open(XDPNative)
	must(t, err)
	defer m.Close()
	if key := m.memory.config.SpreadKey; key.K0|key.K1 == 0 {
		t.Error("tables of a former build have no key")
	}
}
