package dataplane

import (
	"encoding/binary"
	"net/netip"
	"slices"

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
	policy  modelPolicy
	flows   *modelFlows
	// noted are reasons counted beside the packet's own.
	noted []string
	edge  modelEdge
	snat  modelSNAT
	// probes are those that there are; nil: probes are off.
	probes    *modelProbes
	schedules modelSchedules
	// linear is how much of a frame lies in one piece, where alone headers are found; 0: linearBytes.
	linear int
	macs   [][6]byte // own addresses; none: muxSelf

	indexed *modelIndex
	trail   modelTrail
}

// modelResult is what should come out.
type modelResult struct {
	verdict uint32
	frame   []byte
	reason  string
	member  *MemberKey
}

func (m *muxModel) walk(frame []byte) modelResult {
	m.trail.begin()
	room := m.linearOf(frame) - 14
	if room < 0 {
		return modelResult{verdict: xdpDrop, frame: frame, reason: "truncated"}
	}
	if mac := [6]byte(frame); mac != muxSelf && !slices.Contains(m.macs, mac) {
		return modelResult{verdict: xdpPass, frame: frame, reason: "pass_other_mac"}
	}
	ip := frame[14:]
	switch binary.BigEndian.Uint16(frame[12:]) {
	case 0x0800:
		if room < 20 {
			return modelResult{verdict: xdpDrop, frame: frame, reason: "truncated"}
		}
		return m.walkIP(frame, readIP4(ip, room))
	case 0x86dd:
		if room < 40 {
			return modelResult{verdict: xdpDrop, frame: frame, reason: "truncated"}
		}
		return m.walkIP(frame, readIP6(ip, room))
	case 0x8100, 0x88a8:
		return m.walkTagged(frame)
	}
	return modelResult{verdict: xdpPass, frame: frame, reason: "pass_not_ip"}
}

// linearBytes is how much of a frame the test runner puts in one piece: a page, without headroom and the kernel's part.
const linearBytes = 4096 - 256 - 320

// linearOf is how much of a frame lies in one piece.
func (m *muxModel) linearOf(frame []byte) int {
	if m.linear > 0 {
		return min(len(frame), m.linear)
	}
	return min(len(frame), linearBytes)
}

// modelPacket is a packet as far as it could be read.
type modelPacket struct {
	src, dst     netip.Addr
	tos, ttl     byte
	protocol     byte
	packet       []byte // without padding
	l4           []byte
	room         int  // bytes in one piece from l4 on
	plain        bool // no extension headers
	sport, dport uint16
	bad          string // why it is malformed
	fragment     *modelFragment
	stamp        uint32     // of what an ICMP error quotes: its timestamp, 0 for none
	errorTo      *MuxMember // of an ICMP error: addresses, protocol and ports are of the packet that the quoted one answers
}

func (m *muxModel) walkIP(frame []byte, p modelPacket) modelResult {
	drop := func(reason string) modelResult { return modelResult{verdict: xdpDrop, frame: frame, reason: reason} }
	if !m.isVIP(p.dst) {
		return m.walkUnclaimed(frame, p)
	}
	if p.bad != "" {
		return drop(p.bad)
	}
	if p.fragment != nil {
		return m.walkFragment(frame, p)
	}
	icmp := byte(1)
	if p.dst.Is6() {
		icmp = 58
	}
	switch p.protocol {
	case icmp:
		return m.walkICMP(frame, p)
	}
	if e, ok := m.endpointOf(p.dst, p.protocol, p.dport); ok {
		return m.forward(frame, p, e)
	}
	if !p.ports() {
		return drop("protocol")
	}
	if r, ok := m.outbound(frame, p, p.dport); ok {
		return r
	}
	return drop("no_endpoint")
}

