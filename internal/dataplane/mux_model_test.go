package dataplane

import (
	"encoding/binary"
	"net/netip"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/ring"
	"github.com/shuntlb/shunt/internal/wire"
)

// XDP verdicts.
const (
	xdpDrop     = 1
	xdpPass     = 2
	xdpTX       = 3
	xdpRedirect = 4
)

// muxModel is the packet walk written down naively: slices, maps and no regard for speed. It is the oracle of bpf/mux.bpf.c.
type muxModel struct {
	state   MuxState
	alive   map[MemberKey]bool
	hops    map[netip.Addr]NextHop
	mac     func(int) [6]byte
	ingress int
}

// modelResult is what should come out.
type modelResult struct {
	verdict uint32
	frame   []byte
	reason  string
	member  *MemberKey
}

func (m *muxModel) walk(frame []byte) modelResult {
	if len(frame) < 14 {
		return modelResult{xdpDrop, frame, "truncated", nil}
	}
	if [6]byte(frame) != muxSelf {
		return modelResult{xdpPass, frame, "pass_other_mac", nil}
	}
	ip := frame[14:]
	switch binary.BigEndian.Uint16(frame[12:]) {
	case 0x0800:
		if len(ip) < 20 {
			return modelResult{xdpDrop, frame, "truncated", nil}
		}
		return m.walkIP(frame, readIP4(ip))
	case 0x86dd:
		if len(ip) < 40 {
			return modelResult{xdpDrop, frame, "truncated", nil}
		}
		return m.walkIP(frame, readIP6(ip))
	case 0x8100, 0x88a8:
		return modelResult{xdpPass, frame, "pass_not_ours", nil}
	}
	return modelResult{xdpPass, frame, "pass_not_ip", nil}
}

// modelPacket is a packet as far as it could be read.
type modelPacket struct {
	src, dst     netip.Addr
	tos, ttl     byte
	protocol     byte
	packet       []byte // without padding
	l4           []byte
	plain        bool // no extension headers
	sport, dport uint16
	bad          string // why it is malformed
}

func (m *muxModel) walkIP(frame []byte, p modelPacket) modelResult {
	drop := func(reason string) modelResult { return modelResult{xdpDrop, frame, reason, nil} }
	vip := false
	for _, e := range m.state.Endpoints {
		vip = vip || e.Key.VIP == p.dst
	}
	if !vip {
		return modelResult{xdpPass, frame, "pass_not_ours", nil}
	}
	if p.bad != "" {
		return drop(p.bad)
	}
	icmp := byte(1)
	if p.dst.Is6() {
		icmp = 58
	}
	switch p.protocol {
	case icmp:
		return m.walkICMP(frame, p)
	case 6, 17:
	default:
		return drop("protocol")
	}
	for _, e := range m.state.Endpoints {
		if e.Key == (lb.EndpointKey{VIP: p.dst, Protocol: lb.Protocol(p.protocol), Port: p.dport}) {
			return m.forward(frame, p, e)
		}
	}
	return drop("no_endpoint")
}

func readIP4(ip []byte) modelPacket {
	p := modelPacket{
		src: netip.AddrFrom4([4]byte(ip[12:16])), dst: netip.AddrFrom4([4]byte(ip[16:20])),
		tos: ip[1], ttl: ip[8], protocol: ip[9], plain: true,
	}
	header, total := int(ip[0]&15)*4, int(binary.BigEndian.Uint16(ip[2:]))
	switch {
	case ip[0]>>4 != 4:
		p.bad = "bad_version"
	case header < 20 || header > len(ip):
		p.bad = "ip4_bad_ihl"
	case total < header || total > len(ip):
		p.bad = "ip4_bad_length"
	case header > 20:
		p.bad = "ip4_options"
	case wire.Sum(ip[:20]) != 0xffff:
		p.bad = "bad_checksum"
	case binary.BigEndian.Uint16(ip[6:])&0x3fff != 0:
		p.bad = "fragment"
	default:
		p.packet, p.l4 = ip[:total], ip[20:total]
		p.readL4()
	}
	return p
}

