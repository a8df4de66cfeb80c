package cookie

import (
	"math/bits"

	"github.com/shuntlb/shunt/internal/ring"
)

// Secret shuffles member ids under a key (cookie_secret of bpf/lib/cookie.h), so that several
// cookies of one flow do not form a progression. 0 means ids in order, as with keys of earlier
// builds.
type Secret uint64

// InOrder: ids are not shuffled.
const InOrder Secret = 0

// walk limits how often shuffled and ordered repeat for numbers that are not below the prime.
const walk = 4

// SecretOf returns the secret of a key, which is never InOrder.
func SecretOf(key [16]byte) Secret {
	k := ring.KeyOf(key)
	s := (k.K0 ^ bits.RotateLeft64(k.K1, 32)) * 0x9e3779b97f4a7c15
	return Secret((s ^ s>>32) | 1<<63)
}

// factors returns the three odd numbers that ids are multiplied by.
func (s Secret) factors() [3]uint32 {
	return [3]uint32{uint32(s>>15) | 1, uint32(s>>30) | 1, uint32(s>>45) | 1}
}

// orderOnce is a permutation of the numbers of width bits; shuffleOnce is its inverse.
func (s Secret) orderOnce(y uint32, width uint) uint32 {
	mask, half, f := uint32(1)<<width-1, (width+1)/2, s.factors()
	y = (y + uint32(s)) * f[0] & mask
	y = (y ^ y>>half) * f[1] & mask
	return (y ^ y>>half) * f[2] & mask
}

func (s Secret) shuffleOnce(y uint32, width uint) uint32 {
	mask, half, f := uint32(1)<<width-1, (width+1)/2, s.factors()
	y = y * reciprocal(f[2]) & mask
	y = (y ^ y>>half) * reciprocal(f[1]) & mask
	return ((y^y>>half)*reciprocal(f[0]) - uint32(s)) & mask
}

// reciprocal returns 1 / m modulo 1 << 16, for odd m.
func reciprocal(m uint32) uint32 {
	x := uint32(1)
	for range 5 {
		x *= 2 - m*x
	}
	return x
}

// shuffled returns the number below the prime that represents a member id; ordered returns the
// member id of a number.
func (s Secret) shuffled(id uint32, width uint, prime uint32) uint32 {
	return s.walked(id, width, prime, s.shuffleOnce)
}

func (s Secret) ordered(y uint32, width uint, prime uint32) uint32 {
	return s.walked(y, width, prime, s.orderOnce)
}

func (s Secret) walked(n uint32, width uint, prime uint32, once func(uint32, uint) uint32) uint32 {
	if s == InOrder {
		return n
	}
	for i := 0; i == 0 || n >= prime && i < walk; i++ {
		n = once(n, width)
	}
	return n
}
