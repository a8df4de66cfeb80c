package cid

import (
	"encoding/binary"
	"math/bits"
)

// Schedule holds the round keys of AES-128 (FIPS 197 section 5.2), four 32-bit values for each of
// eleven rounds, as lib/aes.h loads them: octets of the block in order, the first one lowest.
type Schedule [44]uint32

// Encryption returns the schedule of a key for encryption.
func Encryption(key [16]byte) (s Schedule) {
	for i := range 4 {
		s[i] = binary.LittleEndian.Uint32(key[4*i:])
	}
	rcon := uint32(1)
	for i := 4; i < len(s); i++ {
		w := s[i-1]
		if i%4 == 0 {
			w = substitute(bits.RotateLeft32(w, -8)) ^ rcon
			rcon = double(rcon)
		}
		s[i] = s[i-4] ^ w
	}
	return s
}

// Decryption returns the schedule of a key for the equivalent inverse cipher (FIPS 197 section
// 5.3.5): rounds in reverse order, all except the outer ones under InvMixColumns.
func Decryption(key [16]byte) (s Schedule) {
	e := Encryption(key)
	for round := range 11 {
		for i := range 4 {
			w := e[4*(10-round)+i]
			if round != 0 && round != 10 {
				w = inverseMix(w)
			}
			s[4*round+i] = w
		}
	}
	return s
}

// Key is the inverse of Encryption.
func (s Schedule) Key() (key [16]byte) { return keyOf(s[:4]) }

// DecryptionKey is the inverse of Decryption.
func (s Schedule) DecryptionKey() (key [16]byte) { return keyOf(s[40:]) }

func keyOf(words []uint32) (key [16]byte) {
	for i, w := range words {
		binary.LittleEndian.PutUint32(key[4*i:], w)
	}
	return key
}

// double multiplies by x in GF(2^8) (FIPS 197 section 4.2).
func double(b uint32) uint32 { return (b<<1 ^ (b>>7)*0x11b) & 0xff }

// times multiplies in GF(2^8).
func times(a, b uint32) (out uint32) {
	for ; b != 0; a, b = double(a), b>>1 {
		out ^= a * (b & 1)
	}
	return out
}

// inverseMix is InvMixColumns of one column.
func inverseMix(w uint32) (out uint32) {
	for row := range 4 {
		b := w >> (8 * row) & 0xff
		column := times(b, 14) | times(b, 9)<<8 | times(b, 13)<<16 | times(b, 11)<<24
		out ^= bits.RotateLeft32(column, 8*row)
	}
	return out
}

// boxes holds the S-box of every octet.
var boxes = func() (b [256]uint32) {
	for i := range b {
		b[i] = sbox(uint32(i))
	}
	return b
}()

// substitute is SubWord.
func substitute(w uint32) (out uint32) {
	for shift := 0; shift < 32; shift += 8 {
		out |= boxes[w>>shift&0xff] << shift
	}
	return out
}

// sbox is the S-box: the inverse in GF(2^8), a^254, and an affine transformation (FIPS 197 section
// 5.1.1).
func sbox(b uint32) uint32 {
	inverse := uint32(1)
	for range 254 {
		inverse = times(inverse, b)
	}
	s := uint8(inverse)
	return uint32(s ^ bits.RotateLeft8(s, 1) ^ bits.RotateLeft8(s, 2) ^ bits.RotateLeft8(s, 3) ^ bits.RotateLeft8(s, 4) ^ 0x63)
}
