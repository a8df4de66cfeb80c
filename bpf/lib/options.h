/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The options of one TCP header, copied out of the packet: 40 bytes at most. */
#ifndef SHUNT_OPTIONS_H
#define SHUNT_OPTIONS_H

#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"

enum tcp_option {
	TCP_OPTION_END = 0,
	TCP_OPTION_NOP = 1,
	TCP_OPTION_MSS = 2,
	TCP_OPTION_TIMESTAMPS = 8, /* kind, length 10, TSval, TSecr (RFC 7323 section 3.2) */
};

/* How nearly every segment of an established connection begins its options: NOP, NOP, timestamps (RFC 7323 appendix A), as one word as stored. TSval is
 * then behind these 4 bytes, TSecr behind 8. */
#define OPTIONS_USUAL bpf_htonl(0x0101080a)

/* Bytes of a timestamps option, and of it with the two NOPs. */
#define OPTIONS_TIMESTAMPS_LEN 10
#define OPTIONS_USUAL_LEN 12

struct tcp_options {
	__u8 bytes[LIMIT_TCP_OPTIONS];
	__u32 len;
};

/* Where a search for the timestamps stands. */
struct timestamps_walk {
	const struct tcp_options *options;
	__u32 at;    /* of the next option */
	__u32 found; /* 0: none yet, else index of TSval */
};

/* timestamps_step looks at one option (bpf_loop); 1 ends the search. */
static long timestamps_step(__u64 n, void *context)
{
	struct timestamps_walk *w = context;
	const struct tcp_options *o = w->options;
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
	if (i + 1 >= o->len || i + 1 >= LIMIT_TCP_OPTIONS)
		return 1;
	len = o->bytes[i + 1];
	if (len < 2 || i + len > o->len)
		return 1;
	w->at = i + len;
	if (kind != TCP_OPTION_TIMESTAMPS || len != OPTIONS_TIMESTAMPS_LEN)
		return 0;
	w->found = i + 2;
	return 1;
}

/* options_timestamps is where TSval of the first timestamps option begins, counted from the options; TSecr is 4 bytes behind it. 0: there is none in front
 * of the end of the options or of one that lies about its length. A timestamps option of another length counts as a foreign one, as Linux has it. */
static __always_inline __u32 options_timestamps(const struct tcp_options *o)
{
	struct timestamps_walk w = { .options = o };

	/* bpf_loop came with Linux 5.17; an unrolled walk costs the verifier hundreds of thousands of steps. */
	bpf_loop(LIMIT_TCP_OPTIONS, timestamps_step, &w, 0);
	return w.found;
}

/* options_word is the 32-bit word, in host order, at `at` of the options: 0 when that is not wholly within what they can be. */
static __always_inline __u32 options_word(const struct tcp_options *o, __u32 at)
{
	if (at > LIMIT_TCP_OPTIONS - 4)
		return 0;
	return (__u32)o->bytes[at] << 24 | (__u32)o->bytes[at + 1] << 16 | (__u32)o->bytes[at + 2] << 8 | o->bytes[at + 3];
}

#endif
