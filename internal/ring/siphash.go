package ring

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// Key is a SipHash key: two 64-bit integers, little endian in its byte form.
type Key struct{ K0, K1 uint64 }

// KeyOf parses the byte form.
func KeyOf(b [16]byte) Key {
	return Key{binary.LittleEndian.Uint64(b[:8]), binary.LittleEndian.Uint64(b[8:])}
}

// Tweaked returns the key with a tweak in its first half: a VIP's own key, derived from the
// cluster's. The owner of the result, such as a host, can compute neither the cluster's key nor the
// result of another tweak. Tweak 0 returns the key itself.
func (k Key) Tweaked(tweak uint64) Key { return Key{k.K0 ^ tweak, k.K1} }

// SipHash13 returns SipHash-1-3 (Aumasson, Bernstein 2012) of the byte string with the given
// little-endian 64-bit integers.
func SipHash13(key Key, words ...uint64) uint64 {
	return SipHashWords(key, append(words, uint64(len(words))*8<<56)...)
}

// SipHashWords is SipHash-1-3 of 64-bit integers, the last of which replaces the length that
// SipHash appends. Use it if all inputs of a key have the same length.
func SipHashWords(key Key, words ...uint64) uint64 {
	s := sipState{
		key.K0 ^ 0x736f6d6570736575, key.K1 ^ 0x646f72616e646f6d,
		key.K0 ^ 0x6c7967656e657261, key.K1 ^ 0x7465646279746573,
	}
	for _, m := range words {
		s.word(m)
	}
	s.v2 ^= 0xff
	for range 3 {
		s.round()
	}
	return s.v0 ^ s.v1 ^ s.v2 ^ s.v3
}

type sipState struct{ v0, v1, v2, v3 uint64 }

func (s *sipState) word(m uint64) {
	s.v3 ^= m
	s.round()
	s.v0 ^= m
}

func (s *sipState) round() {
	s.v0 += s.v1
	s.v2 += s.v3
	s.v1 = bits.RotateLeft64(s.v1, 13) ^ s.v0
	s.v3 = bits.RotateLeft64(s.v3, 16) ^ s.v2
	s.v0 = bits.RotateLeft64(s.v0, 32)
	s.v2 += s.v1
	s.v0 += s.v3
	s.v1 = bits.RotateLeft64(s.v1, 17) ^ s.v2
	s.v3 = bits.RotateLeft64(s.v3, 21) ^ s.v0
	s.v2 = bits.RotateLeft64(s.v2, 32)
}

// mix64 is a fixed, unkeyed, invertible mix: the finalizer of MurmurHash3. bpf/lib/hash.h has the
// same.
func mix64(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// FlowHash returns the ring hash of a flow. src and dst are of one family; IPv4 may be mapped.
//
// IPv4 hashes the integers src<<32|dst and sport<<48|dport<<32|vni<<8|proto; IPv6 the four halves
// of the addresses as big-endian numbers, source first, and the same last integer.
func FlowHash(key Key, vni uint32, src, dst netip.Addr, proto uint8, sport, dport uint16) uint64 {
	return SipHash13(key, flowWords(vni, src, dst, proto, sport, dport)...)
}

// TableHash returns the hash of a flow in a mux's flow table: FlowHash without SipHash's length
// block, which is not needed to distinguish inputs of two or five integers.
func TableHash(key Key, vni uint32, src, dst netip.Addr, proto uint8, sport, dport uint16) uint64 {
	return SipHashWords(key, flowWords(vni, src, dst, proto, sport, dport)...)
}

// flowWords returns the input of FlowHash.
func flowWords(vni uint32, src, dst netip.Addr, proto uint8, sport, dport uint16) []uint64 {
	last := uint64(sport)<<48 | uint64(dport)<<32 | uint64(vni)<<8 | uint64(proto)
	s, d := src.As16(), dst.As16()
	if dst.Unmap().Is4() {
		return []uint64{uint64(binary.BigEndian.Uint32(s[12:]))<<32 | uint64(binary.BigEndian.Uint32(d[12:])), last}
	}
	be := binary.BigEndian.Uint64
	return []uint64{be(s[:8]), be(s[8:]), be(d[:8]), be(d[8:]), last}
}
