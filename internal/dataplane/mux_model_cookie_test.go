package dataplane

import (
	"encoding/binary"
	"net/netip"

	"github.com/shuntlb/shunt/internal/cookie"
)

// timestamps are TSval and TSecr of the first timestamps option of a TCP header of which so much is known; ok: there is one.
func timestamps(l4 []byte) (value, echo uint32, ok bool) {
	if len(l4) < 20 || int(l4[12]>>4) < 5 {
		return 0, 0, false
	}
	options := l4[20:min(len(l4), int(l4[12]>>4)*4)]
	at := timestampsAt(options)
	if at == 0 {
		return 0, 0, false
	}
	return binary.BigEndian.Uint32(options[at:]), binary.BigEndian.Uint32(options[at+4:]), true
}

// cookieHash is the hash that cookies of a packet's flow are made with.
func cookieHash(p modelPacket, key [16]byte) uint64 {
	return cookie.PRF(key, cookie.Flow{
		Client: netip.AddrPortFrom(p.src, p.sport), VIP: netip.AddrPortFrom(p.dst, p.dport),
	})
}

// named is the member whose cookie a timestamp carries, and the hash of the flow; else why there is none.
func (m *muxModel) named(p modelPacket, e MuxEndpoint, stamp uint32) (id uint16, hash uint64, reason string) {
	carried, decode := uint16(cookie.HostBits.Cookie(stamp)), cookie.Decode
	kid := cookie.KeyID(carried)
	if e.Cookie.Form == CookieCO {
		carried, decode = cookie.OffsetCookie(stamp, sharedClock()), cookie.DecodeShort
		kid = cookie.ShortKeyID(carried)
	}
	if !e.Cookie.Live[kid] {
		return 0, 0, "cookie_invalid"
	}
	hash = cookieHash(p, e.Cookie.Keys[kid])
	id, ok := decode(hash, carried, e.Cookie.secret(kid))
	if _, present := memberWith(e, id); !ok || !present {
		return 0, 0, "cookie_invalid"
	}
	if !m.keeps(e, id) {
		return 0, 0, "flow_moved"
	}
	return id, hash, ""
}

// byCookie is the member that a segment names; false when it must be found otherwise.
// refused is why its packet is dropped all the same.
func (m *muxModel) byCookie(p modelPacket, e MuxEndpoint) (id uint16, hash uint64, refused string, ok bool) {
	syn, _, ack := segmentOf(p)
	if syn {
		return 0, 0, "", false
	}
	reason := "cookie_absent"
	if _, echo, has := timestamps(p.l4); has && ack && echo != 0 {
		id, hash, reason = m.named(p, e, echo)
	}
	if reason != "" {
		m.noted = append(m.noted, reason)
	}
	if reason == "" && !m.allowed(p.src) {
		return 0, 0, "bad_source", true
	}
	if reason == "" && p.l4[13]&1 != 0 {
		m.close(e, m.identity(p, e).entry(m.flows.key), id)
	}
	return id, hash >> 16, "", reason == ""
}

// keeps tells whether packets of a member's own flows go to it.
func (m *muxModel) keeps(e MuxEndpoint, id uint16) bool {
	return e.KeepDead || m.alive[MemberKey{e.Key, id}]
}

// close makes the flow table lead to a member whose connection ends.
func (m *muxModel) close(e MuxEndpoint, hash uint64, id uint16) {
	bucket, at, _ := m.find(e, hash)
	to := MemberKey{e.Key, id}
	if at >= 0 {
		if f := bucket[at]; f.class == FlowClosing && f.member == to && !f.gone && !f.moved && m.age(f) < 2 {
			return
		}
	} else if at = m.room(bucket, modelHome(hash), e.Key); at < 0 {
		return
	}
	bucket[at] = modelFlow{hash >> 39, FlowClosing, m.now() & 0xffff, to, false, false}
}

// flowsFirst tells whether the flow table goes before what a packet says itself.
func (m *muxModel) flowsFirst(p modelPacket, e MuxEndpoint) bool {
	if !e.FlowsFirst || e.Cookie == nil && e.QUIC == nil {
		return false
	}
	bucket, at, live := m.find(e, m.identity(p, e).entry(m.flows.key))
	return live && (e.QUIC == nil || bucket[at].class != FlowUntrusted)
}
