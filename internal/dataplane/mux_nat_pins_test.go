package dataplane

import (
	"maps"
	"testing"

	"github.com/shuntlb/shunt/internal/wire"
)

// natTraffic fills fresh pinned tables with sessions of path nat, and closes.
func (e *muxEnv) natTraffic() *natFixture {
	e.t.Helper()
	m, err := e.open(XDPNative)
	must(e.t, err)
	f := &natFixture{
		muxFixture: &muxFixture{e.t, m, &muxModel{alive: map[MemberKey]bool{}, mac: testMAC, ingress: ingress}},
		natModel:   newNATModel(),
	}
	f.serve(natServers()...)
	f.from(natPorts...)
	for from := uint16(1000); from < 1040; from++ {
		there := f.in(natPacket(from%2 == 0, from%3 == 0, from, wire.SYN))
		if from%4 > 0 {
			f.out(serverSays(*there.packet))
		}
	}
	f.compareTables()
	must(e.t, m.Close())
	return f
}

// goOn sends later packets of all sessions, both ways, and new ones.
func (f *natFixture) goOn() {
	f.t.Helper()
	for from := uint16(1000); from < 1060; from++ {
		there := f.in(natPacket(from%2 == 0, from%3 == 0, from, wire.ACK))
		f.out(serverSays(*there.packet))
	}
	f.compareTables()
}

// TestNATSurvivesItsAgent: sessions, ports and addresses are those that the agent before left, ports without a session among them.
func TestNATSurvivesItsAgent(t *testing.T) {
	e := newMuxEnv(t)
	f := e.natTraffic()
	var err error
	f.mux, err = e.open(XDPNative)
	must(t, err)
	f.goOn()
	for flow, s := range maps.Clone(f.sessions) {
		key := keyOf(flow)
		must(t, f.mux.objects.NatSessions.Delete(&key))
		f.end(flow)
		f.resting[natPortOf{s.server, s.lip, flow.protocol}] = 0
		if len(f.sessions) < 50 {
			break
		}
	}
	must(t, f.mux.Close())
	f.mux, err = e.open(XDPNative)
	must(t, err)
	f.compareTables()
	f.apply(f.model.state)
	f.goOn()
	must(t, f.mux.Close())
}

// TestNATMigrates: tables of another size take the sessions of the former ones over.
func TestNATMigrates(t *testing.T) {
	e := newMuxEnv(t)
	f := e.natTraffic()
	limits := larger()
	limits.NAT = 2 * limits.NAT
	var err error
	f.mux, err = e.openSized(limits, nil)
	must(t, err)
	if f.mux.former == nil {
		t.Error("tables of another size were adopted")
	}
	must(t, e.applyIn(f.mux, f.model.state))
	e.whole()
	f.compareTables()
	f.goOn()
	must(t, f.mux.Close())
}

// TestMuxMigratesWithoutNAT: tables that know no path nat keep forwarding until a plan, and lose nothing.
func TestMuxMigratesWithoutNAT(t *testing.T) {
	_, bare := newMuxEnvWithout(t, muxMapNatSessions, muxMapNatPorts, muxMapNatOpenings, muxMapNatAddresses)
	f := &natFixture{muxFixture: bare, natModel: newNATModel()}
	f.serve(natServers()...)
	f.from(natPorts...)
	f.goOn()
}
