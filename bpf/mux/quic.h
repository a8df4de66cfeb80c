/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The choice of a member by the connection id of a QUIC packet (protocol section 3.3): no ring, no flow table, nothing written. It comes first: where a client
 * moved, or its address and port were another's before, the flow table knows less than the id.
 *
 * What names no living member is the flow table's. A long header is that of a connection that begins, or whose server could not name itself: it is remembered,
 * untrusted, so that all packets of its first flight, and what is sent again, go to one server whoever chose it. It is remembered by the client's own
 * connection id too, which these packets share: connections from one socket are each given their own member, and one that begins does not stay with a member
 * that takes no new ones because an older one is there. A short header does not carry that id, nor does what an ICMP error quotes: for them the addresses and
 * ports alone lead to the last of these connections. A short header that nothing knows goes by the ring and is not remembered. */
#ifndef SHUNT_MUX_QUIC_H
#define SHUNT_MUX_QUIC_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/udp.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include "abi.h"
#include "lib/flow.h"
#include "lib/hash.h"
#include "lib/parse.h"
#include "lib/quic.h"
#include "lib/ring.h"
#include "mux/flows.h"
#include "mux/identity.h"
#include "mux/tables.h"
#include "mux/verdict.h"

/* What quic_look answers: a member id in bits 0-15 | the offset of the source's connection id, its length first, from bit 32 up | these. */
enum quic_seen {
	QUIC_NAMED = 1 << 16,  /* the id is there */
	QUIC_OPENS = 1 << 17,  /* a long header: it may be a connection's first */
	QUIC_BROKEN = 1 << 18, /* no header of QUIC that can be read */
	QUIC_SOURCE_SHIFT = 32,
};

/* quic_end is where the datagram ends whose UDP header is at `at` of a frame whose IP packet ends at `end`: of a first fragment that is before the length that
 * it announces. */
static __always_inline __u32 quic_end(struct xdp_md *ctx, __u32 at, __u32 end)
{
	const struct udphdr *udp = (const void *)(long)ctx->data + (at & 0x7fff);
	__u32 length;

	if ((const void *)(udp + 1) > (const void *)(long)ctx->data_end)
		return 0;
	length = bpf_ntohs(udp->len);
	return at + length < end ? at + length : end;
}

/* quic_look reads the datagram whose UDP header is at `at` of the frame, by the number of a quic_set: enum quic_seen. */
static __always_inline __u64 quic_look(struct xdp_md *ctx, __u32 set, __u32 at, __u32 end)
{
	const struct quic_set *s = bpf_map_lookup_elem(&quic_sets, &set);
	struct quic_start start;
	__u64 seen;
	__u32 id;

	if (!s || !quic_start_read(ctx, &start, at + sizeof(struct udphdr), quic_end(ctx, at, end)))
		return QUIC_BROKEN;
	seen = start.is_long ? (__u64)start.source << QUIC_SOURCE_SHIFT | QUIC_OPENS : 0;
	id = quic_member(s, &start.cid, start.length);
	return id == QUIC_NOBODY ? seen : seen | QUIC_NAMED | id;
}

/* What quic_lost answers of connection ids that cannot be. */
#define QUIC_NO_SOURCE 1ULL

/* quic_source is 24 bits, the highest ones of the answer and not all zero, that differ with the connection id whose length is at `at` of the frame, and end before
 * `end`: 0 for one without octets. */
static __always_inline __u64 quic_source(struct xdp_md *ctx, __u32 at, __u32 end)
{
	__u64 words[4] = { 0, 0, 0, SIPHASH_LENGTH(3) };
	__u32 zero = 0, n;
	struct mux_config *c = bpf_map_lookup_elem(&configs, &zero);
	__u8 length;

	if (!c || at >= end || bpf_xdp_load_bytes(ctx, at, &length, sizeof(length)))
		return QUIC_NO_SOURCE;
	n = length;
	if (!n)
		return 0;
	if (n > QUIC_MAX_CID || n > end - at - 1 || bpf_xdp_load_bytes(ctx, at + 1, words, n))
		return QUIC_NO_SOURCE;
	words[2] |= (__u64)n << 56;
	return (siphash13(&c->flow_key, words, 4) >> 40 | 1) << 40;
}

/* quic_lost is for a datagram of which quic_look saw this, and `word` is that of the member which it names, 0 when there is none: as quic_find. It counts what is
 * odd. */
static __always_inline __u64 quic_lost(struct xdp_md *ctx, __u64 seen, __u64 word, __u32 at, __u32 end)
{
	__u64 source = 0;

	if (seen & QUIC_OPENS)
		source = quic_source(ctx, seen >> QUIC_SOURCE_SHIFT, quic_end(ctx, at, end));
	if (seen & QUIC_BROKEN || source == QUIC_NO_SOURCE) {
		note(MUX_REASON_QUIC_MALFORMED);
		return FLOW_UNKNOWN;
	}
	if (seen & QUIC_OPENS)
		return source;
	if (word >> MEMBER_PRESENT_SHIFT & 1)
		note(MUX_REASON_FLOW_MOVED);
	else
		note(seen & QUIC_NAMED ? MUX_REASON_QUIC_INVALID : MUX_REASON_QUIC_UNROUTABLE);
	return FLOW_UNKNOWN;
}

/* quic_find finds the member that a datagram names, whose UDP header is at `at` of the frame, among `range` of the endpoint with this policy word: FLOW_FOUND | the
 * index of its word; else what the flow table is to be asked: the segment, and quic_source in the highest 24 bits. */
__attribute__((noinline)) __u64 quic_find(struct xdp_md *ctx, __u64 policy, __u64 range, __u32 at, __u32 end)
{
	__u64 seen = quic_look(ctx, (policy >> POLICY_COOKIE_SHIFT) - 1, at, end), word = 0;

	if (seen & QUIC_NAMED && (seen & 0xffff) < range >> 32) {
		word = member_word((__u32)range + (seen & 0xffff));
		if (member_keeps(word, policy >> POLICY_FLAGS_SHIFT))
			return FLOW_FOUND | ((__u32)range + (seen & 0xffff));
	}
	return quic_lost(ctx, seen, word, at, end);
}

/* quic_also makes the flow with a hash lead to a member too: untrusted, in the place of what it led to. */
__attribute__((noinline)) int quic_also(__u64 hash, __u32 member)
{
	struct flow_bucket *b = flow_bucket_of(hash);
	__u64 tick = mux_tick(), e;
	__u32 at;

	if (!b)
		return 0;
	e = flow_match(b, hash);
	at = e ? flow_place(b, e) : LIMIT_FLOW_BUCKET;
	if (at == LIMIT_FLOW_BUCKET)
		at = flow_newcomer(hash, tick, member);
	else if (flow_class(e) == FLOW_CLASS_UNTRUSTED && flow_member(e) == member && flow_age(e, tick) < 2)
		return 0;
	if (at < LIMIT_FLOW_BUCKET)
		*(volatile __u64 *)&b->entries[at] = flow_entry(hash, member, FLOW_CLASS_UNTRUSTED, tick);
	return 0;
}

#endif