func readIP6(ip []byte) modelPacket {
	p := modelPacket{
		src: netip.AddrFrom16([16]byte(ip[8:24])), dst: netip.AddrFrom16([16]byte(ip[24:40])),
		tos: ip[0]<<4 | ip[1]>>4, ttl: ip[7], protocol: ip[6], plain: true,
	}
	end := 40 + int(binary.BigEndian.Uint16(ip[4:]))
	if ip[0]>>4 != 6 {
		p.bad = "bad_version"
		return p
	}
	if end == 40 || end > len(ip) {
		p.bad = "ip6_bad_length"
		return p
	}
	p.packet = ip[:end]
	rest := ip[40:end]
	for n := 0; ; n++ {
		if p.protocol == 44 {
			p.bad = "fragment"
			return p
		}
		if p.protocol != 0 && p.protocol != 43 && p.protocol != 60 {
			break
		}
		p.plain = false
		if n == 6 || p.protocol == 0 && n > 0 || len(rest) < 8 || p.protocol == 43 && rest[3] != 0 {
			p.bad = "ip6_extensions"
			return p
		}
		length := (int(rest[1]) + 1) * 8
		if length > len(rest) {
			p.bad = "ip6_extensions"
			return p
		}
		p.protocol, rest = rest[0], rest[length:]
	}
	p.l4 = rest
	p.readL4()
	return p
}

func (p *modelPacket) readL4() {
	switch p.protocol {
	case 6:
		p.readTCP()
	case 17:
		if len(p.l4) < 8 {
			p.bad = "truncated"
			return
		}
		p.sport, p.dport = binary.BigEndian.Uint16(p.l4), binary.BigEndian.Uint16(p.l4[2:])
		if n := int(binary.BigEndian.Uint16(p.l4[4:])); n < 8 || n > len(p.l4) {
			p.bad = "udp_bad_length"
		}
	}
}

func (p *modelPacket) readTCP() {
	if len(p.l4) < 20 {
		p.bad = "truncated"
		return
	}
	p.sport, p.dport = binary.BigEndian.Uint16(p.l4), binary.BigEndian.Uint16(p.l4[2:])
	header := int(p.l4[12]>>4) * 4
	if header < 20 || header > len(p.l4) {
		p.bad = "tcp_bad_offset"
		return
	}
	for o := p.l4[20:header]; len(o) > 0 && o[0] != 0; {
		if o[0] == 1 {
			o = o[1:]
			continue
		}
		if len(o) < 2 || o[1] < 2 || int(o[1]) > len(o) {
			p.bad = "tcp_bad_option"
			return
		}
		o = o[o[1]:]
	}
}

func (m *muxModel) walkICMP(frame []byte, p modelPacket) modelResult {
	drop := func(reason string) modelResult { return modelResult{xdpDrop, frame, reason, nil} }
	if len(p.l4) < 8 {
		return drop("truncated")
	}
	request, reply, header := byte(8), byte(0), 20
	var pseudo []byte
	if p.dst.Is6() {
		request, reply, header = 128, 129, 40
		pseudo = wire.PseudoHeader(p.src, p.dst, 58, len(p.l4))
	}
	if p.l4[0] != request || p.l4[1] != 0 || len(p.l4) > 1480 || !p.plain || !replyTo(p.src) {
		return drop("icmp_ignored")
	}
	if wire.Checksum(pseudo, p.l4) != 0 {
		return drop("bad_checksum")
	}
	out := append([]byte(nil), frame...)
	copy(out[0:6], frame[6:12])
	copy(out[6:12], frame[0:6])
	ip := out[14:]
	if p.dst.Is4() {
		copy(ip[12:16], frame[14+16:])
		copy(ip[16:20], frame[14+12:14+16])
		ip[8] = 64
		ip[10], ip[11] = 0, 0
		binary.BigEndian.PutUint16(ip[10:], wire.Checksum(ip[:20]))
	} else {
		copy(ip[8:24], frame[14+24:])
		copy(ip[24:40], frame[14+8:14+24])
		ip[7] = 64
	}
	l4 := ip[header : header+len(p.l4)]
	l4[0], l4[2], l4[3] = reply, 0, 0
	sum := wire.Checksum(pseudo, l4)
	if sum == 0 {
		sum = 0xffff // the same number, and right for a message of zeros
	}
	binary.BigEndian.PutUint16(l4[2:], sum)
	return modelResult{xdpTX, out, "echo_replied", nil}
}

