package dataplane

import (
	"encoding/binary"
	"net/netip"

	"github.com/shuntlb/shunt/internal/wire"
)

func (m *muxModel) isVIP(a netip.Addr) bool {
	return m.index().vips[a] != nil
}

// walkTagged: frames with one or two tags. What is for a VIP is walked without them, and answers get them back.
func (m *muxModel) walkTagged(frame []byte) modelResult {
	n, room := 0, m.linearOf(frame)
	kind := func() uint16 { return binary.BigEndian.Uint16(frame[12+4*n:]) }
	for n < 2 && (kind() == 0x8100 || kind() == 0x88a8) {
		if n++; room < 14+4*n {
			return modelResult{verdict: xdpDrop, frame: frame, reason: "truncated"}
		}
	}
	bare := append(append([]byte(nil), frame[:12]...), frame[12+4*n:]...)
	var dst netip.Addr
	var protocol byte
	switch kind() {
	case 0x0800:
		if room-4*n < 34 {
			return modelResult{verdict: xdpDrop, frame: frame, reason: "truncated"}
		}
		dst, protocol = netip.AddrFrom4([4]byte(bare[30:])), bare[23]
	case 0x86dd:
		if room-4*n < 54 {
			return modelResult{verdict: xdpDrop, frame: frame, reason: "truncated"}
		}
		dst, protocol = netip.AddrFrom16([16]byte(bare[38:])), bare[20]
	case 0x8100, 0x88a8:
		return modelResult{verdict: xdpPass, frame: frame, reason: "pass_not_ours"}
	default:
		return modelResult{verdict: xdpPass, frame: frame, reason: "pass_not_ip"}
	}
	if !m.isVIP(dst) && !m.probePossible(protocol) {
		return modelResult{verdict: xdpPass, frame: frame, reason: "pass_not_ours"}
	}
	defer func(linear int) { m.linear = linear }(m.linear)
	m.linear = room - 4*n
	r := m.walk(bare)
	if r.reason == "pass_not_ours" {
		r.frame = frame
	}
	if r.reason == "echo_replied" || r.reason == "ptb_sent" {
		r.frame = append(append(append([]byte(nil), r.frame[:12]...), frame[12:12+4*n]...), r.frame[12:]...)
	}
	return r
}

// withTag puts a tag into a frame; 0 is none.
func withTag(frame []byte, tag uint32) []byte {
	if tag == 0 {
		return frame
	}
	return append(binary.BigEndian.AppendUint32(append([]byte(nil), frame[:12]...), tag), frame[12:]...)
}

// modelGUE is UDP, GUE and private data in front of a packet of so many bytes.
func modelGUE(protocol byte, length int, member uint16, hash uint64) []byte {
	be := binary.BigEndian
	b := be.AppendUint16(nil, 0xc000|uint16(hash&0x3fff))
	b = be.AppendUint16(b, 6080)
	b = be.AppendUint16(b, uint16(24+length))
	b = append(b, 0, 0, 0x03, protocol, 0, 0)
	b = append(b, 0, 0, 0xff, 0xff, 0, 0, 0, 0)
	return append(be.AppendUint16(b, member), 0, 0)
}

// quotesPacket says whether an ICMP message is an error about a packet.
func quotesPacket(p modelPacket) bool {
	if p.dst.Is6() {
		return p.l4[0] >= 1 && p.l4[0] <= 4
	}
	return p.l4[0] == 3 || p.l4[0] == 11 || p.l4[0] == 12
}

// quoted reads the packet that an ICMP error quotes: enough of it to know the flow.
func quoted(b []byte, v6 bool) (src, dst netip.Addr, protocol byte, l4 []byte, ok bool) {
	be := binary.BigEndian
	if !v6 {
		if len(b) < 20 || b[0]>>4 != 4 {
			return
		}
		header := int(b[0]&15) * 4
		if header < 20 || len(b) < header+8 || int(be.Uint16(b[2:])) < header+8 || be.Uint16(b[6:])&0x1fff != 0 {
			return
		}
		return netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:])), b[9], b[header:], true
	}
	if len(b) < 48 || b[0]>>4 != 6 {
		return
	}
	protocol, l4 = b[6], b[40:]
	if protocol == 44 {
		if len(b) < 56 || be.Uint16(l4[2:])&0xfff8 != 0 {
			return
		}
		protocol, l4 = l4[0], l4[8:]
	}
	return netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:])), protocol, l4, true
}

// walkError sends an ICMP error to the member that sent what it quotes.
func (m *muxModel) walkError(frame []byte, p modelPacket) modelResult {
	unknown := modelResult{verdict: xdpDrop, frame: frame, reason: "icmp_error_unknown"}
	linear := p.l4[min(8, max(p.room, 0)):min(len(p.l4), max(p.room, 0))]
	src, dst, protocol, l4, ok := quoted(linear, p.dst.Is6())
	if !m.allowed(p.src) {
		return modelResult{verdict: xdpDrop, frame: frame, reason: "bad_source"}
	}
	if !ok || src != p.dst || !m.allowed(dst) {
		return unknown
	}
	flow := p
	flow.src, flow.protocol, flow.l4 = dst, protocol, make([]byte, 20)
	if protocol == 6 || protocol == 17 {
		flow.dport, flow.sport = binary.BigEndian.Uint16(l4), binary.BigEndian.Uint16(l4[2:])
	}
	if protocol == 6 { // options are read wherever they lie
		flow.stamp, _, _ = timestamps(p.l4[8+len(linear)-len(l4):])
	}
	e, ok := m.endpointOf(flow.dst, protocol, flow.dport)
	if !ok {
		if r, ok := m.outboundError(frame, flow, l4); ok {
			return r
		}
		return unknown
	}
	m.noted = append(m.noted, "icmp_error_forwarded")
	member, ok := m.peek(flow, e)
	if !ok {
		m.trail.count(e.Key, len(p.packet))
		return modelResult{verdict: xdpDrop, frame: frame, reason: "no_backend"}
	}
	flow.errorTo = &member
	return m.forward(frame, flow, e)
}

