/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The timestamps option of TCP (RFC 7323 section 3): where it is, what it says, and what another value does to the checksum. */
#ifndef SHUNT_TIMESTAMP_H
#define SHUNT_TIMESTAMP_H

#include "mss.h"

enum timestamp_option {
	TCP_OPTION_TIMESTAMP = 8,
	TCP_OPTION_MD5 = 19,   /* RFC 2385 */
	TCP_OPTION_AO = 29,    /* RFC 5925 */
	TCP_OPTION_MPTCP = 30, /* RFC 8684 */
	/* NOP, NOP, timestamps: how nearly every segment without SYN begins its options (RFC 7323 appendix A). */
	TIMESTAMP_USUAL = 0x0101080a,
	TIMESTAMP_LEN = 10,
	/* Of MP_CAPABLE: its subtype, and the flag that forbids more connections to its address and port (RFC 8684 section 3.1). */
	MPTCP_CAPABLE = 0,
	MPTCP_NO_JOIN = 0x20,
};

/* The timestamps of a segment. */
struct timestamp {
	__u32 at;    /* of TSval, from the beginning of the TCP header; 0: there are none, or it is not for us to change them */
	__u32 value; /* TSval and TSecr, host order */
	__u32 echo;
	__u32 mptcp; /* of the flags of MP_CAPABLE, as `at`; 0: there is none */
};

/* Where a walk through options stands. */
struct timestamp_walk {
	struct tcp_options options;
	__u32 at;     /* of the next option */
	__u32 found;  /* of TSval, 0 none */
	__u32 mptcp;
	__u32 broken; /* 1: an option lies, or the segment is signed */
};

/* timestamp_step looks at one option; 1 ends the walk. Timestamps of another length are a foreign option, as muxes and Linux have it. */
static long timestamp_step(__u32 n, void *context)
{
	struct timestamp_walk *w = context;
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
	w->broken = 1;
	if (i + 2 > o->len || i + 2 > LIMIT_TCP_OPTIONS)
		return 1;
	len = o->bytes[i + 1];
	if (len < 2 || i + len > o->len || kind == TCP_OPTION_MD5 || kind == TCP_OPTION_AO)
		return 1;
	w->broken = 0;
	w->at = i + len;
	if (kind == TCP_OPTION_TIMESTAMP && len == TIMESTAMP_LEN && !w->found)
		w->found = i + 2;
	if (kind == TCP_OPTION_MPTCP && len >= 4 && i + 4 <= LIMIT_TCP_OPTIONS && o->bytes[i + 2] >> 4 == MPTCP_CAPABLE)
		w->mptcp = i + 3;
	return 0;
}

/* timestamp_find walks through the options of the TCP header at t: 1 when there are timestamps. A signed segment (RFC 2385, RFC 5925) has none that may be
 * changed. Global, so that the verifier looks at it once. */
__noinline int timestamp_find(struct __sk_buff *skb, const struct transport_view *t, struct timestamp *ts)
{
	struct timestamp_walk w = {};
	__be32 values[2];

	if (!t || !ts)
		return 0;
	ts->at = ts->mptcp = 0;
	if (mss_read(skb, t, &w.options))
		return 0;
	bpf_loop(LIMIT_TCP_OPTIONS, timestamp_step, &w, 0);
	if (w.broken || !w.found || w.found > LIMIT_TCP_OPTIONS - sizeof(values))
		return 0;
	if (bpf_skb_load_bytes(skb, t->offset + sizeof(struct tcphdr) + w.found, values, sizeof(values)))
		return 0;
	ts->at = sizeof(struct tcphdr) + w.found;
	ts->value = bpf_ntohl(values[0]);
	ts->echo = bpf_ntohl(values[1]);
	if (w.mptcp)
		ts->mptcp = sizeof(struct tcphdr) + w.mptcp;
	return 1;
}

/* timestamp_read reads the timestamps of a segment that is no SYN: 1 when there are some. Where the option lies as usual nothing behind it is looked at. */
static __always_inline int timestamp_read(struct __sk_buff *skb, const struct transport_view *t, struct timestamp *ts)
{
	struct {
		__be32 kinds;
		__be32 values[2];
	} o;

	if (t->header_len < sizeof(struct tcphdr) + sizeof(o))
		return 0;
	if (view_load(skb, t->offset + sizeof(struct tcphdr), &o, sizeof(o)))
		return 0;
	if (o.kinds != bpf_htonl(TIMESTAMP_USUAL))
		return timestamp_find(skb, t, ts);
	ts->at = sizeof(struct tcphdr) + 4;
	ts->value = bpf_ntohl(o.values[0]);
	ts->echo = bpf_ntohl(o.values[1]);
	ts->mptcp = 0;
	return 1;
}

/* timestamp_diff is the one's complement difference that another value of a 32-bit word makes to a sum of 16-bit words as stored. At an odd offset
 * its bytes count swapped (RFC 1071 section 2). */
static __always_inline __u32 timestamp_diff(__be32 from, __be32 to, __u32 at)
{
	__u64 sum = (__u64)to + (__u32)~from;
	__u32 diff = (__u32)sum + (sum >> 32);

	return at & 1 ? diff << 8 | diff >> 24 : diff;
}

#endif
