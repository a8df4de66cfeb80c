package dataplane

import (
	"encoding/binary"
	"slices"

	"github.com/shuntlb/shunt/internal/wire"
)

// transport appends a transport header and size bytes to g.ip, at the offset that headers leave; it returns their length.
// Checksums of TCP and UDP are nobody's business on the way.
func (g *fuzzFrames) transport(w fuzzFlow, size int) []byte {
	r, be := g.f.r, binary.BigEndian
	size = max(size, 0)
	b := be.AppendUint16(nil, w.from)
	b = be.AppendUint16(b, w.to)
	switch w.protocol {
	case 6:
		options := g.cookied(w, g.options())
		b = append(be.AppendUint64(b, r.Uint64()), byte(5+len(options)/4)<<4, g.flags(), 1, 0, 0, 0, 0, 0)
		b = append(b, options...)
	case 17:
		b = append(be.AppendUint16(b, uint16(8+size)), 0, 0)
	}
	return append(b, g.some(size)...)
}

// some are so many bytes, any ones.
func (g *fuzzFrames) some(size int) []byte { return g.data[g.f.r.IntN(200):][:size] }

// flags are TCP's: connections that open, go on and end.
func (g *fuzzFrames) flags() byte {
	if g.f.one(20) {
		return byte(g.f.r.Uint32())
	}
	return pick[byte](g.f.r, wire.SYN, wire.SYN, wire.ACK, wire.ACK, wire.ACK, wire.ACK|wire.PSH, wire.FIN|wire.ACK, wire.RST, wire.SYN|wire.ACK)
}

// options are TCP's: the usual ones, some, or nonsense.
func (g *fuzzFrames) options() []byte {
	r := g.f.r
	switch n := r.IntN(20); {
	case n < 10:
		return nil
	case n < 15:
		return []byte{1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2}
	case n < 17:
		return []byte{2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7}
	}
	b := make([]byte, 4*r.IntN(11))
	for i := range b {
		b[i] = pick(r, 1, 1, 1, 2, 3, 4, 8, 10, 0, byte(r.Uint32()))
	}
	return b
}

// packet makes g.ip the packet of a flow with this payload.
func (g *fuzzFrames) packet(w fuzzFlow, payload []byte) {
	if w.vip.Is4() {
		g.packet4(w, uint16(g.f.r.Uint32()), pick[uint16](g.f.r, 0x4000, 0x4000, 0x4000, 0), payload)
		return
	}
	var extensions []byte
	first := w.protocol
	if g.f.one(10) {
		first, extensions = g.extensions(w.protocol)
	}
	g.packet6(w, first, extensions, payload)
}

func (g *fuzzFrames) packet4(w fuzzFlow, id, flags uint16, payload []byte) {
	be, r := binary.BigEndian, g.f.r
	src, dst := w.client.As4(), w.vip.As4()
	b := be.AppendUint16(append(g.ip[:0], 0x45, byte(r.Uint32())), uint16(20+len(payload)))
	b = be.AppendUint16(be.AppendUint16(b, id), flags)
	b = append(append(append(b, 64, w.protocol, 0, 0), src[:]...), dst[:]...)
	be.PutUint16(b[10:], ^sum16(0, b))
	g.ip = append(b, payload...)
	if g.f.one(400) { // options
		g.ip[0] = 0x46
		g.ip = slices.Insert(g.ip, 20, 1, 1, 1, 0)
		be.PutUint16(g.ip[2:], uint16(len(g.ip)))
	}
}

// packet6 makes an IPv6 packet whose next header is `first`.
func (g *fuzzFrames) packet6(w fuzzFlow, first byte, extensions, payload []byte) {
	be := binary.BigEndian
	src, dst := w.client.As16(), w.vip.As16()
	if g.f.one(1000) { // to an IPv4 VIP's mapped address
		dst = fuzzVIPs[0].As16()
	}
	b := be.AppendUint32(g.ip[:0], 6<<28|g.f.r.Uint32N(1<<28))
	b = be.AppendUint16(b, uint16(len(extensions)+len(payload)))
	b = append(append(append(b, first, 64), src[:]...), dst[:]...)
	g.ip = append(append(b, extensions...), payload...)
}

// extensions are a few headers in front of a protocol: the first one's number and their bytes.
func (g *fuzzFrames) extensions(protocol byte) (first byte, b []byte) {
	r := g.f.r
	first = protocol
	for range r.IntN(pick(r, 3, 3, 9)) {
		kind := pick[byte](r, 43, 60, 60, 60)
		if g.f.one(20) {
			kind = pick[byte](r, 0, 44, 51, 59, byte(r.Uint32()))
		}
		h := make([]byte, 8*(1+r.IntN(pick(r, 2, 4))))
		if g.f.one(60) {
			h = make([]byte, 8*(1+r.IntN(256)))
		}
		h[0], h[1] = first, byte(len(h)/8-1)
		if g.f.one(20) {
			h[3] = 1 // segments left
		}
		if g.f.one(40) {
			h[1] = byte(r.Uint32())
		}
		first, b = kind, append(h, b...)
	}
	if g.f.one(3) { // hop by hop, where it belongs
		h := []byte{first, 0, 1, 4, 0, 0, 0, 0}
		first, b = 0, append(h, b...)
	}
	return first, b
}

