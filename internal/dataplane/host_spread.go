package dataplane

import (
	"encoding/binary"
	"net/netip"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/ring"
)

// MaxSpread is how many members of an endpoint one host spreads the packets of switches over.
const MaxSpread = int(hostRepairLimitLIMIT_SPREAD)

// HostSpread is how packets from switches, which name no more than the host, find a member of an endpoint on it (design section 9.2). It is
// never modified: one that is the same pointer in two states is the same in the tables.
type HostSpread struct {
	Key lb.EndpointKey
	// Rewrite is as in the endpoint's bindings: whether the host knows flows.
	Rewrite bool
	// Addresses are the host's own: what comes to them from switches is spread.
	Addresses []netip.Addr
	// Ring has, for each of 1<<Code slots, the number in Members of the one that takes its new flows; empty: nobody takes any.
	Code uint8
	Ring []uint16
	// Members, at most MaxSpread, have bindings beside. Those without slots keep the flows that they have.
	Members []SpreadMember
}

// SpreadMember is what the tunnel names a member by; one without Outer gets nothing, also of flows that it has.
type SpreadMember struct {
	Outer netip.Addr
	// Member is its id with GUE, else plan.NoMember.
	Member uint16
}

// repairName names a record in the tables of repair: an endpoint has one for former owners of its flows and one for what comes from
// switches.
type repairName struct {
	key    lb.EndpointKey
	spread bool
}

// record is the spread as a record of the tables of repair has it: slots have the numbers of targets.
func (s *HostSpread) record(key [16]byte) *HostRepair {
	r := &HostRepair{Key: s.Key, Hash: key, Turns: ring.Folded{Code: ring.CodeMin}, spread: s}
	owner := func(int) uint16 { return ring.NoFormer }
	if len(s.Ring) > 0 {
		r.Turns.Code = s.Code
		owner = func(slot int) uint16 { return s.Ring[slot] }
	}
	r.Turns.Slots = make([]ring.Turns, 1<<r.Turns.Code)
	for i := range r.Turns.Slots {
		r.Turns.Slots[i] = ring.Turns(owner(i)) | ring.NoFormer<<16
	}
	for i, m := range s.Members {
		if !m.Outer.IsValid() {
			continue
		}
		r.Targets = append(r.Targets, HostTarget{ID: uint16(i), Outer: m.Outer, Here: true, named: m.Member})
	}
	return r
}

// spread adds the bindings of packets from switches; the numbers of their records are not set.
func (t *hostTables) spread(s *HostSpread) {
	value := hostBinding{Spread: 1}
	if s.Rewrite {
		value.Rewrite = 1
	}
	for _, a := range s.Addresses {
		p := plannedBinding{key: hostBindingKey{
			OuterDst: a.As16(), Vip: s.Key.VIP.As16(), Vni: s.Key.VNI, Member: noTunnelMember, PortBe: be16(s.Key.Port), Protocol: uint8(s.Key.Protocol), By: 1,
		}}
		p.Key = s.Key
		t.place(&p, value)
		t.outers[p.key.OuterDst] |= hostHostTunnelHOST_TUNNEL_IPIP
		t.spreads = append(t.spreads, p)
	}
}

// spreadRecords, whose hash has the key of the flow table, are the records of the wanted spreads; those that are in the tables already are the same as before.
func (h *Host) spreadRecords(want []*HostSpread) []*HostRepair {
	var key [16]byte
	binary.LittleEndian.PutUint64(key[:8], h.flows.key.K0)
	binary.LittleEndian.PutUint64(key[8:], h.flows.key.K1)
	out := make([]*HostRepair, 0, len(want))
	for _, s := range want {
		if p := h.repairs.placed[repairName{s.Key, true}]; p != nil && p.of.spread == s {
			out = append(out, p.of)
			continue
		}
		out = append(out, s.record(key))
	}
	return out
}
