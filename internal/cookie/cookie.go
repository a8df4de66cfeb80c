// Package cookie makes and reads TCP timestamp cookies (protocol sections 1.2, 1.3 and 1.6): sixteen bits in which a flow's packets carry the id of the
// member that has it. It is pure; the C twin is bpf/lib/cookie.h. docs/adr/0006-cookies-modulo-a-prime.md says what differs from the protocol, and why.
package cookie

import (
	"encoding/binary"
	"net/netip"

	"github.com/shuntlb/shunt/internal/ring"
)

const (
	// MaxID is the largest member id that fits into a cookie.
	MaxID = prime - 1
	// Bits are those of a cookie without the id of its key. With m members a random cookie names one with m in 2^Bits: no scheme can do with less.
	Bits = 15
	// prime is the largest below 1 << Bits.
	prime = 32749

	kidShift = Bits
)

// Flow is what a cookie is bound to: one tuple's cookie says nothing to another's. The addresses are of one family; IPv4 may come mapped. Of the VIP the family
// and the port count: keys are those of one VIP, of one VNI, and only TCP has cookies.
type Flow struct {
	Client netip.AddrPort
	VIP    netip.AddrPort
}

// PRF is SipHash-1-3 of a flow's client and ports under the key of its VIP, without SipHash's word for the length: one word for IPv4, three for IPv6. Of the result
// the lowest bits make the factor of the flow's cookies, the highest their offset.
func PRF(key [16]byte, f Flow) uint64 {
	last := uint64(f.Client.Port())<<16 | uint64(f.VIP.Port())
	a := f.Client.Addr().As16()
	be := binary.BigEndian
	if f.VIP.Addr().Unmap().Is4() {
		return ring.SipHashWords(ring.KeyOf(key), uint64(be.Uint32(a[12:]))<<32|last)
	}
	return ring.SipHashWords(ring.KeyOf(key), be.Uint64(a[:8]), be.Uint64(a[8:]), last)
}

// factor is a of a flow, 1 to prime - 1, offset its b, 0 to prime - 1: what its cookies of so many bits are made with.
func factor(prf uint64, bits uint, prime uint32) uint32 {
	if a := uint32(prf) & (1<<bits - 1); a != 0 && a < prime {
		return a
	}
	return 1 + uint32(prf>>bits)&(1<<(bits-1)-1)
}

func offset(prf uint64, bits uint, prime uint32) uint32 {
	if b := uint32(prf >> (64 - bits)); b < prime {
		return b
	}
	return uint32(prf>>(65-2*bits)) & (1<<(bits-1) - 1)
}

// power is x to the n modulo a prime below 1 << 16.
func power(x, n, prime uint32) uint32 {
	result := uint32(1)
	for ; n > 0; n >>= 1 {
		if n&1 == 1 {
			result = result * x % prime
		}
		x = x * x % prime
	}
	return result
}

// write is y / a - b modulo a prime, of which read makes y again. What is not below the prime is nobody's. Who knows a pair of them under a PRF that is
// as good as random has for each other y all other values left, and each equally likely (pairwise independence).
func write(prf uint64, y uint32, bits uint, prime uint32) uint32 {
	x := y * power(factor(prf, bits, prime), prime-2, prime) % prime
	return (x + prime - offset(prf, bits, prime)) % prime
}

func read(prf uint64, x uint32, bits uint, prime uint32) uint32 {
	return (x + offset(prf, bits, prime)) * factor(prf, bits, prime) % prime
}

// Encode is the cookie of member id, at most MaxID, under key kid, 0 or 1, for the flow with this PRF (docs/adr: cookies modulo a prime). secret is that of the
// key, or InOrder.
func Encode(prf uint64, kid uint8, id uint16, secret Secret) uint16 {
	y := secret.shuffled(uint32(id), Bits, prime) % prime
	return uint16(kid&1)<<kidShift | uint16(write(prf, y, Bits, prime))
}

// Decode is the member id that a cookie names; false when it names none. PRF and secret are those of the key which KeyID says.
func Decode(prf uint64, cookie uint16, secret Secret) (id uint16, ok bool) {
	x := uint32(cookie) & (1<<kidShift - 1)
	if x >= prime {
		return 0, false
	}
	return uint16(secret.ordered(read(prf, x, Bits, prime), Bits, prime)), true
}

// KeyID is the id of the key that a cookie was made with.
func KeyID(cookie uint16) uint8 { return uint8(cookie >> kidShift) }
