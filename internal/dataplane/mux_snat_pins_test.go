package dataplane

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/snat"
)

// snatTraffic fills fresh pinned tables with leases, and closes.
func (e *muxEnv) snatTraffic() *muxFixture {
	e.t.Helper()
	m, err := e.open(XDPNative)
	must(e.t, err)
	f := &muxFixture{e.t, m, &muxModel{alive: map[MemberKey]bool{}, mac: testMAC, ingress: ingress}}
	s := basicState()
	f.apply(s)
	hops := hopsTo(s)
	hops[snatServers[0].Outer] = NextHop{MAC: muxRouter, Ifindex: ingress}
	f.setHops(hops)
	f.setSNAT(muxVIP4, snatServers[:3], &[snat.Ranges]uint16{128: 1, 129: 2, 130: 3})
	f.checkLeases()
	must(e.t, m.Close())
	return f
}

// checkLeases sends a packet to each server, and one to nobody.
func (f *muxFixture) checkLeases() {
	f.t.Helper()
	for _, port := range []uint16{80, 1024, 1039, 1040, 1048} {
		f.check(tcp4(port).Frame())
	}
}

// TestSNATSurvivesItsAgent: the next agent's program forwards by the words of the one before until it is told others.
func TestSNATSurvivesItsAgent(t *testing.T) {
	e := newMuxEnv(t)
	f := e.snatTraffic()
	var err error
	f.mux, err = e.open(XDPNative)
	must(t, err)
	defer func() { f.mux.Close() }()
	if !slices.Equal(f.mux.HeldSNAT(), []snat.VIP{{Addr: muxVIP4}}) || !f.mux.ServesSNAT() {
		t.Errorf("adopted %v", f.mux.HeldSNAT())
	}
	f.checkLeases()
	f.apply(f.model.state)
	f.checkLeases()
	block := f.mux.tables.snat.byVIP[lb.EndpointKey{VIP: muxVIP4}].index
	f.setSNAT(muxVIP4, snatServers[:3], &[snat.Ranges]uint16{128: 3, 131: 1}) // what it is told converges in place
	f.checkLeases()
	if f.mux.tables.snat.byVIP[lb.EndpointKey{VIP: muxVIP4}].index != block {
		t.Error("equal members were written anew")
	}
	f.setSNAT(muxVIP4, snatServers[1:3], &[snat.Ranges]uint16{128: 1})
	f.checkLeases()
	f.setSNAT(muxVIP4, nil, nil)
	f.apply(MuxState{RingKeys: testKeys, TunnelSources: sources})
	f.model.state = MuxState{}
	if n := f.mux.tables.snat.indices.n; n != 0 {
		t.Errorf("%d blocks leaked", n)
	}
}

// TestSNATMigratesToOtherSizes: new tables begin with the words of the old ones, whose program goes on until a plan.
func TestSNATMigratesToOtherSizes(t *testing.T) {
	e := newMuxEnv(t)
	f := e.snatTraffic()
	limits := larger()
	limits.SNAT *= 2
	var err error
	f.mux, err = e.openSized(limits, nil)
	must(t, err)
	defer func() { f.mux.Close() }()
	if f.mux.ServesSNAT() || !slices.Equal(f.mux.HeldSNAT(), []snat.VIP{{Addr: muxVIP4}}) {
		t.Errorf("before a plan: serves %v, has %v", f.mux.ServesSNAT(), f.mux.HeldSNAT())
	}
	f.changeSNAT(muxVIP4, SNATWord{Range: 131, Word: 2}) // a lease before the first plan
	if f.mux.former == nil {
		t.Error("a lease replaced the program")
	}
	must(t, e.applyIn(f.mux, f.model.state))
	e.whole()
	if !f.mux.ServesSNAT() {
		t.Error("after a plan it does not serve")
	}
	f.checkLeases()
}

// asABI2 makes pinned tables those of ABI version 2, which are the same but for blocks of SNAT.
func (e *muxEnv) asABI2() {
	e.t.Helper()
	must(e.t, os.Remove(filepath.Join(e.dir, muxPinTables, muxMapSnatBlocks)))
	e.asABI(abiWithoutSNAT)
}

// asABI gives pinned tables another ABI version.
func (e *muxEnv) asABI(version uint32) {
	e.t.Helper()
	configs, err := ebpf.LoadPinnedMap(filepath.Join(e.dir, muxPinTables, muxMapConfigs), nil)
	must(e.t, err)
	defer configs.Close()
	b, err := configs.LookupBytes(uint32(0))
	must(e.t, err)
	binary.NativeEndian.PutUint32(b, version)
	must(e.t, configs.Put(uint32(0), b))
}

// TestMuxMigratesABI2: flows, health and counters of tables without SNAT are taken over, and leases can come.
func TestMuxMigratesABI2(t *testing.T) {
	e := newMuxEnv(t)
	s, counted := e.traffic()
	e.asABI2()
	m, err := e.open(XDPNative)
	must(t, err)
	defer m.Close()
	if alive, known := m.Alive(s.Endpoints[0].Key, 1); alive || !known {
		t.Errorf("the dead member: alive %v, known %v", alive, known)
	}
	if m.former == nil || m.former.flows == nil || len(m.HeldSNAT()) != 0 {
		t.Errorf("former tables %+v, SNAT of %v", m.former, m.HeldSNAT())
	}
	s.Endpoints[0].Members[1].Alive = false
	must(t, e.applyIn(m, s))
	e.whole()
	after, err := m.Counters()
	must(t, err)
	sameCounts(t, after, counted)
	f := &muxFixture{t, m, &muxModel{state: s, alive: map[MemberKey]bool{}, mac: testMAC, ingress: ingress, hops: hopsTo(s)}}
	f.model.alive[MemberKey{s.Endpoints[0].Key, 0}], f.model.alive[MemberKey{s.Endpoints[0].Key, 2}] = true, true
	f.setSNAT(muxVIP4, snatServers[:3], &[snat.Ranges]uint16{128: 1, 129: 2, 130: 3})
	f.checkLeases()
}
