// Package cookie makes and reads TCP timestamp cookies (protocol sections 1.2, 1.3 and 1.6):
// sixteen bits in which a flow's packets carry the id of the flow's member. It is pure; the C twin
// is bpf/lib/cookie.h. docs/adr/0006-cookies-modulo-a-prime.md lists the differences from the
// protocol and their reasons.
package cookie

import (
	"encoding/binary"
	"net/netip"

	"github.com/shuntlb/shunt/internal/ring"
)

const (
	// MaxID is the largest member id that fits into a cookie.
	MaxID = prime - 1
	// Bits is the number of bits of a cookie without the id of its key. With m members a random
	// cookie is valid with a probability of m in 2^Bits, which is the minimum for any scheme.
	Bits = 15
	// prime is the largest below 1 << Bits.
	prime = 32749

	kidShift = Bits
)

// Flow is the tuple that a cookie is bound to: a cookie of one tuple reveals nothing about another.
// The addresses are of one family; IPv4 may be mapped. Only the family and the port of the VIP
// count, because keys belong to one VIP of one VNI, and only TCP has cookies.
type Flow struct {
	Client netip.AddrPort
	VIP    netip.AddrPort
}

// PRF returns SipHash-1-3 of a flow's client and ports under the key of its VIP, without SipHash's
// length block: one 64-bit block for IPv4, three for IPv6. The lowest bits of the result determine
// the factor of the flow's cookies, the highest their offset.
func PRF(key [16]byte, f Flow) uint64 {
	last := uint64(f.Client.Port())<<16 | uint64(f.VIP.Port())
	a := f.Client.Addr().As16()
	be := binary.BigEndian
	if f.VIP.Addr().Unmap().Is4() {
		return ring.SipHashWords(ring.KeyOf(key), uint64(be.Uint32(a[12:]))<<32|last)
	}
	return ring.SipHashWords(ring.KeyOf(key), be.Uint64(a[:8]), be.Uint64(a[8:]), last)
}

// factor returns a of a flow, 1 to prime - 1, and offset its b, 0 to prime - 1: the parameters of
// its cookies of so many bits.
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

// power returns x to the n modulo a prime below 1 << 16.
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

// write returns y / a - b modulo a prime; read is its inverse. Values that are not below the prime
// are invalid. If the PRF is as good as random, one known pair leaves all other values equally
// likely for each other y (pairwise independence).
func write(prf uint64, y uint32, bits uint, prime uint32) uint32 {
	x := y * power(factor(prf, bits, prime), prime-2, prime) % prime
	return (x + prime - offset(prf, bits, prime)) % prime
}

func read(prf uint64, x uint32, bits uint, prime uint32) uint32 {
	return (x + offset(prf, bits, prime)) * factor(prf, bits, prime) % prime
}

// Encode returns the cookie of member id, at most MaxID, under key kid, 0 or 1, for the flow with
// this PRF (docs/adr: cookies modulo a prime). secret is that of the key, or InOrder.
func Encode(prf uint64, kid uint8, id uint16, secret Secret) uint16 {
	y := secret.shuffled(uint32(id), Bits, prime) % prime
	return uint16(kid&1)<<kidShift | uint16(write(prf, y, Bits, prime))
}

// Decode returns the member id in a cookie; false when it is invalid. PRF and secret must be those
// of the key named by KeyID.
func Decode(prf uint64, cookie uint16, secret Secret) (id uint16, ok bool) {
	x := uint32(cookie) & (1<<kidShift - 1)
	if x >= prime {
		return 0, false
	}
	return uint16(secret.ordered(read(prf, x, Bits, prime), Bits, prime)), true
}

// KeyID returns the id of the key that a cookie was made with.
func KeyID(cookie uint16) uint8 { return uint8(cookie >> kidShift) }
