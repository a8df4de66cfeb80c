/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Clamping the maximum segment size that a SYN announces (RFC 9293 section 3.7.1). */
#ifndef SHUNT_MSS_H
#define SHUNT_MSS_H

#include "tunnel.h"

enum tcp_option {
	TCP_OPTION_END = 0,
	TCP_OPTION_NOP = 1,
	TCP_OPTION_MSS = 2,
};

/* Results of mss_clamp. */
enum mss_result {
	MSS_LEFT = 0,
	MSS_CLAMPED = 1,
	MSS_MALFORMED = 2, /* an option length that is 0, 1 or beyond the header */
	MSS_FAILED = 3,    /* the kernel refused to write */
};

/* The options of one TCP header: at most 40 bytes. */
struct tcp_options {
	__u8 bytes[LIMIT_TCP_OPTIONS];
	__u32 len;
};

/* mss_find returns the index of the MSS value in the options, 0 when there is none, -1 when they are broken. */
static __always_inline int mss_find(const struct tcp_options *o)
{
	__u32 i = 0;

	for (int n = 0; n < LIMIT_TCP_OPTIONS; n++) {
		__u32 kind, len;

		if (i >= o->len || i >= LIMIT_TCP_OPTIONS)
			return 0;
		kind = o->bytes[i];
		if (kind == TCP_OPTION_END)
			return 0;
		if (kind == TCP_OPTION_NOP) {
			i++;
			continue;
		}
		if (i + 1 >= o->len || i + 1 >= LIMIT_TCP_OPTIONS)
			return -1;
		len = o->bytes[i + 1];
		if (len < 2 || i + len > o->len)
			return -1;
		if (kind == TCP_OPTION_MSS)
			return len == 4 ? (int)i + 2 : -1;
		i += len;
	}
	return 0;
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

/* mss_clamp lowers the MSS option of the SYN at t to `mss` (host order); it never raises it and adds none. */
static __noinline int mss_clamp(struct __sk_buff *skb, const struct transport_view *t, __u32 mss)
{
	struct tcp_options options;
	__be16 from;
	int at;

	if (!t || mss_read(skb, t, &options))
		return MSS_FAILED;
	at = mss_find(&options);
	if (at < 0)
		return MSS_MALFORMED;
	if (at == 0 || !mss || at > LIMIT_TCP_OPTIONS - 2)
		return MSS_LEFT;
	from = options.bytes[at] | (__u16)options.bytes[at + 1] << 8;
	if (bpf_ntohs(from) <= mss)
		return MSS_LEFT;
	return mss_store(skb, t, at, from, bpf_htons(mss));
}

#endif
