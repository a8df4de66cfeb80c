package dataplane

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"

	"github.com/shuntlb/shunt/internal/cid"
	"github.com/shuntlb/shunt/internal/lb"
)

// newQUIC makes an endpoint that may be one of connection ids one, now and then.
func (f *fuzz) newQUIC(e *MuxEndpoint) {
	if e.QUIC = nil; e.Affinity != AffinityFlow || e.Key.Protocol != lb.UDP || e.OnePacket || e.sourceBits() != 0 || e.Fragments3Tuple || f.qr.IntN(3) == 0 {
		return
	}
	e.Affinity, e.QUIC = AffinityCookie, randomQUIC(f.qr)
}

// randomQUIC is a way to read connection ids.
func randomQUIC(r *rand.Rand) *MuxQUIC {
	s := &MuxQUIC{Format: pick(r, cid.QUICLB, cid.QUICLB, cid.Plain, cid.MSQUIC, cid.MVFST)}
	if s.Format != cid.QUICLB && s.Format != cid.Plain {
		return s
	}
	for _, id := range r.Perm(cid.Unroutable)[:1+r.IntN(3)] {
		c := cid.Config{ID: uint8(id), ServerID: 3, Nonce: 13}
		if r.IntN(2) == 0 {
			c.ServerID = uint8(2 + r.IntN(14))
			c.Nonce = uint8(4 + r.IntN(16-int(c.ServerID)))
		}
		if s.Format == cid.QUICLB {
			for i := range c.Key {
				c.Key[i] = byte(r.Uint32())
			}
		}
		s.Configs = append(s.Configs, c)
	}
	return s
}

// quic gives a packet with a header of QUIC, or nearly, to program and model, when there is an endpoint of connection ids.
func (f *fuzz) quic() {
	if f.qr.IntN(5) > 0 {
		return
	}
	r := f.r
	f.r = f.qr
	defer func() { f.r = r }()
	all := slices.DeleteFunc(slices.Clone(f.model.state.Endpoints), func(e MuxEndpoint) bool { return e.QUIC == nil })
	if len(all) == 0 {
		return
	}
	e := pick(f.r, all...)
	w := f.gen.flowTo(e.Key)
	f.gen.ip = f.gen.ip[:0]
	payload := append(f.gen.transport(w, 0), f.gen.datagram(e)...)
	binary.BigEndian.PutUint16(payload[4:], uint16(len(payload)))
	f.gen.packet(w, payload)
	f.packet(f.gen.frame(w))
}

// datagram is one to an endpoint of connection ids: a header of either kind, by an id of a member, of a stranger, of nobody, or any; cut short now and then.
func (g *fuzzFrames) datagram(e MuxEndpoint) []byte {
	r := g.f.r
	var dcid []byte
	switch n := r.IntN(12); {
	case n < 7:
		dcid = mint(e.QUIC, uint16(r.IntN(len(e.Members)+3)), r)
	case n < 8:
		dcid = mint(randomQUIC(r), uint16(r.IntN(4)), r)
	case n < 10: // no configuration
		dcid = append([]byte{cid.Unroutable << 5}, g.some(r.IntN(20))...)
	default:
		dcid = g.some(r.IntN(22))
	}
	var b []byte
	switch n := r.IntN(8); {
	case n < 4:
		b = shortHeader(dcid)
	case n < 7:
		b = longHeader(pick[byte](r, quicInitial, quicInitial, quicZeroRTT, quicHandshake, 0x80), dcid, g.some(pick(r, 0, 4, 8, 20, r.IntN(23))))
	default:
		b = slices.Clone(g.some(r.IntN(60)))
	}
	if r.IntN(10) == 0 && len(b) > 0 {
		b[r.IntN(min(len(b), 8))] = byte(r.Uint32())
	}
	if r.IntN(10) == 0 {
		b = b[:r.IntN(len(b)+1)]
	}
	return b
}
