package dataplane

import (
	"encoding/binary"
	"net/netip"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/wire"
)

// fuzzFrames makes frames: plausible traffic of few clients mostly, so that flows go on.
type fuzzFrames struct {
	f       *fuzz
	data    []byte // what packets carry
	ip, buf []byte
	pieces  [12]fuzzPieces // packets under way in fragments
	burst   fuzzBurst
}

// fuzzBurst are packets of one kind to one endpoint, for which the clock stands still: what limits and full buckets are for.
type fuzzBurst struct {
	left int
	kind int
	flow fuzzFlow
}

// fuzzPieces is a packet that travels in fragments.
type fuzzPieces struct {
	flow fuzzFlow
	id   uint32
}

// fuzzFlow is what a packet of a client to a VIP is known by.
type fuzzFlow struct {
	client, vip netip.Addr
	protocol    byte
	from, to    uint16
}

// fuzzClients is the number of clients of each family.
const fuzzClients = 8

// fuzzClient is a client's address. Some are near others, so that prefixes hold them together.
func fuzzClient(i int, v6 bool) netip.Addr {
	if v6 {
		return netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 1, 0, byte(i >> 2), 0, 15: byte(i)})
	}
	return netip.AddrFrom4([4]byte{198, 51, byte(100 + i>>2), byte(i)})
}

func newFuzzFrames(f *fuzz) *fuzzFrames {
	g := &fuzzFrames{f: f, data: make([]byte, 20_000)}
	for i := range g.data {
		g.data[i] = byte(i * 7 >> 3)
	}
	return g
}

func (g *fuzzFrames) begin() { g.pieces, g.burst = [12]fuzzPieces{}, fuzzBurst{} }

// flow is of one of the present endpoints nearly always.
func (g *fuzzFrames) flow() fuzzFlow {
	r := g.f.r
	e, ok := g.f.randomEndpoint()
	if !ok || g.f.one(25) {
		e.Key = pick(r, fuzzKeys...)
		e.Key.VIP = pick(r, fuzzVIPs...)
	}
	return g.flowTo(e.Key)
}

func (g *fuzzFrames) flowTo(k lb.EndpointKey) fuzzFlow {
	r := g.f.r
	w := fuzzFlow{
		client: fuzzClient(r.IntN(fuzzClients), k.VIP.Is6()), vip: k.VIP, protocol: byte(k.Protocol), from: uint16(r.IntN(4)), to: k.Port,
	}
	if k.PortEnd != 0 {
		w.to = k.Port + uint16(r.IntN(min(int(k.PortEnd-k.Port)+1, 4)))
		if g.f.one(4) {
			w.to = k.PortEnd
		}
	}
	if g.f.one(40) {
		w.to = uint16(r.Uint32())
	}
	if g.f.one(40) {
		w.from = uint16(r.Uint32())
	}
	if k.Protocol == lb.AnyProtocol {
		w.protocol = byte(pick(r, 6, 17, 47, 132, 255))
	}
	switch {
	case g.f.one(150): // from a VIP
		if src := pick(r, fuzzVIPs...); src.Is4() == k.VIP.Is4() {
			w.client = src
		}
	case g.f.one(100) && k.VIP.Is4():
		w.client = netip.AddrFrom4([4]byte{byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())})
	case g.f.one(100) && k.VIP.Is6():
		var a [16]byte
		binary.BigEndian.PutUint64(a[pick(r, 0, 8):], r.Uint64())
		w.client = netip.AddrFrom16(a)
	case g.f.one(200) && k.VIP.Is6(): // mapped
		w.client = netip.AddrFrom16(pick(r, fuzzClient(1, false), fuzzVIPs[0]).As16())
	}
	return w
}

// flowOf is the identity of some flow to an endpoint, as the model knows it.
func (g *fuzzFrames) flowOf(e MuxEndpoint) modelIdentity {
	w := g.flowTo(e.Key)
	p := modelPacket{src: w.client, dst: w.vip, protocol: w.protocol, sport: w.from, dport: w.to}
	if !p.ports() {
		p.sport, p.dport = 0, 0
	}
	if e.OnePacket {
		return modelIdentity{0, p.src, p.dst, p.protocol, p.sport, p.dport}
	}
	return g.f.model.identity(p, e)
}

func (p modelPacket) ports() bool { return p.protocol == 6 || p.protocol == 17 }

// next is a frame, and how many bytes of it are in one piece; 0: as many as fit.
func (g *fuzzFrames) next() (frame []byte, linear int) {
	r := g.f.r
	if g.burst.left > 0 {
		return g.nextOfBurst()
	}
	if g.f.one(3000) {
		g.burst = fuzzBurst{r.IntN(400), r.IntN(5), g.flow()}
	}
	w := g.flow()
	g.ip = g.ip[:0]
	switch n := r.IntN(100); {
	case n < 4:
		g.ping(w)
	case n < 10:
		g.icmpError(w)
	case n < 20:
		g.fragment(w)
	case n < 23:
		w.protocol = byte(r.Uint32())
		g.packet(w, g.transport(w, g.size()))
	case n < 30 && w.protocol != 17:
		w.protocol = 17
		g.packet(w, g.transport(w, g.size()))
	default:
		g.packet(w, g.transport(w, g.size()))
	}
	return g.frame(w)
}