// readIP4 reads a packet of whose frame so many bytes are in one piece.
func readIP4(ip []byte, room int) modelPacket {
	p := modelPacket{
		src: netip.AddrFrom4([4]byte(ip[12:16])), dst: netip.AddrFrom4([4]byte(ip[16:20])),
		tos: ip[1], ttl: ip[8], protocol: ip[9], plain: true, room: room - 20,
	}
	header, total := int(ip[0]&15)*4, int(binary.BigEndian.Uint16(ip[2:]))
	switch {
	case ip[0]>>4 != 4:
		p.bad = "bad_version"
	case header < 20 || header > room:
		p.bad = "ip4_bad_ihl"
	case total < header || total > len(ip):
		p.bad = "ip4_bad_length"
	case header > 20:
		p.bad = "ip4_options"
	case wire.Sum(ip[:20]) != 0xffff:
		p.bad = "bad_checksum"
	default:
		if word := binary.BigEndian.Uint16(ip[6:]); word&0x3fff != 0 {
			p.fragment = &modelFragment{id: uint32(binary.BigEndian.Uint16(ip[4:])), later: word&0x1fff != 0, more: word&0x2000 != 0}
		}
		p.packet, p.l4 = ip[:total], ip[20:total]
		p.readL4()
	}
	return p
}

