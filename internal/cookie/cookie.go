// Package cookie makes and reads TCP timestamp cookies (protocol sections 1.2, 1.3 and 1.6): sixteen bits in which a flow's packets carry the id of the
// member that has it. It is pure; the C twin is bpf/lib/cookie.h.
package cookie

import (
	"net/netip"

	"github.com/shuntlb/shunt/internal/ring"
)

const (
	// IDBits is the width of the member ids that fit into a cookie, MaxID the largest of them.
	IDBits = 12
	MaxID  = 1<<IDBits - 1
	// CheckBits are zero in what a valid cookie decrypts to: a random one passes with 1/8. Ids and check bits share 15 bits, so that with m members a random
	// cookie names one with m in 2^15, however they are divided.
	CheckBits = 3

	kidShift  = IDBits + CheckBits
	rightBits = 7
	rightMask = 1<<rightBits - 1
	checkMask = 1<<CheckBits - 1
)

// Flow is what a cookie is bound to: one tuple's cookie says nothing to another's. The addresses are of one family; IPv4 may come mapped.
type Flow struct {
	VNI      uint32
	Client   netip.AddrPort
	VIP      netip.AddrPort
	Protocol uint8
}

// PRF is SipHash-1-3 of a flow under the key of its VIP (protocol section 1.6). Of the result each 16 bits, from bit 0 up, are the key of one round.
func PRF(key [16]byte, f Flow) uint64 {
	return ring.FlowHash(ring.KeyOf(key), f.VNI, f.Client.Addr(), f.VIP.Addr(), f.Protocol, f.Client.Port(), f.VIP.Port())
}

// round is the round function F of protocol section 1.6: of y and of the result at most 8 bits count, of the key 16.
func round(y uint32, key uint64) uint32 {
	t := (y ^ uint32(key&0xff)) * (uint32(key>>8&0xff) | 1)
	return ((t ^ t>>5) * 0x9d) >> 4 & 0xff
}

// permute is the permutation PRP15 of protocol section 1.6: four Feistel rounds over the upper 8 and the lower 7 bits of x.
func permute(prf uint64, x uint32) uint32 {
	l, r := x>>rightBits, x&rightMask
	r ^= round(l, prf) & rightMask
	l ^= round(r, prf>>16)
	r ^= round(l, prf>>32) & rightMask
	l ^= round(r, prf>>48)
	return l<<rightBits | r
}

// invert undoes permute.
func invert(prf uint64, x uint32) uint32 {
	l, r := x>>rightBits, x&rightMask
	l ^= round(r, prf>>48)
	r ^= round(l, prf>>32) & rightMask
	l ^= round(r, prf>>16)
	r ^= round(l, prf) & rightMask
	return l<<rightBits | r
}

// Encode is the cookie of member id, at most MaxID, under key kid, 0 or 1, for the flow with this PRF (protocol section 1.6).
func Encode(prf uint64, kid uint8, id uint16) uint16 {
	return uint16(kid&1)<<kidShift | uint16(permute(prf, uint32(id&MaxID)<<CheckBits))
}

// Decode is the member id that a cookie names; false when its check bits are wrong. The PRF is that of the key which KeyID says.
func Decode(prf uint64, cookie uint16) (id uint16, ok bool) {
	plain := invert(prf, uint32(cookie)&(1<<kidShift-1))
	return uint16(plain >> CheckBits), plain&checkMask == 0
}

// KeyID is the id of the key that a cookie was made with.
func KeyID(cookie uint16) uint8 { return uint8(cookie >> kidShift) }