// nextOfBurst is the next frame of a burst.
func (g *fuzzFrames) nextOfBurst() (frame []byte, linear int) {
	w := g.burst.flow
	g.burst.left--
	switch g.burst.kind {
	case 0:
		g.ping(w)
	case 1: // too big for most tunnels
		g.packet(w, g.transport(w, 1400+g.f.r.IntN(60)))
	case 2: // new flows, half of them seen twice
		w.from = 5000 + uint16(g.burst.left/2)
		g.packet(w, g.transport(w, 0))
	case 3: // the same, trusted
		w.from = 9000 + uint16(g.burst.left/2)
		payload := g.transport(w, 0)
		if w.protocol == 6 {
			payload[13] = []byte{wire.ACK, wire.SYN}[g.burst.left&1]
		}
		g.packet(w, payload)
	default:
		g.packet(w, g.transport(w, g.size()))
	}
	return g.frame(w)
}

// size is how much a packet carries.
func (g *fuzzFrames) size() int {
	r := g.f.r
	switch n := r.IntN(200); {
	case n == 0:
		return r.IntN(9100)
	case n < 12: // about what fits a tunnel
		return pick(r, 600, 1300, 1400, 1500, 1500) - pick(r, 0, 8, 20, 40, 48, 60, 68, 84, 104) + r.IntN(5) - 2 - 40
	case n < 20:
		return r.IntN(1500)
	}
	return r.IntN(40)
}

// frame puts the packet in g.ip into a frame, and spoils it now and then.
func (g *fuzzFrames) frame(w fuzzFlow) (frame []byte, linear int) {
	r := g.f.r
	b := append(g.buf[:0], muxSelf[:]...)
	if g.f.one(30) {
		b = append(b[:0], fuzzOtherSelf[:]...)
	}
	if g.f.one(100) {
		b[r.IntN(6)] ^= 1 << r.IntN(8)
	}
	b = append(b, muxRouter[:]...)
	for g.f.one(25) {
		b = append(b, pick[byte](r, 0x81, 0x88), 0, byte(r.Uint32()), byte(r.Uint32()))
		if b[len(b)-4] == 0x88 {
			b[len(b)-3] = 0xa8
		}
	}
	at := len(b) + 2
	switch {
	case g.f.one(300):
		b = append(b, 8, 6)
	case w.vip.Is4():
		b = append(b, 8, 0)
	default:
		b = append(b, 0x86, 0xdd)
	}
	b = append(b, g.ip...)
	g.spoil(b, at)
	if g.f.one(8) {
		b = append(b, g.data[:r.IntN(50)]...)
	}
	if g.f.one(1000) {
		b = append(b, g.data[:r.IntN(4000)]...)
	}
	if g.f.one(60) {
		b = b[:max(14, r.IntN(len(b)+1))]
	}
	b = b[:min(len(b), 9600)]
	if len(b) > 14 && g.f.one(30) {
		linear = 14 + r.IntN(min(len(b)-14, 200))
	}
	g.buf = b
	return b, linear
}

// spoil changes a packet at an offset of a frame: lengths that lie, wrong bits, TTLs that end.
func (g *fuzzFrames) spoil(b []byte, at int) {
	r := g.f.r
	v4 := b[at]>>4 == 4
	field := func(of4, of6 int) *byte {
		if v4 {
			return &b[at+of4]
		}
		return &b[at+of6]
	}
	mend := v4
	if g.f.one(60) {
		*field(8, 7) = byte(r.IntN(3))
	}
	if g.f.one(80) { // the packet's length
		*field(3, 5) += byte(r.IntN(21) - 10)
	}
	if g.f.one(200) {
		*field(2, 4) += byte(r.IntN(3) - 1)
	}
	if g.f.one(200) {
		*field(0, 0) = byte(r.Uint32())
	}
	if g.f.one(40) && len(b) > at+20 { // transport or ICMP header, or what that quotes
		rest := b[at+20:]
		rest[r.IntN(min(len(rest), 120))] = byte(r.Uint32())
	}
	if g.f.one(40) {
		rest := b[at:]
		rest[r.IntN(min(len(rest), 120))] ^= 1 << r.IntN(8)
		mend = mend && !g.f.one(3)
	}
	if mend && len(b) >= at+20 {
		b[at+10], b[at+11] = 0, 0
		binary.BigEndian.PutUint16(b[at+10:], ^sum16(0, b[at:at+20]))
	}
}

// sum16 adds to a folded sum of 16-bit words.
func sum16(sum uint64, b []byte) uint16 {
	for ; len(b) >= 4; b = b[4:] {
		sum += uint64(binary.BigEndian.Uint32(b))
	}
	if len(b) >= 2 {
		sum += uint64(binary.BigEndian.Uint16(b))
		b = b[2:]
	}
	if len(b) == 1 {
		sum += uint64(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}
