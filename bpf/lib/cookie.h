/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* TCP timestamp cookies (protocol sections 1.2, 1.3 and 1.6): what a cookie says, and where it lies in a timestamp. internal/cookie holds the same
 * functions in Go; tests prove them equal.
 *
 * A cookie has 16 bits: key id:1 | P:15. Modulo a prime just below 1 << 15, P is x = y / a - b, where y is the member id, and the factor a and the offset b are
 * of the hash of the flow. Whoever knows one cookie of a flow and its member, but not the key, finds every other member equally likely behind every other cookie:
 * a and b are as good as random, and of all pairs of values one pair (a, b) leads to each (pairwise independence). docs/adr has why it is so. */
#ifndef SHUNT_COOKIE_H
#define SHUNT_COOKIE_H

#include <linux/types.h>
#include <bpf/bpf_endian.h>

#include "abi.h"
#include "hash.h"

/* Bits of a cookie and of the time beside it in a timestamp: n and H of the protocol. */
enum cookie_bit {
	COOKIE_KID_SHIFT = 15,
	COOKIE_MAX_ID = (1 << COOKIE_KID_SHIFT) - 20, /* COOKIE_PRIME - 1 */
	COOKIE_TIME_BITS = 16,
	COOKIE_HALF = 1 << (COOKIE_TIME_BITS - 1),
	COOKIE_HALF_SHIFT = COOKIE_TIME_BITS - 1,
};

/* What cookie_decode says of a cookie that reads as none. */
#define COOKIE_NONE 0xffffffffU

/* The largest prime below 1 << COOKIE_KID_SHIFT. */
#define COOKIE_PRIME 32749

/* cookie_prf4 is the hash that an IPv4 flow's cookies are made with: the client's address, host order, and both ports. The key is the VIP's own, so that neither
 * the VIP nor its VNI need be hashed; and only TCP has cookies. */
static __always_inline __u64 cookie_prf4(const struct siphash_key *key, __u32 client, __u16 sport, __u16 dport)
{
	__u64 words[1] = { (__u64)client << 32 | (__u32)sport << 16 | dport };

	return siphash13(key, words, 1);
}

/* cookie_prf6 is cookie_prf4 of an IPv6 flow; the address as its two halves as stored. */
static __always_inline __u64 cookie_prf6(const struct siphash_key *key, __u64 client_hi, __u64 client_lo, __u16 sport, __u16 dport)
{
	__u64 words[3] = { bpf_be64_to_cpu(client_hi), bpf_be64_to_cpu(client_lo), (__u32)sport << 16 | dport };

	return siphash13(key, words, 3);
}

/* cookie_rest is x modulo a prime between 1 << 10 and 1 << 15, for x below prime << 16: by multiplication, which is exact in these bounds (a division takes longer
 * than all else that a cookie needs). */
static __always_inline __u32 cookie_rest(__u32 x, __u32 prime)
{
	return x - (__u32)((__u64)x * ((1ULL << 46) / prime + 1) >> 46) * prime;
}

/* cookie_factor is `a` of a flow for cookies of `bits` bits: 1 to prime - 1. The branch is hardly ever taken, so that nothing waits for it. */
static __always_inline __u32 cookie_factor(__u64 prf, __u32 bits, __u32 prime)
{
	__u32 a = prf & ((1U << bits) - 1);

	return a - 1 < prime - 1 ? a : 1 + (__u32)(prf >> bits & ((1U << (bits - 1)) - 1));
}

/* cookie_offset_of is `b` of a flow for cookies of `bits` bits: 0 to prime - 1. The branch is as that of cookie_factor. */
static __always_inline __u32 cookie_offset_of(__u64 prf, __u32 bits, __u32 prime)
{
	__u32 b = prf >> (64 - bits);

	return b < prime ? b : prf >> (65 - 2 * bits) & ((1U << (bits - 1)) - 1);
}

/* cookie_inverse is 1 / a modulo a prime: the power prime - 2 of a (Fermat). */
static __always_inline __u32 cookie_inverse(__u32 a, __u32 bits, __u32 prime)
{
	__u32 power = a;

#pragma unroll
	for (__u32 bit = 1; bit < bits; bit++) {
		power = cookie_rest(power * power, prime);
		if ((prime - 2) >> (bits - 1 - bit) & 1)
			power = cookie_rest(power * a, prime);
	}
	return power;
}

/* cookie_write is x of member id y in `bits` bits, cookie_read the y of x: any number below the prime. x is below the prime, or is no cookie. */
static __always_inline __u32 cookie_write(__u64 prf, __u32 y, __u32 bits, __u32 prime)
{
	__u32 x = cookie_rest(y * cookie_inverse(cookie_factor(prf, bits, prime), bits, prime), prime);

	return cookie_rest(x + prime - cookie_offset_of(prf, bits, prime), prime);
}

static __always_inline __u32 cookie_read(__u64 prf, __u32 x, __u32 bits, __u32 prime)
{
	return cookie_rest((x + cookie_offset_of(prf, bits, prime)) * cookie_factor(prf, bits, prime), prime);
}

/* How often cookie_shuffled and cookie_ordered go on beyond numbers that are not below the prime: one in 1,700 is not (of 11 bits, one in 227). */
#define COOKIE_WALK 4

