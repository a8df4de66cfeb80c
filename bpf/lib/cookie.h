/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* TCP timestamp cookies (protocol sections 1.2, 1.3 and 1.6): what a cookie says, and where it lies in a timestamp. internal/cookie holds the same
 * functions in Go; tests prove them equal.
 *
 * A cookie has 16 bits: key id:1 | P:15, where P is (member id:12 | zero:3) under a permutation of 15 bits that the hash of the flow chooses. Whoever does
 * not know the key cannot tell what a changed bit leads to; one of eight changed cookies reads as one, and then names a random id. */
#ifndef SHUNT_COOKIE_H
#define SHUNT_COOKIE_H

#include <linux/types.h>
#include <bpf/bpf_endian.h>

#include "abi.h"
#include "hash.h"

/* Bits of a cookie and of the time beside it in a timestamp: n and H of the protocol. */
enum cookie_bit {
	COOKIE_KID_SHIFT = 15,
	COOKIE_CHECK_BITS = 3,
	COOKIE_TIME_BITS = 16,
	COOKIE_HALF = 1 << (COOKIE_TIME_BITS - 1),
	COOKIE_HALF_SHIFT = COOKIE_TIME_BITS - 1,
};

/* What cookie_decode says of a cookie that reads as none. */
#define COOKIE_NONE 0xffffffffU

/* cookie_prf4 is the hash that an IPv4 flow's cookies are made with: addresses in host order, the client's first; `word` is flow_word of the VNI, the
 * client's port, the VIP's port and the protocol. */
static __always_inline __u64 cookie_prf4(const struct siphash_key *key, __u32 client, __u32 vip, __u64 word)
{
	return flow_hash4(key, client, vip, word);
}

/* cookie_prf6 is cookie_prf4 of an IPv6 flow; addresses as their two halves as stored. */
static __always_inline __u64 cookie_prf6(const struct siphash_key *key, __u64 client_hi, __u64 client_lo, __u64 vip_hi, __u64 vip_lo,
					 __u64 word)
{
	return flow_hash6(key, client_hi, client_lo, vip_hi, vip_lo, word);
}

/* cookie_round is the round function F of the permutation: y has at most 8 bits, of the round key the lowest 16 count. Of the result the lowest 8 do. */
static __always_inline __u32 cookie_round(__u32 y, __u32 key)
{
	__u32 t = (y ^ (key & 0xff)) * ((key >> 8 & 0xff) | 1);

	return ((t ^ t >> 5) * 0x9d) >> 4;
}

/* cookie_encode is the cookie of a member id below 1 << 12 under key `kid`, 0 or 1, whose hash of the flow is `prf`: four Feistel rounds over L:8 | R:7. */
static __always_inline __u32 cookie_encode(__u64 prf, __u32 kid, __u32 id)
{
	__u32 l = id >> 4 & 0xff, r = id << COOKIE_CHECK_BITS & 0x7f;

	r ^= cookie_round(l, prf) & 0x7f;
	l ^= cookie_round(r, prf >> 16) & 0xff;
	r ^= cookie_round(l, prf >> 32) & 0x7f;
	l ^= cookie_round(r, prf >> 48) & 0xff;
	return kid << COOKIE_KID_SHIFT | l << 7 | r;
}

/* cookie_decode is the member id that a cookie names, whatever its key id; COOKIE_NONE when the check bits are wrong. */
static __always_inline __u32 cookie_decode(__u64 prf, __u32 cookie)
{
	__u32 l = cookie >> 7 & 0xff, r = cookie & 0x7f, plain;

	l ^= cookie_round(r, prf >> 48) & 0xff;
	r ^= cookie_round(l, prf >> 32) & 0x7f;
	l ^= cookie_round(r, prf >> 16) & 0xff;
	r ^= cookie_round(l, prf) & 0x7f;
	plain = l << 7 | r;
	return plain & ((1 << COOKIE_CHECK_BITS) - 1) ? COOKIE_NONE : plain >> COOKIE_CHECK_BITS;
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
