/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Comparison of TCP sequence numbers (RFC 9293 section 3.4). */
#ifndef SHUNT_SEQ_H
#define SHUNT_SEQ_H

#include <linux/types.h>

/* seq_after returns 1 if sequence number a is behind b. */
static __always_inline int seq_after(__u32 a, __u32 b)
{
	return (__s32)(a - b) > 0;
}

/* seq_within returns 1 if n is one of the numbers from `from` to `to`. It returns 0 if `from` is behind `to`: another CPU changed one of the two. */
static __always_inline int seq_within(__u32 n, __u32 from, __u32 to)
{
	return !seq_after(from, to) && n - from <= to - from;
}

#endif