/* cookie_secret is what member ids are shuffled with under a key: never 0, which stands for ids in order. Both words of the key enter, so that 60 bits of it are
 * at most what somebody learns of the key who finds the order of ids. */
static __always_inline __u64 cookie_secret(const struct siphash_key *key)
{
	__u64 s = (key->k0 ^ (key->k1 << 32 | key->k1 >> 32)) * 0x9e3779b97f4a7c15ULL;

	return (s ^ s >> 32) | 1ULL << 63;
}

/* cookie_reciprocal is 1 / m modulo 1 << 16, for odd m (Newton). */
static __always_inline __u32 cookie_reciprocal(__u32 m)
{
	__u32 x = m;

	x *= 2 - m * x;
	x *= 2 - m * x;
	return x * (2 - m * x);
}

/* cookie_order_once is a permutation of the numbers of `bits` bits, 11 or 15, that cookie_shuffle_once undoes: three products by secret odd numbers. */
static __always_inline __u32 cookie_order_once(__u64 secret, __u32 y, __u32 bits)
{
	const __u32 mask = (1U << bits) - 1, half = (bits + 1) / 2;

	y = (y + (__u32)secret) * ((__u32)(secret >> 15) | 1) & mask;
	y ^= y >> half;
	y = y * ((__u32)(secret >> 30) | 1) & mask;
	y ^= y >> half;
	return y * ((__u32)(secret >> 45) | 1) & mask;
}

static __always_inline __u32 cookie_shuffle_once(__u64 secret, __u32 y, __u32 bits)
{
	const __u32 mask = (1U << bits) - 1, half = (bits + 1) / 2;

	y = y * cookie_reciprocal((__u32)(secret >> 45) | 1) & mask;
	y ^= y >> half;
	y = y * cookie_reciprocal((__u32)(secret >> 30) | 1) & mask;
	y ^= y >> half;
	return (y * cookie_reciprocal((__u32)(secret >> 15) | 1) - (__u32)secret) & mask;
}

/* cookie_shuffled is the number below the prime that stands for a member id in cookies, cookie_ordered the member id that a number stands for. Differences between
 * numbers say nothing of ids, so that several cookies of one flow are no progression. With secret 0 it is the id itself. */
static __always_inline __u32 cookie_shuffled(__u64 secret, __u32 id, __u32 bits, __u32 prime)
{
	if (!secret)
		return id;
	id = cookie_shuffle_once(secret, id, bits);
#pragma unroll
	for (int i = 1; i < COOKIE_WALK; i++)
		if (id >= prime)
			id = cookie_shuffle_once(secret, id, bits);
	return id;
}

static __always_inline __u32 cookie_ordered(__u64 secret, __u32 y, __u32 bits, __u32 prime)
{
	if (!secret)
		return y;
	y = cookie_order_once(secret, y, bits);
#pragma unroll
	for (int i = 1; i < COOKIE_WALK; i++)
		if (y >= prime)
			y = cookie_order_once(secret, y, bits);
	return y;
}

/* cookie_encode is the cookie of a member id, at most COOKIE_MAX_ID, under key `kid`, 0 or 1, whose hash of the flow is `prf` and whose cookie_secret is `secret`, 0
 * where ids are in order. */
static __always_inline __u32 cookie_encode(__u64 prf, __u32 kid, __u32 id, __u64 secret)
{
	__u32 y = cookie_rest(cookie_shuffled(secret, id, COOKIE_KID_SHIFT, COOKIE_PRIME), COOKIE_PRIME);

	return kid << COOKIE_KID_SHIFT | cookie_write(prf, y, COOKIE_KID_SHIFT, COOKIE_PRIME);
}

/* cookie_decode is the member id that a cookie names, whatever its key id; COOKIE_NONE when it names none. */
static __always_inline __u32 cookie_decode(__u64 prf, __u32 cookie, __u64 secret)
{
	__u32 x = cookie & ((1U << COOKIE_KID_SHIFT) - 1), y = cookie_read(prf, x, COOKIE_KID_SHIFT, COOKIE_PRIME);

	return x < COOKIE_PRIME ? cookie_ordered(secret, y, COOKIE_KID_SHIFT, COOKIE_PRIME) : COOKIE_NONE;
}

/* cookie_kid is the key id of a cookie. */
static __always_inline __u32 cookie_kid(__u32 cookie)
{
	return cookie >> COOKIE_KID_SHIFT & 1;
}

/* cookie_place is the timestamp, in host order, that carries a cookie beside the virtual time: never 0, which says "no timestamp" when it comes back. */
static __always_inline __u32 cookie_place(__u32 time, __u32 cookie)
{
	__u32 stamp = (time & COOKIE_HALF) << (31 - COOKIE_HALF_SHIFT) | cookie << COOKIE_HALF_SHIFT | (time & (COOKIE_HALF - 1));

	return stamp ? stamp : 1;
}

/* cookie_unplace is the time in such a timestamp: the lowest COOKIE_TIME_BITS of the virtual time. */
static __always_inline __u32 cookie_unplace(__u32 stamp)
{
	return stamp >> 31 << COOKIE_HALF_SHIFT | (stamp & (COOKIE_HALF - 1));
}

/* cookie_of is the cookie in such a timestamp. */
static __always_inline __u32 cookie_of(__u32 stamp)
{
	return (stamp & 0x7fffffff) >> COOKIE_HALF_SHIFT;
}

#endif
