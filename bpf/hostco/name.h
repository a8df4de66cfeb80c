/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of hostco.bpf.c: what is kept of a segment while it is looked at. */

/* A segment to an endpoint. */
struct co_segment {
	struct ip_view v;
	struct transport_view t;
	struct tcp_options options;
};

enum co_answer_len {
	CO_OPTIONS_LEN = 20, /* maximum segment size, selective acknowledgement and timestamps, window scale, each on a word */
	CO_TCP_LEN = 20 + CO_OPTIONS_LEN,
};

/* A TCP header with the options of an answer. */
struct co_tcp {
	struct tcphdr tcp;
	__be32 mss;        /* kind, length, size */
	__be32 stamp_kind; /* SACK permitted or two NOPs, kind and length of timestamps */
	__be32 tsval;
	__be32 tsecr;
	__be32 wscale;     /* NOP, kind, length, shift; or four NOPs */
};
_Static_assert(sizeof(struct co_tcp) == CO_TCP_LEN, "the answer's header");

/* A TCP header with as many options as there can be. */
struct co_header {
	struct tcphdr tcp;
	__u8 options[LIMIT_TCP_OPTIONS];
};

struct co_scratch {
	struct co_segment segment;
	struct co_header from; /* the segment's own header */
	struct co_tcp to;      /* the answer's */
};
