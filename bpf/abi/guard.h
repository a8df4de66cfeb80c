/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What VIPs let through. */
#ifndef SHUNT_ABI_GUARD_H
#define SHUNT_ABI_GUARD_H

#include "abi/limit.h"

/* A list of source prefixes (lib/source.h). Immutable. */
struct source_list {
	__u8 digest[32]; /* of the wanted list: equal lists are one */
	__u64 turns4;    /* span of IPv4 turns: two to a word, the first in the low half */
	__u64 turns6;    /* span of IPv6 turns: two words each, high half first; host order */
	__u32 denies;    /* 1: addresses below the first turn are denied */
	__u32 rsv[3];
};
SHUNT_ASSERT_SIZE(struct source_list, 64);

/* What a VIP lets through. Intervals are the time of one token in 2^-24 jiffies, 0 for no limit; the words of their
 * buckets (lib/bucket.h) are on a line of their own, since every packet writes them. */
struct vip_guard {
	__u64 sources; /* atomic: index of the source_list + 1, 0: every source */
	__u64 packets_interval; /* atomic, as the next */
	__u64 flows_interval;
	__u64 rsv0[5];
	__u64 packets_spent; /* written by the walk */
	__u64 flows_spent;
	__u64 rsv1[6];
};
SHUNT_ASSERT_SIZE(struct vip_guard, 128);

#endif
