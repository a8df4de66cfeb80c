/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Choices without branches, for loops over a bucket. */
#ifndef SHUNT_MASK_H
#define SHUNT_MASK_H

#include <linux/types.h>

/* flow_negative is all ones when x is negative, else 0. Opaque to clang, which would make branches of what is done with it:
 * they could not be predicted, and the verifier would follow every combination of them. */
static __always_inline __u64 flow_negative(__u64 x)
{
	__u64 mask = (__s64)x >> 63;

	asm volatile("" : "+r"(mask));
	return mask;
}

/* flow_larger is the larger of two numbers below 1 << 63. */
static __always_inline __u64 flow_larger(__u64 x, __u64 y)
{
	__u64 more = y - x;

	return x + (more & ~flow_negative(more));
}

#endif
