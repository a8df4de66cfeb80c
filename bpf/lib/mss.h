/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Clamping the maximum segment size that a SYN announces (RFC 9293 section 3.7.1). */
#ifndef SHUNT_MSS_H
#define SHUNT_MSS_H

#include "options.h"
#include "view.h"

/* Results of mss_clamp. */
enum mss_result {
	MSS_LEFT = 0,
	MSS_CLAMPED = 1,
	MSS_MALFORMED = 2, /* an option length that is 0, 1 or beyond the header */
	MSS_FAILED = 3,    /* the kernel refused to write */
};

/* Where a walk through options stands. */
struct mss_walk {
	struct tcp_options options;
	__u32 at;     /* of the next option */
	__s32 found;  /* 0: no MSS yet, -1: broken, else index of the MSS value */
};

/* mss_step looks at one option; 1 ends the walk. */
static long mss_step(__u32 n, void *context)
{
	struct mss_walk *w = context;
	const struct tcp_options *o = &w->options;
	__u32 i = w->at, kind, len;

	(void)n;
	if (i >= o->len || i >= LIMIT_TCP_OPTIONS)
		return 1;
	kind = o->bytes[i];
	if (kind == TCP_OPTION_END)
		return 1;
	w->at = i + 1;
	if (kind == TCP_OPTION_NOP)
		return 0;
	w->found = -1;
	if (i + 1 >= o->len || i + 1 >= LIMIT_TCP_OPTIONS)
		return 1;
	len = o->bytes[i + 1];
	if (len < 2 || i + len > o->len || (kind == TCP_OPTION_MSS && len != 4))
		return 1;
	w->found = kind == TCP_OPTION_MSS ? (__s32)i + 2 : 0;
	w->at = i + len;
	return w->found != 0;
}

/* mss_store writes a new MSS, `at` bytes into the options. A word at an odd offset counts byte-swapped in the
 * checksum (RFC 1071). */
static __always_inline int mss_store(struct __sk_buff *skb, const struct transport_view *t, __u32 at, __be16 from, __be16 to)
{
	__u16 a = at & 1 ? bpf_htons(from) : from, b = at & 1 ? bpf_htons(to) : to;

	if (bpf_l4_csum_replace(skb, t->csum_offset, a, b, sizeof(b)))
		return MSS_FAILED;
	if (bpf_skb_store_bytes(skb, t->offset + sizeof(struct tcphdr) + at, &to, sizeof(to), 0))
		return MSS_FAILED;
	return MSS_CLAMPED;
}

/* mss_read loads the options of the TCP header at t. */
static __always_inline int mss_read(struct __sk_buff *skb, const struct transport_view *t, struct tcp_options *o)
{
	__builtin_memset(o, 0, sizeof(*o));
	o->len = t->header_len - sizeof(struct tcphdr);
	if (o->len < 1 || o->len > LIMIT_TCP_OPTIONS)
		return 0;
	return bpf_skb_load_bytes(skb, t->offset + sizeof(struct tcphdr), o->bytes, o->len);
}

/* mss_clamp lowers the MSS option of the SYN at t to `mss` (host order); it never raises it and adds none. Global, so
 * that the verifier looks at it once, on its own. */
__noinline int mss_clamp(struct __sk_buff *skb, const struct transport_view *t, __u32 mss)
{
	struct mss_walk w = {};
	__be16 from;
	__u32 at;

	if (!t || mss_read(skb, t, &w.options))
		return MSS_FAILED;
	/* bpf_loop came with Linux 5.17; an unrolled walk costs the verifier hundreds of thousands of steps. */
	bpf_loop(LIMIT_TCP_OPTIONS, mss_step, &w, 0);
	if (w.found < 0)
		return MSS_MALFORMED;
	at = w.found;
	if (at == 0 || !mss || at > LIMIT_TCP_OPTIONS - 2)
		return MSS_LEFT;
	from = w.options.bytes[at] | (__u16)w.options.bytes[at + 1] << 8;
	if (bpf_ntohs(from) <= mss)
		return MSS_LEFT;
	return mss_store(skb, t, at, from, bpf_htons(mss));
}

#endif
