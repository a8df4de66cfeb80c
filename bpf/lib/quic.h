/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* QUIC headers that all versions share (RFC 8999), and the member that a connection id names (protocol section 3.2). internal/cid holds the same functions
 * in Go; tests prove them equal. */
#ifndef SHUNT_QUIC_H
#define SHUNT_QUIC_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include "abi.h"
#include "aes.h"

enum quic_header {
	QUIC_LONG = 0x80,     /* in the first octet: a long header. The fixed bit means nothing (RFC 9287) */
	QUIC_LENGTH_AT = 5,   /* of a long header: length of the destination's connection id, which follows */
	QUIC_LONG_CID = 6,
	QUIC_SHORT_CID = 1,   /* a short header does not say where its connection id ends */
	QUIC_MAX_CID = 20,    /* RFC 9000 section 17.2 */
	QUIC_MEMBER_BITS = 12,
};

/* A connection id's octets as they are loaded, the first one lowest; what is beyond its end does not count. */
struct quic_cid {
	__u64 lo;  /* octets 0 to 7 */
	__u64 mid; /* 8 to 15 */
	__u32 hi;  /* 16 to 19 */
	__u32 rsv;
};

/* quic_head_of is how a connection id of `length` octets is read: its word, or 0 when it names no member. */
static __always_inline __u64 quic_head_of(const struct quic_set *set, const struct quic_cid *cid, __u32 length)
{
	__u64 head = set->heads[cid->lo >> 5 & 7];

	return length && length >= (head >> QUIC_LENGTH_SHIFT & 0xff) ? head : 0;
}

/* quic_kind_of is the kind in a word of heads. */
static __always_inline __u32 quic_kind_of(__u64 head)
{
	return head >> QUIC_KIND_SHIFT & 0xff;
}

/* quic_clear is the member id in a connection id in clear, read as `head` says. */
static __always_inline __u32 quic_clear(__u64 head, const struct quic_cid *cid)
{
	return bpf_be64_to_cpu(cid->lo) >> (head >> QUIC_FIELD_SHIFT & 63) & ((1 << QUIC_MEMBER_BITS) - 1);
}

/* quic_top is the member id in the first two octets of a server id, the first one lowest. */
static __always_inline __u32 quic_top(__u32 octets)
{
	return (octets & 0xff) << 4 | (octets >> 12 & 0xf);
}

/* quic_single is the member id in a connection id whose server id and nonce, 16 octets, are one block (draft section 4.4.1). A global function: the verifier
 * then looks at it once. */
__attribute__((noinline)) __u32 quic_single(const struct quic_config *c __arg_nonnull, __u64 lo, __u64 hi)
{
	struct aes_block b = { { lo, lo >> 32, hi, hi >> 32 } };

	if (!c)
		return 0;
	return quic_top(aes_decrypt_first(&c->schedule, b));
}

/* Half of server id and nonce, at most ten octets. */
struct quic_half {
	__u64 lo;
	__u64 hi;
};

/* What the first packet of a datagram says of connections: packets that share a datagram are of one (RFC 9000 section 12.2). */
struct quic_start {
	struct quic_cid cid; /* the destination's */
	__u32 length;        /* its octets; of a short header, which does not say, all that follows */
	__u32 is_long;
	__u32 source;        /* of a long header: offset of the length of the source's connection id; 0: there is none */
	__u32 rsv;
};

/* quic_start_long reads what follows the first octets of a long header, whose datagram lies from `at` to `end` of the frame: false when it announces what
 * cannot be. */
static __always_inline int quic_start_long(struct quic_start *s, __u32 at, __u32 end, __u32 length)
{
	__u32 room = end - at;

	s->length = 0;
	s->source = 0;
	if (room < QUIC_LONG_CID || length > QUIC_MAX_CID || length > room - QUIC_LONG_CID)
		return 0;
	s->length = length;
	s->source = at + QUIC_LONG_CID + length;
	return 1;
}

/* quic_copy is quic_start_read where the frame's first piece ends within the first octets of the datagram, or just behind. */
static __noinline int quic_copy(struct xdp_md *ctx, struct quic_start *s, __u32 at, __u32 end)
{
	__u8 b[QUIC_LONG_CID + QUIC_MAX_CID + 6] = {};
	__u32 n = end - at;

	if (n > QUIC_LONG_CID + QUIC_MAX_CID)
		n = QUIC_LONG_CID + QUIC_MAX_CID;
	/* clang knows that it is not 0, and the verifier does not: "R4 invalid zero-sized read" (Linux 6.18). */
	asm volatile("" : "+r"(n));
	if (!n || bpf_xdp_load_bytes(ctx, at, b, n))
		return 0;
	s->is_long = b[0] & QUIC_LONG;
	if (s->is_long) {
		__builtin_memcpy(&s->cid, b + QUIC_LONG_CID, QUIC_MAX_CID);
		return quic_start_long(s, at, end, b[QUIC_LENGTH_AT]);
	}
	__builtin_memcpy(&s->cid, b + QUIC_SHORT_CID, QUIC_MAX_CID);
	s->length = end - at - QUIC_SHORT_CID;
	return 1;
}

/* quic_load loads a connection id; 20 octets are there. */
static __always_inline void quic_load(struct quic_cid *cid, const __u8 *from)
{
	cid->lo = *(const __u64 *)from;
	cid->mid = *(const __u64 *)(from + 8);
	cid->hi = *(const __u32 *)(from + 16);
}

