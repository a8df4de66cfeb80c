package dataplane

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/shuntlb/shunt/internal/cid"
	"github.com/shuntlb/shunt/internal/fit"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/ring"
)

// roomyVIP is a VIP with one endpoint of each kind that takes something of its own, over members first to last.
func roomyVIP(vip netip.Addr, first, last int, list *SourceList) ([]MuxEndpoint, MuxVIP) {
	var members []MuxMember
	var ringOf []ring.Member
	for id := first; id <= last; id++ {
		outer := netip.AddrFrom4([4]byte{10, 1, byte(id >> 8), byte(id)})
		members = append(members, MuxMember{ID: uint16(id), Outer: outer, MTU: 1500, Choosable: true})
		ringOf = append(ringOf, ring.Member{ID: uint16(id), DIP: outer, Port: 80, Weight: 1})
	}
	rings := ring.Build(6, ringOf)
	of := func(p lb.Protocol, port, end uint16) MuxEndpoint {
		return MuxEndpoint{Key: lb.EndpointKey{VIP: vip, Protocol: p, Port: port, PortEnd: end}, RingCode: 6, Ring: rings, Members: slices.Clone(members)}
	}
	backup := of(lb.TCP, 80, 0)
	backup.BackupCode, backup.BackupRing = 6, rings
	cookies := of(lb.TCP, 81, 0)
	cookies.Affinity, cookies.Track = AffinityCookie, true
	cookies.Cookie = &MuxCookie{Keys: [2][16]byte{{byte(first)}}, Live: [2]bool{true, false}}
	quic := of(lb.UDP, 443, 0)
	quic.Affinity, quic.QUIC = AffinityCookie, &MuxQUIC{Format: cid.MVFST}
	nat := of(lb.TCP, 82, 0)
	nat.NAT, nat.Affinity = true, AffinityFlow
	for i := range nat.Members {
		nat.Members[i].Port = 8080
	}
	gue := of(lb.UDP, 1000, 2000)
	gue.Encap = EncapGUE
	closed := of(lb.TCP, 83, 0)
	closed.Ring = nil
	for i := range closed.Members {
		closed.Members[i].Choosable = false
	}
	return []MuxEndpoint{backup, cookies, nat, closed, quic, gue, of(lb.UDP, 3000, 4000), of(lb.UDP, 0, maxPort)}, MuxVIP{VIP: vip, Sources: list}
}

// TestNeedsAreWhatTheTablesTake compares what MuxNeeds computes of VIPs that share backends, keys and lists with how full fresh tables are.
func TestNeedsAreWhatTheTablesTake(t *testing.T) {
	f := newMuxFixture(t)
	list := func(n int) *SourceList {
		l := &SourceList{Digest: sha256.Sum256([]byte{byte(n)})}
		for i := range n {
			l.Allow = append(l.Allow, netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, byte(i), 0}), 24), netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 1, byte(i)}), 48))
		}
		return l
	}
	state := MuxState{RingKeys: testKeys, TunnelSources: sources}
	var claims []fit.Claim
	var needs MuxNeeds
	lists := []*SourceList{list(100), list(3), list(100), nil}
	for i, span := range [][2]int{{0, 9}, {5, 20}, {0, 3}, {30, 30}} {
		endpoints, vip := roomyVIP(netip.AddrFrom4([4]byte{203, 0, 113, byte(i + 1)}), span[0], span[1], lists[i])
		state.Endpoints, state.VIPs = append(state.Endpoints, endpoints...), append(state.VIPs, vip)
		var bare []MuxEndpoint // rings need not be made
		for _, e := range endpoints {
			e.Ring, e.BackupRing = nil, nil
			bare = append(bare, e)
		}
		claims = append(claims, fit.Claim{Name: fmt.Sprint(i), Need: needs.Of(bare, vip.Sources)})
	}
	must(t, f.mux.Apply(state))
	checked := 0
	for _, p := range f.mux.Pressure() {
		switch p.Name {
		case TableEndpoints, TableMembers, TableBackends, TableRings, TableSources, TableSourceLists, TableRanges, TableCookies, TableQUIC:
			if got := fit.Used(claims, nil, p.Name); got != p.Used || got == 0 {
				t.Errorf("%s: computed %d, the tables have %d", p.Name, got, p.Used)
			}
			checked++
		}
	}
	if checked != 9 {
		t.Errorf("%d tables were compared, want 9", checked)
	}
	if n := fit.Used(claims, nil, TableNAT); n != 4 {
		t.Errorf("%d endpoints have path nat, want 4", n)
	}
	if n := fit.Used(claims, nil, TableConnections); n != 4 {
		t.Errorf("%d endpoints are tracked, want 4", n)
	}
}

