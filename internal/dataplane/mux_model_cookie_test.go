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
	id, ok := decode(hash, carried)
	if _, present := memberWith(e, id); !ok || !present {
		return 0, 0, "cookie_invalid"
	}
	if !m.alive[MemberKey{e.Key, id}] {
		return 0, 0, "flow_moved"
	}
	return id, hash, ""
}

// byCookie is the member that a segment names; false when it must be found otherwise.
func (m *muxModel) byCookie(p modelPacket, e MuxEndpoint) (id uint16, hash uint64, ok bool) {
	syn, _, ack := segmentOf(p)
	if syn {
		return 0, 0, false
	}
	reason := "cookie_absent"
	if _, echo, has := timestamps(p.l4); has && ack && echo != 0 {
		id, hash, reason = m.named(p, e, echo)
	}
	if reason != "" {
		m.noted = append(m.noted, reason)
	}
	return id, hash, reason == ""
}