/* quic_start_read reads the datagram that lies from `at` to `end` of the frame: false when there is no header of QUIC, or one with connection ids longer
 * than QUIC_MAX_CID. */
static __always_inline int quic_start_read(struct xdp_md *ctx, struct quic_start *s, __u32 at, __u32 end)
{
	const __u8 *b = (const __u8 *)(long)ctx->data + (at & 0x7fff), *limit = (const __u8 *)(long)ctx->data_end;

	s->is_long = 0;
	s->length = 0;
	if (at >= end)
		return 0;
	if (b + QUIC_LONG_CID + QUIC_MAX_CID > limit)
		return quic_copy(ctx, s, at, end);
	s->is_long = b[0] & QUIC_LONG;
	if (s->is_long) {
		quic_load(&s->cid, b + QUIC_LONG_CID);
		return quic_start_long(s, at, end, b[QUIC_LENGTH_AT]);
	}
	quic_load(&s->cid, b + QUIC_SHORT_CID);
	s->length = end - at - QUIC_SHORT_CID;
	return 1;
}

/* quic_mask has ones in the first `length` octets of a half, length at most 16. */
static __always_inline struct quic_half quic_mask(__u32 length)
{
	struct quic_half m = { ~0ULL, 0 };

	if (length > 8)
		m.hi = ~0ULL >> (8 * (16 - length) & 63);
	else
		m.lo = ~0ULL >> (8 * (8 - length) & 63);
	return m;
}

/* quic_round makes a half what the round function of the passes makes of it (draft section 4.4.2): padded, with the octets of all and the number of the pass,
 * encrypted. Global for the verifier's sake, as above. */
__attribute__((noinline)) int quic_round(const struct quic_config *c __arg_nonnull, struct quic_half *half __arg_nonnull, __u32 octets, __u32 pass)
{
	struct aes_block b;

	if (!c || !half)
		return -1;
	b = (struct aes_block){ { half->lo, half->lo >> 32, half->hi, octets << 16 | pass << 24 } };
	b = aes_encrypt(&c->schedule, b);
	half->lo = (__u64)b.w[1] << 32 | b.w[0];
	half->hi = (__u64)b.w[3] << 32 | b.w[2];
	return 0;
}

/* quic_four_pass is the member id in a connection id whose server id and nonce, `octets` of them, are encrypted by four passes: it is in the left half, which
 * three of them decrypt. `lo`, `mid` and `hi` are the octets behind the first one. Where the draft's text of decryption clears left_1, right_1 is meant. */
__attribute__((noinline)) __u32 quic_four_pass(const struct quic_config *c __arg_nonnull, __u64 lo, __u64 mid, __u32 hi, __u32 octets)
{
	__u32 length = (octets + 1) / 2, skip = (octets - length) & 15, shift = skip * 8 & 63;
	struct quic_half to_mask = quic_mask(length), from_mask = to_mask, to = { lo, mid }, from, out, mask;

	if (skip < 8) {
		from.lo = shift ? lo >> shift | mid << (64 - shift) : lo;
		from.hi = shift ? mid >> shift | (__u64)hi << (64 - shift) : mid;
	} else {
		from.lo = shift ? mid >> shift | (__u64)hi << (64 - shift) : mid;
		from.hi = (__u64)hi >> shift;
	}
	if (octets & 1) { /* the octet in the middle is both halves' */
		from_mask.lo &= ~0xf0ULL;
		if (length > 8)
			to_mask.hi &= ~(0xfULL << (8 * (length - 9) & 63));
		else
			to_mask.lo &= ~(0xfULL << (8 * (length - 1) & 63));
	}
	to.lo &= to_mask.lo;
	to.hi &= to_mask.hi;
	from.lo &= from_mask.lo;
	from.hi &= from_mask.hi;
#pragma clang loop unroll(disable)
	for (__u32 pass = 4; pass >= 2; pass--) {
		out = from;
		quic_round(c, &out, octets, pass);
		out.lo = to.lo ^ (out.lo & to_mask.lo);
		out.hi = to.hi ^ (out.hi & to_mask.hi);
		to = from;
		from = out;
		mask = to_mask;
		to_mask = from_mask;
		from_mask = mask;
	}
	return quic_top(from.lo);
}

/* What quic_member says of a connection id that names no member. */
#define QUIC_NOBODY 0xffffffffU

/* quic_member is the member id that a connection id of `length` octets names, or QUIC_NOBODY. Octets behind those that count are the server's own. */
static __always_inline __u32 quic_member(const struct quic_set *set, const struct quic_cid *cid, __u32 length)
{
	__u64 head = quic_head_of(set, cid, length), lo = cid->lo >> 8 | cid->mid << 56, mid = cid->mid >> 8 | (__u64)cid->hi << 56;
	__u32 kind = quic_kind_of(head), index = cid->lo >> 5 & 7;

	if (kind == QUIC_CLEAR)
		return quic_clear(head, cid);
	if (index >= sizeof(set->configs) / sizeof(set->configs[0]))
		return QUIC_NOBODY;
	if (kind == QUIC_SINGLE)
		return quic_single(&set->configs[index], lo, mid);
	if (kind == QUIC_FOUR_PASS)
		return quic_four_pass(&set->configs[index], lo, mid, cid->hi >> 8, head >> QUIC_PLAIN_SHIFT & 31);
	return QUIC_NOBODY;
}

#endif