func readIP6(ip []byte, room int) modelPacket {
	p := modelPacket{
		src: netip.AddrFrom16([16]byte(ip[8:24])), dst: netip.AddrFrom16([16]byte(ip[24:40])),
		tos: ip[0]<<4 | ip[1]>>4, ttl: ip[7], protocol: ip[6], plain: true, room: room - 40,
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
	p.l4 = ip[40:end]
	p.readExtensions(true)
	if p.fragment != nil {
		p.readFragment6()
	}
	if p.bad == "" {
		p.readL4()
	}
	return p
}

// readExtensions goes over extension headers up to a transport header, or a fragment header, at p.l4; the fixed header was
// just before when fresh.
func (p *modelPacket) readExtensions(fresh bool) {
	for n := 0; ; n++ {
		rest := p.l4
		if p.protocol == 44 {
			p.fragment = &modelFragment{}
			return
		}
		if p.protocol != 0 && p.protocol != 43 && p.protocol != 60 {
			return
		}
		p.plain = false
		if n == 6 || p.protocol == 0 && (n > 0 || !fresh) || min(len(rest), p.room) < 8 || p.protocol == 43 && rest[3] != 0 {
			p.bad = "ip6_extensions"
			return
		}
		length := (int(rest[1]) + 1) * 8
		if length > len(rest) {
			p.bad = "ip6_extensions"
			return
		}
		p.protocol, p.l4 = rest[0], rest[length:]
		p.room -= length
	}
}

func (p *modelPacket) readL4() {
	if p.fragment != nil && p.fragment.later {
		p.l4 = make([]byte, 20) // no header: no ports and no flags
		return
	}
	switch p.protocol {
	case 6:
		p.readTCP()
	case 17:
		if min(len(p.l4), p.room) < 8 {
			p.bad = "truncated"
			return
		}
		p.sport, p.dport = binary.BigEndian.Uint16(p.l4), binary.BigEndian.Uint16(p.l4[2:])
		if n := int(binary.BigEndian.Uint16(p.l4[4:])); n < 8 || n > len(p.l4) && (p.fragment == nil || !p.fragment.more) {
			p.bad = "udp_bad_length"
		}
	}
}

func (p *modelPacket) readTCP() {
	if min(len(p.l4), p.room) < 20 {
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
		rest := p.room - (header - len(o))
		if rest < 1 {
			return
		}
		if o[0] == 1 {
			o = o[1:]
			continue
		}
		if min(len(o), rest) < 2 || o[1] < 2 || int(o[1]) > len(o) {
			p.bad = "tcp_bad_option"
			return
		}
		o = o[o[1]:]
	}
}

func (m *muxModel) walkICMP(frame []byte, p modelPacket) modelResult {
	drop := func(reason string) modelResult { return modelResult{verdict: xdpDrop, frame: frame, reason: reason} }
	if len(p.l4) < 8 {
		return drop("truncated")
	}
	if p.room > 0 && quotesPacket(p) {
		return m.walkError(frame, p)
	}
	if p.room < 8 {
		return drop("truncated")
	}
	if r, ok := m.outboundEcho(frame, p); ok {
		return r
	}
	request, reply, header := byte(8), byte(0), 20
	var pseudo []byte
	if p.dst.Is6() {
		request, reply, header = 128, 129, 40
		pseudo = wire.PseudoHeader(p.src, p.dst, 58, len(p.l4))
	}
	if p.l4[0] != request || p.l4[1] != 0 || len(p.l4) > 8980 || !p.plain || !possible(p.src) {
		return drop("icmp_ignored")
	}
	if wire.Checksum(pseudo, p.l4) != 0 {
		return drop("bad_checksum")
	}
	if !m.allowed(p.src) {
		return drop("icmp_ignored")
	}
	if m.deniedPing(p) {
		return drop("source_denied")
	}
	if !m.allowPing(p.dst) {
		return drop("ping_limited")
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
	return modelResult{verdict: xdpTX, frame: out, reason: "echo_replied"}
}

// allowed says whether what is forwarded may come from an address.
func (m *muxModel) allowed(a netip.Addr) bool {
	return possible(a) && !slices.ContainsFunc(m.state.TunnelSources, func(p netip.Prefix) bool { return p.Contains(a) })
}

// possible says whether a packet may come from an address.
func possible(a netip.Addr) bool {
	if a.Is4() {
		b := a.As4()[0]
		return b != 0 && b != 127 && b < 224
	}
	return a.As16()[0] != 0xff && !a.IsUnspecified() && !a.Is4In6() && a != netip.IPv6Loopback()
}

func (m *muxModel) forward(frame []byte, p modelPacket, e MuxEndpoint) modelResult {
	drop := func(reason string) modelResult { return modelResult{verdict: xdpDrop, frame: frame, reason: reason} }
	m.trail.count(e.Key, len(p.packet))
	if p.ttl <= 1 {
		return drop("ttl_expired")
	}
	if followed := p.fragment != nil && p.fragment.followed != nil; !followed && m.fromService(p) {
		return drop("bad_source")
	}
	if reason := m.admit(p); reason != "" {
		return drop(reason)
	}
	if p.fragment != nil && p.fragment.followed != nil {
		m.noted = append(m.noted, "fragment_followed")
		member, _ := memberWith(e, p.fragment.followed.member)
		return m.send(frame, p, e, member, p.fragment.followed.hash)
	}
	if p.errorTo != nil {
		return m.send(frame, p, e, *p.errorTo, uint64(errorHash(p.src)))
	}
	id, hash, reason := m.choose(p, e)
	if reason != "" {
		return drop(reason)
	}
	m.rememberFragment(p, e, id, hash)
	member, _ := memberWith(e, id)
	return m.send(frame, p, e, member, hash)
}

// send sends a packet to a member.
func (m *muxModel) send(frame []byte, p modelPacket, e MuxEndpoint, member MuxMember, hash uint64) modelResult {
	drop := func(reason string) modelResult { return modelResult{verdict: xdpDrop, frame: frame, reason: reason} }
	outer := m.outer(p, e, member, hash)
	if member.MTU != 0 && len(outer)+len(p.packet) > int(member.MTU) {
		return m.tooBig(frame, p, int(member.MTU)-len(outer))
	}
	hop := m.hops[member.Outer]
	if hop == (NextHop{}) {
		return drop("no_nexthop")
	}
	inner := append([]byte(nil), p.packet...)
	if end := 14 + len(p.packet); m.linearOf(frame) == end {
		// Padding that fills a piece of its own stays on: to know of it, the walk would have to ask the kernel for the
		// length of every frame.
		inner = append(inner, frame[end:]...)
	}
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
	out = withTag(append(append(out, outer...), inner...), hop.Tag)
	verdict := uint32(xdpRedirect)
	if hop.Ifindex == m.ingress {
		verdict = xdpTX
	}
	m.trail.member = int(member.ID)
	return modelResult{verdict: verdict, frame: out, reason: "forwarded", member: &MemberKey{e.Key, member.ID}}
}

// choose says which member a packet goes to, and the hash that its outer source varies with.
func (m *muxModel) choose(p modelPacket, e MuxEndpoint) (id uint16, hash uint64, reason string) {
	first := m.flowsFirst(p, e)
	if e.QUIC != nil {
		return m.chooseQUIC(p, e, first)
	}
	if e.Cookie != nil && !first {
		if id, hash, reason, ok := m.byCookie(p, e); ok {
			return id, hash, reason
		}
	}
	identity := m.identity(p, e)
	hash = identity.hash(m.ringKey(e))
	if e.Affinity != AffinityHash && !e.OnePacket {
		return m.remember(p, e, identity, hash)
	}
	if !m.allowed(p.src) {
		return 0, 0, "bad_source"
	}
	id, ok := m.ring(e, hash)
	if !ok {
		return 0, 0, "no_backend"
	}
	return id, hash, ""
}

// ringKey is the key of an endpoint's ring; without a ring nobody says which, and it is the first.
func (m *muxModel) ringKey(e MuxEndpoint) ring.Key {
	if slots, _ := e.activeRing(); len(slots) == 0 {
		return ring.KeyOf(m.state.RingKeys[0])
	}
	return ring.KeyOf(m.state.RingKeys[e.KeySlot]).Tweaked(e.RingTweak)
}

// activeRing is the ring in use.
func (e MuxEndpoint) activeRing() ([]uint16, uint8) {
	if e.UseBackup && len(e.BackupRing) > 0 {
		return e.BackupRing, e.BackupCode
	}
	return e.Ring, e.RingCode
}

// ring is the member of a ring hash.
func (m *muxModel) ring(e MuxEndpoint, hash uint64) (uint16, bool) {
	slots, code := e.activeRing()
	count := 0
	if len(slots) == 0 {
		return 0, false
	}
	for _, mm := range e.Members {
		count = max(count, int(mm.ID)+1)
	}
	choice, ok := ring.Choose(slots, code, count, hash, func(id uint16) bool {
		mm, present := memberWith(e, id)
		return present && mm.Choosable && m.alive[MemberKey{e.Key, id}]
	})
	return choice.Member, ok
}

func memberWith(e MuxEndpoint, id uint16) (MuxMember, bool) {
	for _, m := range e.Members {
		if m.ID == id {
			return m, true
		}
	}
	return MuxMember{}, false
}

// outer is the tunnel header (RFC 2003, RFC 2473), with a GUE header when the endpoint has that.
func (m *muxModel) outer(p modelPacket, e MuxEndpoint, to MuxMember, hash uint64) []byte {
	dst, protocol := to.Outer, byte(4)
	if p.dst.Is6() {
		protocol = 41
	}
	var gue []byte
	if e.Encap == EncapGUE {
		gue, protocol = modelGUE(protocol, len(p.packet), to.ID, hash), 17
	}
	src := outerSource(m.state.TunnelSources, dst.Is4(), hash)
	be := binary.BigEndian
	if dst.Is4() {
		b := be.AppendUint16([]byte{0x45, p.tos}, uint16(20+len(gue)+len(p.packet)))
		b = append(b, 0, 0, 0x40, 0, 64, protocol, 0, 0)
		b = append(append(b, src.AsSlice()...), dst.AsSlice()...)
		be.PutUint16(b[10:], wire.Checksum(b))
		return append(b, gue...)
	}
	b := be.AppendUint32(nil, 6<<28|uint32(p.tos)<<20|uint32(hash&0xfffff))
	b = be.AppendUint16(b, uint16(len(gue)+len(p.packet)))
	b = append(b, protocol, 64)
	return append(append(append(b, src.AsSlice()...), dst.AsSlice()...), gue...)
}
