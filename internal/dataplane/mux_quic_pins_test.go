package dataplane

import (
	"math/rand/v2"
	"testing"
)

// quicState is a state with an endpoint of connection ids.
func quicState() MuxState {
	return MuxState{RingKeys: testKeys, TunnelSources: sources, Endpoints: []MuxEndpoint{quicEndpoint(quicKeys, threeServers...)}}
}

// quicPins fills fresh pinned tables with that state, and closes.
func (e *muxEnv) quicPins() *muxFixture {
	e.t.Helper()
	m, err := e.open(XDPNative)
	must(e.t, err)
	f := &muxFixture{e.t, m, &muxModel{alive: map[MemberKey]bool{}, mac: testMAC, ingress: ingress}}
	f.apply(quicState())
	f.setHops(hopsTo(quicState()))
	f.checkIDs()
	must(e.t, m.Close())
	return f
}

// checkIDs sends packets with ids of each member by each configuration.
func (f *muxFixture) checkIDs() {
	f.t.Helper()
	f.model.flows = modelFlowsOf(f.mux)
	r, read := rand.New(rand.NewPCG(1, 1)), map[byte]bool{}
	for i := range uint16(30) {
		id := mint(&quicKeys, i%3, r)
		read[id[0]>>5] = true
		if got := f.check(quicPacket(muxClient4, 4000+i, shortHeader(id)).Frame()); got.member == nil || got.member.Member != i%3 {
			f.t.Errorf("id %x: %+v instead of member %d", id, got, i%3)
		}
	}
	if len(read) != 2 {
		f.t.Errorf("configurations %v", read)
	}
}

// TestQUICSurvivesItsAgent: the next agent's program reads ids before it is told of keys, and its records are those of the one before.
func TestQUICSurvivesItsAgent(t *testing.T) {
	e := newMuxEnv(t)
	f := e.quicPins()
	var err error
	f.mux, err = e.open(XDPNative)
	must(t, err)
	defer func() { f.mux.Close() }()
	f.checkIDs()
	if q := &f.mux.tables.quic; q.indices.n != 1 || q.endpoints != 1 {
		t.Errorf("%d records of %d endpoints were adopted", q.indices.n, q.endpoints)
	}
	was := f.mux.tables.entries[f.model.state.Endpoints[0].Key].quic
	f.apply(f.model.state)
	if now := f.mux.tables.entries[f.model.state.Endpoints[0].Key].quic; now != was {
		t.Errorf("the same ids are read by record %d, before by %d", now, was)
	}
	f.checkIDs()
}

// TestQUICMigrates: tables of another size, and such that know no ids yet, are taken over.
func TestQUICMigrates(t *testing.T) {
	e := newMuxEnv(t)
	f := e.quicPins()
	var err error
	f.mux, err = e.openSized(larger(), nil)
	must(t, err)
	if f.mux.former == nil {
		t.Error("tables of another size were adopted")
	}
	must(t, e.applyIn(f.mux, f.model.state))
	e.whole()
	f.checkIDs()
	must(t, f.mux.Close())
}

// TestMuxMigratesWithoutQUICSets: tables that know no connection ids keep forwarding until a plan, and lose nothing.
func TestMuxMigratesWithoutQUICSets(t *testing.T) {
	e, f := newMuxEnvWithout(t, muxMapQuicSets)
	f.applyBy(quicState(), e.applyIn(f.mux, quicState()))
	f.setHops(hopsTo(quicState()))
	f.checkIDs()
}
