/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Timestamps of forms SPLIT-R and SPLIT-Z (protocol sections 1.2 and 1.4): the lowest 20 bits of the server's own, and a cookie of 12 bits
 * (lib/short_cookie.h). internal/cookie holds the same functions in Go. */
#ifndef SHUNT_SPLIT_H
#define SHUNT_SPLIT_H

#include <linux/types.h>

enum split_bit {
	SPLIT_TIME_BITS = 20,
	SPLIT_HALF_SHIFT = SPLIT_TIME_BITS - 1,
	SPLIT_HALF = 1 << SPLIT_HALF_SHIFT,
};

/* split_place is the timestamp that carries a cookie of 12 bits beside the time: never 0, which says "no timestamp" when it comes back. */
static __always_inline __u32 split_place(__u32 time, __u32 cookie)
{
	__u32 stamp = (time & SPLIT_HALF) << (31 - SPLIT_HALF_SHIFT) | cookie << SPLIT_HALF_SHIFT | (time & (SPLIT_HALF - 1));

	return stamp ? stamp : 1;
}

/* split_time is the time in such a timestamp: its lowest SPLIT_TIME_BITS. */
static __always_inline __u32 split_time(__u32 stamp)
{
	return stamp >> 31 << SPLIT_HALF_SHIFT | (stamp & (SPLIT_HALF - 1));
}

/* split_cookie is the cookie in such a timestamp. */
static __always_inline __u32 split_cookie(__u32 stamp)
{
	return (stamp & 0x7fffffff) >> SPLIT_HALF_SHIFT;
}

/* split_restore is the server's timestamp that became `stamp`; `newest` is its newest one, at most 2^SPLIT_TIME_BITS - 1 later. */
static __always_inline __u32 split_restore(__u32 stamp, __u32 newest)
{
	return newest - ((newest - split_time(stamp)) & ((1U << SPLIT_TIME_BITS) - 1));
}

#endif
