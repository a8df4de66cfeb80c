/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Hashes. internal/ring holds the same functions in Go; tests prove them equal. */
#ifndef SHUNT_HASH_H
#define SHUNT_HASH_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include "abi.h"

/* rotl64 rotates left by b bits, 0 < b < 64. */
static __always_inline __u64 rotl64(__u64 x, __u32 b)
{
	return x << b | x >> (64 - b);
}

/* mix64 is a fixed, unkeyed, invertible mix (finalizer of MurmurHash3). Not for input that an attacker chooses. */
static __always_inline __u64 mix64(__u64 x)
{
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdULL;
	x ^= x >> 33;
	x *= 0xc4ceb9fe1a85ec53ULL;
	return x ^ x >> 33;
}

struct siphash_state {
	__u64 v0;
	__u64 v1;
	__u64 v2;
	__u64 v3;
};

/* siphash_round is SipRound (Aumasson, Bernstein 2012, section 2). */
static __always_inline void siphash_round(struct siphash_state *s)
{
	s->v0 += s->v1;
	s->v2 += s->v3;
	s->v1 = rotl64(s->v1, 13) ^ s->v0;
	s->v3 = rotl64(s->v3, 16) ^ s->v2;
	s->v0 = rotl64(s->v0, 32);
	s->v2 += s->v1;
	s->v0 += s->v3;
	s->v1 = rotl64(s->v1, 17) ^ s->v2;
	s->v3 = rotl64(s->v3, 21) ^ s->v0;
	s->v2 = rotl64(s->v2, 32);
}

/* siphash_word is one compression step (c = 1). */
static __always_inline void siphash_word(struct siphash_state *s, __u64 m)
{
	s->v3 ^= m;
	siphash_round(s);
	s->v0 ^= m;
}

/* SipHash's last word of a byte string of n words: its length. */
#define SIPHASH_LENGTH(n) ((__u64)(n) * 8 << 56)

/* siphash13 is SipHash-1-3 of words[0..n-1], the last word included; n is a constant. */
static __always_inline __u64 siphash13(const struct siphash_key *key, const __u64 *words, __u32 n)
{
	struct siphash_state s = {
		.v0 = key->k0 ^ 0x736f6d6570736575ULL,
		.v1 = key->k1 ^ 0x646f72616e646f6dULL,
		.v2 = key->k0 ^ 0x6c7967656e657261ULL,
		.v3 = key->k1 ^ 0x7465646279746573ULL,
	};

#pragma unroll
	for (__u32 i = 0; i < n; i++)
		siphash_word(&s, words[i]);
	s.v2 ^= 0xff;
	siphash_round(&s);
	siphash_round(&s);
	siphash_round(&s);
	return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}

/* The last word of a flow: ports in host order, vni below 1 << 24. */
static __always_inline __u64 flow_word(__u32 vni, __u16 sport, __u16 dport, __u8 protocol)
{
	return (__u64)sport << 48 | (__u64)dport << 32 | (__u64)vni << 8 | protocol;
}

/* flow_hash4 is the ring hash of an IPv4 flow (protocol section 1.6); addresses in host order. */
static __always_inline __u64 flow_hash4(const struct siphash_key *key, __u32 saddr, __u32 vip, __u64 word)
{
	__u64 words[3] = { (__u64)saddr << 32 | vip, word, SIPHASH_LENGTH(2) };

	return siphash13(key, words, 3);
}

/* flow_hash6 is the ring hash of an IPv6 flow. Addresses are given as their two 64-bit halves as stored in memory;
 * they are hashed as big-endian numbers, high half first. */
static __always_inline __u64 flow_hash6(const struct siphash_key *key, __u64 src_hi, __u64 src_lo, __u64 dst_hi,
					__u64 dst_lo, __u64 word)
{
	__u64 words[6] = {
		bpf_be64_to_cpu(src_hi), bpf_be64_to_cpu(src_lo), bpf_be64_to_cpu(dst_hi), bpf_be64_to_cpu(dst_lo), word,
		SIPHASH_LENGTH(5),
	};

	return siphash13(key, words, 6);
}

/* table_hash4 is the flow table's hash of an IPv4 flow: flow_hash4 without the word for the length, which takes a round
 * of the way that everything else waits for. Two words or five: whole words need no length to be told apart. */
static __always_inline __u64 table_hash4(const struct siphash_key *key, __u32 saddr, __u32 vip, __u64 word)
{
	__u64 words[2] = { (__u64)saddr << 32 | vip, word };

	return siphash13(key, words, 2);
}

/* table_hash6 is the flow table's hash of an IPv6 flow, see table_hash4. */
static __always_inline __u64 table_hash6(const struct siphash_key *key, __u64 src_hi, __u64 src_lo, __u64 dst_hi,
					 __u64 dst_lo, __u64 word)
{
	__u64 words[5] = {
		bpf_be64_to_cpu(src_hi), bpf_be64_to_cpu(src_lo), bpf_be64_to_cpu(dst_hi), bpf_be64_to_cpu(dst_lo), word,
	};

	return siphash13(key, words, 5);
}

/* spread_hash varies with a client: an address as its two halves as stored, and a port. Two keyed multiplications, for what has to vary and no more: outer
 * sources of packets whose member is known without a flow's hash. The lowest 32 bits count. */
static __always_inline __u64 spread_hash(const struct siphash_key *key, __u64 src_hi, __u64 src_lo, __u32 port)
{
	__u64 x = ((src_lo ^ port) + src_hi * (key->k1 | 1)) * (key->k0 | 1);

	return (x ^ x >> 32) * (key->k1 | 1) >> 32;
}

/* endpoint_hash spreads (vip, key) over the endpoint table; vip as its two halves as stored. Unkeyed: what it hashes
 * is configuration, and a lookup that misses ends at the first empty slot. */
static __always_inline __u64 endpoint_hash(__u64 vip_hi, __u64 vip_lo, __u64 key)
{
	__u64 x = (vip_lo + key * 0x9e3779b97f4a7c15ULL) ^ vip_hi * 0xd6e8feb86659fd93ULL;

	x ^= x >> 32;
	x *= 0xd6e8feb86659fd93ULL;
	return x ^ x >> 29;
}

#endif