// ping makes an echo request to the VIP of a flow, or another ICMP message.
func (g *fuzzFrames) ping(w fuzzFlow) {
	r := g.f.r
	b := append([]byte{8, 0, 0, 0}, g.data[r.IntN(100):][:4+r.IntN(pick(r, 60, 60, 60, 1500))]...)
	if g.f.one(200) {
		b = append(b[:4], g.data[:4+r.IntN(9100)]...)
	}
	if w.vip.Is6() {
		b[0] = 128
	}
	if g.f.one(10) {
		b[0] = byte(r.Uint32())
	}
	if g.f.one(20) {
		b[1] = 1
	}
	if g.f.one(50) {
		b = b[:r.IntN(len(b)+1)]
	}
	g.icmp(w, b)
}

// icmp makes g.ip the packet of an ICMP message, whose checksum is mostly right.
func (g *fuzzFrames) icmp(w fuzzFlow, b []byte) {
	w.protocol = 1
	if w.vip.Is6() {
		w.protocol = 58
	}
	if len(b) >= 4 && !g.f.one(30) {
		b[2], b[3] = 0, 0
		sum := uint64(0)
		if w.vip.Is6() {
			src, dst := w.client.As16(), w.vip.As16()
			sum = uint64(sum16(0, src[:])) + uint64(sum16(0, dst[:])) + uint64(len(b)) + 58
		}
		binary.BigEndian.PutUint16(b[2:], ^sum16(sum, b))
	}
	if g.f.one(300) { // of the other family
		w.protocol ^= 1 ^ 58
	}
	g.packet(w, b)
}

// icmpError makes an error about the answer to a flow's packet, by the client or a router.
func (g *fuzzFrames) icmpError(w fuzzFlow) {
	r := g.f.r
	back := w
	back.client, back.vip, back.from, back.to = w.vip, w.client, w.to, w.from
	if g.f.one(30) {
		back.client = w.client
	}
	switch {
	case g.f.one(10) && w.vip.Is4():
		g.packet4(back, 7, pick[uint16](r, 0x2000, 0x2000, 100), g.transport(back, 60))
	case g.f.one(10) && w.vip.Is6():
		g.packet6(back, 44, []byte{back.protocol, 0, 0, pick[byte](r, 1, 1, 0, 0x80), 0, 0, 0, 9}, g.transport(back, 60))
	default:
		g.packet(back, g.transport(back, r.IntN(pick(r, 60, 600))))
	}
	quote := len(g.ip)
	if g.f.one(3) {
		quote = min(quote, 20+r.IntN(60))
	}
	if g.f.one(2) {
		quote = min(quote, pick(r, 28, 48, 56, 552, 1232))
	}
	kind := pick[byte](r, 3, 3, 11, 12)
	if w.vip.Is6() {
		kind = byte(1 + r.IntN(4))
	}
	if g.f.one(20) {
		kind = byte(r.IntN(14))
	}
	b := append([]byte{kind, byte(r.IntN(5)), 0, 0, 0, 0, 5, 0}, g.ip[:quote]...)
	if g.f.one(2) {
		w.client = fuzzClient(r.IntN(fuzzClients), w.vip.Is6())
	}
	g.icmp(w, b)
}

// fragment makes a piece of a packet under way, or of a new one.
func (g *fuzzFrames) fragment(w fuzzFlow) {
	r := g.f.r
	p := &g.pieces[r.IntN(len(g.pieces))]
	if !p.flow.vip.IsValid() || g.f.one(6) {
		*p = fuzzPieces{w, uint32(r.IntN(64))}
		if g.f.one(2) {
			p.id = r.Uint32()
		}
	}
	w = p.flow
	if g.f.one(100) {
		w.client = fuzzClient(r.IntN(fuzzClients), w.vip.Is6())
	}
	offset, more, size := r.IntN(4), true, 8*r.IntN(pick(r, 12, 80, 180))
	switch offset {
	case 3:
		more, size = false, g.size()
	case 0:
		more = !g.f.one(10)
	}
	payload := g.some(max(size, 0))
	if offset == 0 {
		payload = g.transport(w, size)
		if w.protocol == 17 && !g.f.one(4) {
			payload[4] = 8 // the whole datagram's
		}
	}
	if w.vip.Is4() {
		flags := uint16(offset * 64)
		if more {
			flags |= 0x2000
		}
		if g.f.one(10) {
			flags |= 0x4000
		}
		g.packet4(w, uint16(p.id), flags, payload)
		return
	}
	g.fragment6(w, p.id, uint16(offset*512), more, payload)
}

func (g *fuzzFrames) fragment6(w fuzzFlow, id uint32, offset uint16, more bool, payload []byte) {
	next, behind := w.protocol, []byte(nil)
	if g.f.one(10) && offset == 0 {
		next, behind = g.extensions(w.protocol)
	}
	if g.f.one(20) {
		next = byte(g.f.r.Uint32())
	}
	h := []byte{next, 0, byte(offset >> 8), byte(offset)}
	if more {
		h[3] |= 1
	}
	h = binary.BigEndian.AppendUint32(h, id)
	first, before := byte(44), []byte(nil)
	if g.f.one(10) {
		first, before = g.extensions(44)
	}
	g.packet6(w, first, slices.Concat(before, h, behind), payload)
}