// peek is the member that a packet of a flow would go to; nothing is remembered or forgotten.
func (m *muxModel) peek(p modelPacket, e MuxEndpoint) (MuxMember, bool) {
	if e.Cookie != nil && p.stamp != 0 && !m.flowsFirst(p, e) {
		if id, _, reason := m.named(p, e, p.stamp); reason == "" {
			return memberWith(e, id)
		}
	}
	identity := m.identity(p, e)
	if e.Affinity != AffinityHash && !e.OnePacket {
		hash := identity.entry(m.flows.key)
		if e.sourceBits() != 0 {
			hash = flowHashBeside(m, p, e)
		}
		bucket, at, live := m.find(e, hash)
		if live {
			if member, ok := memberWith(e, bucket[at].member.Member); ok && m.keeps(e, bucket[at].member.Member) {
				return member, true
			}
		}
		if e.sourceBits() != 0 {
			bucket, at, live := m.find(e, identity.entry(m.flows.key)|clientBit)
			if live {
				if member, ok := memberWith(e, bucket[at].member.Member); ok && member.Choosable && m.alive[bucket[at].member] {
					return member, true
				}
			}
		}
	}
	id, ok := m.ring(e, identity.hash(m.ringKey(e)))
	if !ok {
		return MuxMember{}, false
	}
	return memberWith(e, id)
}

// errorHash varies the outer source of ICMP errors with the client.
func errorHash(client netip.Addr) uint32 {
	b := client.AsSlice()
	return binary.LittleEndian.Uint32(b[len(b)-4:])
}

// bucketFull is a full bucket of so many tokens a second.
func (m *muxModel) bucketFull(rate uint64) *bucketModel {
	interval, window := bucketOf(rate, m.policy.hz)
	return &bucketModel{window, interval, window, m.policy.now}
}

// allowPing says whether an echo request to a VIP is within its limit.
func (m *muxModel) allowPing(vip netip.Addr) bool {
	rate := uint64(1000)
	if v := m.policyOf(vip); v != nil && v.Limits.Ping != 0 {
		rate = v.Limits.Ping
	}
	if m.edge.pings == nil {
		m.edge.pings = map[netip.Addr]*bucketModel{}
	}
	if m.edge.pings[vip] == nil {
		m.edge.pings[vip] = m.bucketFull(rate)
	}
	b := m.edge.pings[vip]
	b.interval, b.window = bucketOf(rate, m.policy.hz)
	m.trail.pinged = vip
	return b.take(m.policy.now)
}

// tooBig answers a packet that does not fit: IPv4 with DF by RFC 1191, IPv6 by RFC 4443.
func (m *muxModel) tooBig(frame []byte, p modelPacket, mtu int) modelResult {
	v4 := p.dst.Is4()
	if p.errorTo != nil || v4 && (p.packet[6]&0x40 == 0 || p.fragment != nil && p.fragment.later) || !possible(p.src) {
		return modelResult{verdict: xdpDrop, frame: frame, reason: "too_big"}
	}
	if m.edge.ptb == nil {
		m.edge.ptb = map[netip.Addr]*bucketModel{}
	}
	if m.edge.ptb[p.dst] == nil {
		m.edge.ptb[p.dst] = m.bucketFull(1000)
	}
	if !m.edge.ptb[p.dst].take(m.policy.now) {
		return modelResult{verdict: xdpDrop, frame: frame, reason: "ptb_limited"}
	}
	be := binary.BigEndian
	out := append(append([]byte(nil), frame[6:12]...), frame[0:6]...)
	out = append(out, frame[12:14]...)
	if v4 {
		icmp := be.AppendUint16([]byte{3, 4, 0, 0, 0, 0}, uint16(mtu))
		icmp = append(icmp, p.packet[:min(len(p.packet), 576-28)]...)
		be.PutUint16(icmp[2:], wire.Checksum(icmp))
		ip := be.AppendUint16([]byte{0x45, 0xc0}, uint16(20+len(icmp)))
		ip = append(ip, 0, 0, 0x40, 0, 64, 1, 0, 0)
		ip = append(append(ip, p.dst.AsSlice()...), p.src.AsSlice()...)
		be.PutUint16(ip[10:], wire.Checksum(ip))
		return modelResult{verdict: xdpTX, frame: append(append(out, ip...), icmp...), reason: "ptb_sent"}
	}
	icmp := be.AppendUint32([]byte{2, 0, 0, 0}, uint32(mtu))
	icmp = append(icmp, p.packet[:min(len(p.packet), 1280-48)]...)
	be.PutUint16(icmp[2:], wire.Checksum(wire.PseudoHeader(p.dst, p.src, 58, len(icmp)), icmp))
	ip := be.AppendUint16([]byte{0x60, 0, 0, 0}, uint16(len(icmp)))
	ip = append(append(append(ip, 58, 64), p.dst.AsSlice()...), p.src.AsSlice()...)
	return modelResult{verdict: xdpTX, frame: append(append(out, ip...), icmp...), reason: "ptb_sent"}
}
