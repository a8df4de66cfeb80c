/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The flow table's bucket: eight words, one cache line (abi.h, enum flow_bit). All CPUs share it without locks: an entry
 * is read and written as one aligned word, and a lost write costs no more than a flow that is remembered later.
 *
 * Two flows of one bucket have equal fingerprints with a chance of 2^-25. An entry names its member by the index in the
 * table of all member words, so that such a match leads out of the endpoint's own range and is seen; within one endpoint
 * the newcomer shares the other's member, which it could have been given as well. */
#ifndef SHUNT_FLOW_H
#define SHUNT_FLOW_H

#include <linux/types.h>

#include "abi.h"
#include "mask.h"
#include "parse.h"

/* The member bits of an entry, shifted down. */
#define FLOW_MEMBER_MASK ((1U << (FLOW_FINGERPRINT_SHIFT - FLOW_MEMBER_SHIFT)) - 1)

/* flow_member is the index of an entry's member word. */
static __always_inline __u32 flow_member(__u64 e)
{
	return e >> FLOW_MEMBER_SHIFT & FLOW_MEMBER_MASK;
}

/* flow_class is an entry's class. */
static __always_inline __u32 flow_class(__u64 e)
{
	return e >> FLOW_CLASS_SHIFT & 3;
}

/* flow_entry makes an entry of a flow with this hash. */
static __always_inline __u64 flow_entry(__u64 hash, __u32 member, __u32 class, __u64 tick)
{
	return hash >> FLOW_FINGERPRINT_SHIFT << FLOW_FINGERPRINT_SHIFT | (__u64)member << FLOW_MEMBER_SHIFT |
	       class << FLOW_CLASS_SHIFT | (tick & 0xffff);
}

/* flow_age is the number of ticks since an entry was refreshed. Another CPU may be a tick ahead. */
static __always_inline __u64 flow_age(__u64 e, __u64 tick)
{
	__u64 age = (tick - e) & 0xffff;

	return age == 0xffff ? 0 : age;
}

/* flow_limit is the idle time of a class by a policy word: closing flows have that of untrusted ones. */
static __always_inline __u64 flow_limit(__u64 policy, __u32 class)
{
	return policy >> (class == FLOW_CLASS_TRUSTED ? POLICY_TRUSTED_SHIFT : POLICY_UNTRUSTED_SHIFT) & 0xffff;
}

/* flow_load loads an entry. */
static __always_inline __u64 flow_load(const struct flow_bucket *b, __u32 i)
{
	return *(const volatile __u64 *)&b->entries[i];
}

/* flow_home is the entry of its bucket that a flow takes when it can: most flows are found by one look. */
static __always_inline __u32 flow_home(__u64 hash)
{
	return hash >> FLOW_HOME_SHIFT & (LIMIT_FLOW_BUCKET - 1);
}

/* flow_match is the entry whose fingerprint is that of the hash, the home before all others, else the first; 0: none, or
 * an empty one for fingerprint 0. Beyond the home it has no branches: which entry matches cannot be predicted, and the
 * load of the member waits for it. */
static __always_inline __u64 flow_match(const struct flow_bucket *b, __u64 hash)
{
	__u64 found = flow_load(b, flow_home(hash));

	if (!((found ^ hash) >> FLOW_FINGERPRINT_SHIFT))
		return found;
	found = 0;
#pragma unroll
	for (int i = LIMIT_FLOW_BUCKET - 1; i >= 0; i--) {
		__u64 e = flow_load(b, i);

		found ^= (found ^ e) & flow_negative(((hash ^ e) >> FLOW_FINGERPRINT_SHIFT) - 1);
	}
	return found;
}

/* flow_place is the number of the entry that flow_match found, which still is `e`; LIMIT_FLOW_BUCKET: it is gone. */
static __always_inline __u32 flow_place(const struct flow_bucket *b, __u64 e)
{
	__u32 i;

	for (i = 0; i < LIMIT_FLOW_BUCKET; i++)
		if (flow_load(b, i) == e)
			break;
	return i;
}

/* flow_room is the entry that an untrusted newcomer with a home takes, LIMIT_FLOW_BUCKET when there is none: an empty or
 * expired one, its home before all others, as long as fewer than LIMIT_FLOW_UNTRUSTED live ones are untrusted or closing, else the oldest of those. A live trusted
 * one is never taken. `idle` is the word of struct mux_config. */
static __always_inline __u32 flow_room(const struct flow_bucket *b, __u32 home, __u64 idle, __u64 tick)
{
	__u64 untrusted = 0, free = 0, oldest = 0;

	/* Without branches, as above, and rolled up: unrolled it needs more stack than there is. Both maxima hold 8 - i in their low bits: of equals the first wins. */
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < LIMIT_FLOW_BUCKET; i++) {
		__u64 e = flow_load(b, i), class = e >> FLOW_CLASS_SHIFT & 3, age = (tick - e) & 0xffff;
		__u64 trusted = class >> 1 & ~class & 1, limit = idle >> (trusted << 4) & 0xffff, gone, score;

		/* One tick ahead is no age. */
		age &= ~flow_negative(0xfffe - age);
		gone = flow_negative(class - 1) | flow_negative(limit - age);
		untrusted += class & ~gone & 1;
		free = flow_larger(free, gone & ((8 - i) | (flow_negative((__u64)(i ^ home) - 1) & 16)));
		score = age << 4 | (8 - i);
		oldest = flow_larger(oldest, score & ~gone & -(class & 1));
	}
	if (untrusted < LIMIT_FLOW_UNTRUSTED && free)
		return 8 - (free & 15);
	return oldest ? 8 - (oldest & 15) : LIMIT_FLOW_BUCKET;
}

/* flow_is_later says whether a segment neither opens nor closes a flow and makes it trusted. */
static __always_inline int flow_is_later(__u32 segment)
{
	return (segment & (SEGMENT_SYN | SEGMENT_FIN | SEGMENT_RST | SEGMENT_ACK)) == SEGMENT_ACK;
}

/* flow_next is the class of a flow after a segment that is no SYN. */
static __always_inline __u32 flow_next(__u32 class, __u32 segment)
{
	if (segment & (SEGMENT_FIN | SEGMENT_RST))
		return FLOW_CLASS_CLOSING;
	return class == FLOW_CLASS_UNTRUSTED && segment & SEGMENT_ACK ? FLOW_CLASS_TRUSTED : class;
}

/* flow_first is the class of a flow whose first packet seen is this segment. */
static __always_inline __u32 flow_first(__u32 segment)
{
	return segment & (SEGMENT_FIN | SEGMENT_RST) ? FLOW_CLASS_CLOSING : FLOW_CLASS_UNTRUSTED;
}

#endif
