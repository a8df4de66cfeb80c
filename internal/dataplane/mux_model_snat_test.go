package dataplane

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/ring"
	"github.com/shuntlb/shunt/internal/snat"
)

// modelSNAT is who has which ports of VIPs.
type modelSNAT struct {
	key  ring.Key // the flow table's: outer sources vary with its hash
	vips map[netip.Addr]*modelLeases
}

// modelLeases are those of one VIP.
type modelLeases struct {
	members []SNATMember
	words   [snat.Ranges]uint16
}

// place is the member that has a port, counted from 0; false: nobody.
func (l *modelLeases) place(port uint16) (int, bool) {
	i := int(l.words[port/8]) - 1
	return i, i >= 0 && i < len(l.members) && l.members[i].Outer.IsValid()
}

// fromService says whether a packet is from a VIP that does not send from its port.
func (m *muxModel) fromService(p modelPacket) bool {
	if !m.isVIP(p.src) {
		return false
	}
	l := m.snat.vips[p.src]
	if l == nil {
		return true
	}
	_, leased := l.place(p.sport)
	return !leased
}

// outbound sends a packet to the server that has a port of its VIP; false: the VIP has no SNAT.
func (m *muxModel) outbound(frame []byte, p modelPacket, port uint16) (modelResult, bool) {
	l := m.snat.vips[p.dst]
	if l == nil {
		return modelResult{}, false
	}
	i, ok := l.place(port)
	if !ok {
		return modelResult{verdict: xdpDrop, frame: frame, reason: "snat_nobody"}, true
	}
	if !m.allowed(p.src) {
		return modelResult{verdict: xdpDrop, frame: frame, reason: "bad_source"}, true
	}
	hash := modelIdentity{0, p.src, p.dst, p.protocol, p.sport, port}.entry(m.snat.key)
	m.rememberOutbound(p, i, hash)
	return m.sendOutbound(frame, p, l, i, hash), true
}

// sendOutbound sends a packet to a member of a VIP's leases.
func (m *muxModel) sendOutbound(frame []byte, p modelPacket, l *modelLeases, i int, hash uint64) modelResult {
	if p.ttl <= 1 {
		return modelResult{verdict: xdpDrop, frame: frame, reason: "ttl_expired"}
	}
	if p.fragment != nil && p.fragment.followed != nil {
		m.noted = append(m.noted, "fragment_followed")
	}
	if v := m.policyOf(p.dst); v != nil && !m.policy.take(m.policy.packets, v.VIP, v.Limits.Packets) {
		return modelResult{verdict: xdpDrop, frame: frame, reason: "rate_limited"}
	}
	m.noted = append(m.noted, "snat_forwarded")
	e := MuxEndpoint{Key: lb.EndpointKey{VIP: p.dst}}
	if l.members[i].Encap == lb.EncapGUE {
		e.Encap = EncapGUE
	}
	r := m.send(frame, p, e, MuxMember{ID: 0xffff, Outer: l.members[i].Outer, MTU: l.members[i].MTU}, hash)
	r.member = nil
	return r
}

// rememberOutbound notes where a first fragment that has others behind it goes.
func (m *muxModel) rememberOutbound(p modelPacket, i int, hash uint64) {
	m.rememberFragment(p, MuxEndpoint{Key: lb.EndpointKey{VIP: p.dst}}, uint16(i), hash)
}

// outboundEcho is outbound for an ICMP echo reply; false: it is none, or the VIP has no SNAT.
func (m *muxModel) outboundEcho(frame []byte, p modelPacket) (modelResult, bool) {
	if !p.dst.Is4() || min(len(p.l4), p.room) < 8 || p.l4[0] != 0 {
		return modelResult{}, false
	}
	return m.outbound(frame, p, binary.BigEndian.Uint16(p.l4[4:]))
}

// outboundError sends an ICMP error to the server that sent what it quotes: flow is the packet that the quoted one answers, l4 the
// quoted transport header. False: nobody has the port.
func (m *muxModel) outboundError(frame []byte, flow modelPacket, l4 []byte) (modelResult, bool) {
	l, port := m.snat.vips[flow.dst], flow.dport
	if flow.protocol == 1 && l4[0] == 8 {
		port = binary.BigEndian.Uint16(l4[4:])
	}
	if l == nil || flow.dst.Is6() {
		return modelResult{}, false
	}
	i, ok := l.place(port)
	if !ok {
		return modelResult{}, false
	}
	m.noted = append(m.noted, "icmp_error_forwarded")
	flow.errorTo = &MuxMember{}
	hash := modelIdentity{0, flow.src, flow.dst, flow.protocol, flow.sport, port}.entry(m.snat.key)
	return m.sendOutbound(frame, flow, l, i, hash), true
}

// followOutbound sends a later fragment after its first one; false: that did not go to a server's port, or its server is gone.
func (m *muxModel) followOutbound(frame []byte, p modelPacket, first modelFirst) (modelResult, bool) {
	l := m.snat.vips[p.dst]
	if first.endpoint.Key != (lb.EndpointKey{VIP: p.dst}) || l == nil || first.gone {
		return modelResult{}, false
	}
	if i := int(first.member); i >= len(l.members) || !l.members[i].Outer.IsValid() {
		return modelResult{}, false
	}
	p.fragment.followed = &first
	return m.sendOutbound(frame, p, l, int(first.member), first.hash), true
}

// setSNAT gives tables and model a VIP's members and words; nil: none.
func (f *muxFixture) setSNAT(vip netip.Addr, members []SNATMember, words *[snat.Ranges]uint16) {
	f.t.Helper()
	must(f.t, f.mux.SetSNAT(snat.VIP{Addr: vip}, members, words))
	settle(f.t, f.mux)
	f.model.setSNAT(f.mux, vip, members, words)
}

func (m *muxModel) setSNAT(mux *Mux, vip netip.Addr, members []SNATMember, words *[snat.Ranges]uint16) {
	m.snat.key = ring.Key{K0: mux.memory.config.FlowKey.K0, K1: mux.memory.config.FlowKey.K1}
	if m.snat.vips == nil {
		m.snat.vips = map[netip.Addr]*modelLeases{}
	}
	delete(m.snat.vips, vip)
	if len(members) > 0 {
		m.snat.vips[vip] = &modelLeases{slices.Clone(members), *words}
	}
}

// changeSNAT changes words of a VIP in tables and model.
func (f *muxFixture) changeSNAT(vip netip.Addr, changes ...SNATWord) {
	f.t.Helper()
	must(f.t, f.mux.ChangeSNAT(snat.VIP{Addr: vip}, changes))
	for _, c := range changes {
		f.model.snat.vips[vip].words[c.Range] = c.Word
	}
}
