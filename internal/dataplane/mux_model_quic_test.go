package dataplane

import (
	"encoding/binary"
	"math/rand/v2"

	"github.com/shuntlb/shunt/internal/cid"
	"github.com/shuntlb/shunt/internal/ring"
)

// datagram is the payload of a UDP packet, or of its first fragment as much as is in it.
func (p modelPacket) datagram() []byte {
	return p.l4[8:min(len(p.l4), int(binary.BigEndian.Uint16(p.l4[4:])))]
}

// sourceBits are 24 bits that tell connections of one socket apart, 0 for an id without octets.
func sourceBits(key ring.Key, id []byte) uint32 {
	if len(id) == 0 {
		return 0
	}
	var b [24]byte
	copy(b[:], id)
	b[23] = byte(len(id))
	le := binary.LittleEndian
	return uint32(ring.SipHash13(key, le.Uint64(b[:]), le.Uint64(b[8:]), le.Uint64(b[16:]))>>40) | 1
}

// chooseQUIC is choose for an endpoint of connection ids.
func (m *muxModel) chooseQUIC(p modelPacket, e MuxEndpoint, flowsFirst bool) (id uint16, hash uint64, reason string) {
	if who := m.identity(p, e); flowsFirst {
		alone := who.entry(m.flows.key)
		id, reason = m.rememberQUIC(p, e, alone, who.hash(m.ringKey(e)), true)
		return id, alone, reason
	}
	h, ok := cid.Parse(p.datagram())
	named, does := e.QUIC.Member(h.DCID)
	_, present := memberWith(e, named)
	if does && present && m.keeps(e, named) {
		if !m.allowed(p.src) {
			return 0, 0, "bad_source"
		}
		return named, ring.SpreadHash(m.flows.spread, p.src, p.sport), ""
	}
	who := m.identity(p, e)
	alone := who.entry(m.flows.key)
	ringHash := who.hash(m.ringKey(e))
	switch {
	case !ok:
		m.noted = append(m.noted, "quic_malformed")
	case h.Long:
		who.vni = sourceBits(m.flows.key, h.SCID)
		if id, reason = m.rememberQUIC(p, e, who.entry(m.flows.key), ringHash, true); reason == "" && who.vni != 0 {
			m.alsoQUIC(e, alone, id)
		}
		return id, who.entry(m.flows.key), reason
	case does && present:
		m.noted = append(m.noted, "flow_moved")
	case does:
		m.noted = append(m.noted, "quic_invalid")
	default:
		m.noted = append(m.noted, "quic_unroutable")
	}
	id, reason = m.rememberQUIC(p, e, alone, ringHash, false)
	return id, alone, reason
}

// rememberQUIC finds the member of a connection in the flow table, or has it chosen; what opens one is entered.
func (m *muxModel) rememberQUIC(p modelPacket, e MuxEndpoint, hash, ringHash uint64, opens bool) (uint16, string) {
	if !m.allowed(p.src) {
		return 0, "bad_source"
	}
	bucket, at, live := m.find(e, hash)
	class := FlowUntrusted
	if live {
		f := &bucket[at]
		class = f.class
		if _, present := memberWith(e, f.member.Member); present && m.keeps(e, f.member.Member) {
			if m.age(*f) >= 2 || f.moved {
				f.stamp, f.moved = m.now()&0xffff, false
			}
			return f.member.Member, ""
		}
		m.noted = append(m.noted, "flow_moved")
	} else if opens && !m.takeFlow(p) {
		return 0, "new_flow_limited"
	}
	if at < 0 && opens && len(e.Members) > 0 {
		at = m.room(bucket, modelHome(hash), e.Key)
	}
	chosen, ok := m.pick(e, ringHash, opens && at >= 0)
	if !ok {
		return 0, "no_backend"
	}
	if !live && !opens {
		return chosen, ""
	}
	if at < 0 {
		m.noted = append(m.noted, "flow_table_full")
		return chosen, ""
	}
	bucket[at] = modelFlow{hash >> 39, class, m.now() & 0xffff, MemberKey{e.Key, chosen}, false, false}
	return chosen, ""
}

// alsoQUIC makes the addresses and ports alone lead to a member.
func (m *muxModel) alsoQUIC(e MuxEndpoint, hash uint64, id uint16) {
	bucket, at, _ := m.find(e, hash)
	to := MemberKey{e.Key, id}
	if at >= 0 {
		if f := bucket[at]; f.class == FlowUntrusted && f.member == to && !f.gone && !f.moved && m.age(f) < 2 {
			return
		}
	} else if at = m.room(bucket, modelHome(hash), e.Key); at < 0 {
		return
	}
	bucket[at] = modelFlow{hash >> 39, FlowUntrusted, m.now() & 0xffff, to, false, false}
}

// mint is a connection id that names a member, as one of a set's servers would write it; nothing when the set has no configuration.
func mint(s *MuxQUIC, member uint16, r *rand.Rand) []byte {
	var fill [cid.MaxLength]byte
	for i := range fill {
		fill[i] = byte(r.Uint32())
	}
	of := 1 + r.IntN(3)
	if s.Format == cid.QUICLB || s.Format == cid.Plain {
		if len(s.Configs) == 0 {
			return nil
		}
		of = r.IntN(len(s.Configs))
	}
	return s.Mint(of, member, fill)
}
