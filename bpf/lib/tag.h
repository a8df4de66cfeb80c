/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Tags of the host's flow table (abi/host_flow.h): a tag says whose its record may be, and until when. All CPUs and the agent share them
 * without locks: who takes a place makes its tag busy by compare and swap, writes the record, and publishes the tag; who reads a record
 * looks at the tag again afterwards. Loads are in order on x86. */
#ifndef SHUNT_TAG_H
#define SHUNT_TAG_H

#include <linux/types.h>

#include "abi.h"
#include "mask.h"

#define TAG_UNTIL_MASK ((1ULL << FLOW_TAG_UNTIL_BITS) - 1)
#define TAG_BUSY (1ULL << FLOW_TAG_BUSY_SHIFT)
/* Time and class: what a flow's packets change. */
#define TAG_STATE_MASK ((1ULL << FLOW_TAG_BUSY_SHIFT) - 1)

/* tag_load loads a tag. */
static __always_inline __u64 tag_load(const struct flow_tags *b, __u32 way)
{
	return *(const volatile __u64 *)&b->tags[way & (LIMIT_FLOW_BUCKET - 1)];
}

/* tag_class is a tag's enum flow_class. */
static __always_inline __u32 tag_class(__u64 tag)
{
	return tag >> FLOW_TAG_CLASS_SHIFT & 3;
}

/* tag_left is the number of ticks that a flow has left; above FLOW_TAG_IDLE_MAX: its time is over. */
static __always_inline __u64 tag_left(__u64 tag, __u64 tick)
{
	return (tag - tick) & TAG_UNTIL_MASK;
}

/* tag_live says whether a tag is of a flow whose time is not over, its record written or not. */
static __always_inline int tag_live(__u64 tag, __u64 tick)
{
	return tag_class(tag) && tag_left(tag, tick) <= FLOW_TAG_IDLE_MAX;
}

/* tag_same says whether two tags are of one flow in one place, and of a written record. */
static __always_inline int tag_same(__u64 a, __u64 b)
{
	return !((a ^ b) & ~TAG_STATE_MASK);
}

/* tag_claim is the tag of a newcomer that is about to write its record in the place of `before`. */
static __always_inline __u64 tag_claim(__u64 hash, __u64 before, __u64 tick)
{
	__u64 generation = (before >> FLOW_TAG_GENERATION_SHIFT) + 1 & 0xff;

	return hash >> FLOW_TAG_FINGERPRINT_SHIFT << FLOW_TAG_FINGERPRINT_SHIFT | generation << FLOW_TAG_GENERATION_SHIFT | TAG_BUSY |
	       (__u64)FLOW_CLASS_TRUSTED << FLOW_TAG_CLASS_SHIFT | ((tick + FLOW_TAG_IDLE_MAX / 2) & TAG_UNTIL_MASK);
}

/* tag_state is a tag with another class and time. */
static __always_inline __u64 tag_state(__u64 tag, __u32 class, __u64 until)
{
	return (tag & ~(TAG_STATE_MASK | TAG_BUSY)) | (__u64)class << FLOW_TAG_CLASS_SHIFT | (until & TAG_UNTIL_MASK);
}

/* tag_home is the way of its bucket that a flow takes when it can. */
static __always_inline __u32 tag_home(__u64 hash)
{
	return hash >> 28 & (LIMIT_FLOW_BUCKET - 1);
}

/* tag_bucket is the first (0) or second (1) bucket of a hash; never the same one. `mask` is the number of buckets less one. */
static __always_inline __u32 tag_bucket(__u64 hash, __u32 second, __u32 mask)
{
	__u32 away = (__u32)(hash >> FLOW_TAG_FINGERPRINT_SHIFT) * 0x9e3779b1U >> 8 | 1;

	return ((__u32)hash ^ (second ? away : 0)) & mask;
}

/* What tag_room says of a bucket, from bit 0 up: 8 - way of a place that is empty or whose time is over:4, 0 none, with 16 when it is the
 * home | their number:8 at 8 | live ones that are untrusted or closing:8 at 16. */
enum tag_room_shift {
	TAG_ROOM_FREE_SHIFT = 8,
	TAG_ROOM_UNTRUSTED_SHIFT = 16,
};

/* tag_room looks for room in a bucket. Without branches, which the verifier would follow in every combination. */
static __always_inline __u64 tag_room(const struct flow_tags *b, __u32 home, __u64 tick)
{
	__u64 free = 0, frees = 0, untrusted = 0;

#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < LIMIT_FLOW_BUCKET; i++) {
		__u64 tag = tag_load(b, i), class = tag >> FLOW_TAG_CLASS_SHIFT & 3, left = (tag - tick) & TAG_UNTIL_MASK, gone;

		gone = flow_negative(class - 1) | flow_negative(FLOW_TAG_IDLE_MAX - left);
		frees += gone & 1;
		free = flow_larger(free, gone & ((8 - i) | (flow_negative((__u64)(i ^ home) - 1) & 16)));
		untrusted += class & ~gone & 1;
	}
	return free | frees << TAG_ROOM_FREE_SHIFT | untrusted << TAG_ROOM_UNTRUSTED_SHIFT;
}

/* Places in two buckets: way | 8 for the second, 16: none. */
#define TAG_NO_ROOM 16

/* tag_way is a way as tag_room tells it, of the first or second bucket. */
static __always_inline __u32 tag_way(__u64 score, __u32 second)
{
	return ((8 - (score & 15)) & 7) | second << 3;
}

/* tag_choose is the free place that an untrusted newcomer takes, of what tag_room says of its two buckets: one of the emptier bucket, the first one's
 * unless that is more than half full, where fewer than LIMIT_FLOW_UNTRUSTED are untrusted or closing; else TAG_NO_ROOM. */
static __always_inline __u32 tag_choose(__u64 x, __u64 y)
{
	__u64 fx = x >> TAG_ROOM_FREE_SHIFT & 0xff, fy = y >> TAG_ROOM_FREE_SHIFT & 0xff;

	if ((x >> TAG_ROOM_UNTRUSTED_SHIFT & 0xff) >= LIMIT_FLOW_UNTRUSTED)
		fx = 0;
	if ((y >> TAG_ROOM_UNTRUSTED_SHIFT & 0xff) >= LIMIT_FLOW_UNTRUSTED)
		fy = 0;
	if (fx && (fx >= LIMIT_FLOW_BUCKET / 2 || fx >= fy))
		return tag_way(x, 0);
	return fy ? tag_way(y, 1) : TAG_NO_ROOM;
}

#endif