// replyTo says whether a reply may go to an address.
func replyTo(a netip.Addr) bool {
	if a.Is4() {
		b := a.As4()[0]
		return b != 0 && b != 127 && b < 224
	}
	return !a.IsMulticast() && !a.IsUnspecified()
}

func (m *muxModel) forward(frame []byte, p modelPacket, e MuxEndpoint) modelResult {
	drop := func(reason string) modelResult { return modelResult{xdpDrop, frame, reason, nil} }
	if p.ttl <= 1 {
		return drop("ttl_expired")
	}
	for _, other := range m.state.Endpoints {
		if other.Key.VIP == p.src {
			return drop("bad_source")
		}
	}
	members, count := map[uint16]MuxMember{}, 0
	for _, mm := range e.Members {
		members[mm.ID], count = mm, max(count, int(mm.ID)+1)
	}
	if len(e.Ring) == 0 {
		return drop("no_backend")
	}
	hash := ring.FlowHash(ring.KeyOf(m.state.RingKeys[e.KeySlot]), 0, p.src, p.dst, p.protocol, p.sport, p.dport)
	choice, ok := ring.Choose(e.Ring, e.RingCode, count, hash, func(id uint16) bool {
		mm, present := members[id]
		return present && mm.Choosable && m.alive[MemberKey{e.Key, id}]
	})
	if !ok {
		return drop("no_backend")
	}
	member := members[choice.Member]
	outer := m.outer(p, member.Outer, hash)
	if member.MTU != 0 && len(outer)+len(p.packet) > int(member.MTU) {
		return drop("too_big")
	}
	hop := m.hops[member.Outer]
	if hop == (NextHop{}) {
		return drop("no_nexthop")
	}
	inner := append([]byte(nil), p.packet...)
	if p.dst.Is4() {
		inner[8]--
		inner[10], inner[11] = 0, 0
		binary.BigEndian.PutUint16(inner[10:], wire.Checksum(inner[:20]))
	} else {
		inner[7]--
	}
	mac := m.mac(hop.Ifindex)
	out := append(append(hop.MAC[:len(hop.MAC):len(hop.MAC)], mac[:]...), 0x08, 0x00)
	if member.Outer.Is6() {
		out[12], out[13] = 0x86, 0xdd
	}
	out = append(append(out, outer...), inner...)
	verdict := uint32(xdpRedirect)
	if hop.Ifindex == m.ingress {
		verdict = xdpTX
	}
	return modelResult{verdict, out, "forwarded", &MemberKey{e.Key, choice.Member}}
}

// outer is the tunnel header (RFC 2003, RFC 2473).
func (m *muxModel) outer(p modelPacket, dst netip.Addr, hash uint64) []byte {
	protocol := byte(4)
	if p.dst.Is6() {
		protocol = 41
	}
	src := outerSource(m.state.TunnelSources, dst.Is4(), hash)
	be := binary.BigEndian
	if dst.Is4() {
		b := be.AppendUint16([]byte{0x45, p.tos}, uint16(20+len(p.packet)))
		b = append(b, 0, 0, 0x40, 0, 64, protocol, 0, 0)
		b = append(append(b, src.AsSlice()...), dst.AsSlice()...)
		be.PutUint16(b[10:], wire.Checksum(b))
		return b
	}
	b := be.AppendUint32(nil, 6<<28|uint32(p.tos)<<20|uint32(hash&0xfffff))
	b = be.AppendUint16(b, uint16(len(p.packet)))
	b = append(b, protocol, 64)
	return append(append(b, src.AsSlice()...), dst.AsSlice()...)
}