// TestFullTableIsNamed: the error of each table that can be full says which one it is, and whose entries found no room.
func TestFullTableIsNamed(t *testing.T) {
	large := func(c *MuxLimits) *MuxLimits {
		*c = MuxLimits{Endpoints: 64, RingWords: 1024, Members: 256, Backends: 256, Flows: 512, Sources: 64, SNAT: 4, QUIC: 8, NAT: 256, Connections: 1024, Probes: 64}
		return c
	}
	vip := netip.AddrFrom4([4]byte{203, 0, 113, 7})
	list := &SourceList{Digest: [32]byte{1}}
	for i := range 120 {
		list.Allow = append(list.Allow, netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, byte(2 * i), 0}), 24))
	}
	for table, shrink := range map[string]func(*MuxLimits){
		TableEndpoints: func(l *MuxLimits) { l.Endpoints = 8 }, TableRings: func(l *MuxLimits) { l.RingWords = 64 },
		TableMembers: func(l *MuxLimits) { l.Members = 64 }, TableBackends: func(l *MuxLimits) { l.Backends = 8 },
		TableQUIC: func(l *MuxLimits) { l.QUIC = 1 }, TableNAT: func(l *MuxLimits) { l.NAT = 0 },
		TableConnections: func(l *MuxLimits) { l.Connections = 0 },
	} {
		t.Run(table, func(t *testing.T) {
			var limits MuxLimits
			shrink(large(&limits))
			m, err := OpenMux(MuxOptions{Address: muxSelf, DeviceMAC: func(i int) ([6]byte, error) { return testMAC(i), nil }, Limits: limits})
			must(t, err)
			t.Cleanup(func() { m.Close() })
			endpoints, v := roomyVIP(vip, 0, 9, nil)
			if table == TableQUIC {
				endpoints = append(endpoints, func() MuxEndpoint {
					e := endpoints[4]
					e.Key.Port = 444
					return e
				}())
			}
			err = m.Apply(MuxState{RingKeys: testKeys, TunnelSources: sources, Endpoints: endpoints, VIPs: []MuxVIP{v}})
			full := (*NoRoom)(nil)
			if !errors.As(err, &full) || full.Table != table || table != TableQUIC && full.VIP.VIP != vip {
				t.Fatalf("%v: %+v", err, full)
			}
			if _, known := m.Alive(endpoints[0].Key, 0); known {
				t.Error("something was applied")
			}
		})
	}
	t.Run(TableSources, func(t *testing.T) {
		var limits MuxLimits
		m, err := OpenMux(MuxOptions{Address: muxSelf, DeviceMAC: func(i int) ([6]byte, error) { return testMAC(i), nil }, Limits: *large(&limits)})
		must(t, err)
		t.Cleanup(func() { m.Close() })
		endpoints, v := roomyVIP(vip, 0, 1, list)
		err = m.Apply(MuxState{RingKeys: testKeys, TunnelSources: sources, Endpoints: endpoints, VIPs: []MuxVIP{v}})
		if full := (*NoRoom)(nil); !errors.As(err, &full) || full.Table != TableSources || full.VIP.VIP != vip {
			t.Fatalf("%v", err)
		}
	})
}
