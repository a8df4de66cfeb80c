/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The choice of a member: ring slot, fallback chain, scan. internal/ring holds the same functions in Go. */
#ifndef SHUNT_RING_H
#define SHUNT_RING_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "hash.h"

/* member_usable says whether packets may go to a member. */
static __always_inline int member_usable(__u64 word)
{
	const __u64 want = 1ULL << MEMBER_ALIVE_SHIFT | 1ULL << MEMBER_CHOOSABLE_SHIFT | 1ULL << MEMBER_PRESENT_SHIFT;

	return (word & want) == want;
}

/* member_present says whether packets of flows that a member has already may go to it: also while it drains. */
static __always_inline int member_present(__u64 word)
{
	const __u64 want = 1ULL << MEMBER_ALIVE_SHIFT | 1ULL << MEMBER_PRESENT_SHIFT;

	return (word & want) == want;
}

/* member_keeps says whether packets of a member's own flows may go to it, given the flags of its endpoint (enum endpoint_flag): with ENDPOINT_KEEP_DEAD
 * also while it is dead. */
static __always_inline int member_keeps(__u64 word, __u32 flags)
{
	const __u64 dead = flags & ENDPOINT_KEEP_DEAD ? 1ULL << MEMBER_ALIVE_SHIFT : 0;

	return member_present(word | dead);
}

/* ring_slot is the slot of a flow hash in a ring of 1 << code slots, 0 < code < 64. */
static __always_inline __u32 ring_slot(__u64 hash, __u32 code)
{
	return hash >> (64 - code);
}

/* ring_fallback is the slot tried as number `probe` (from 1) after `slot`. It depends on nothing but the slot, so that
 * flows of one slot stay together. */
static __always_inline __u32 ring_fallback(__u32 slot, __u32 code, __u32 probe)
{
	return ring_slot(mix64((__u64)probe << 32 | slot), code);
}

/* ring_scan_start is the member id the scan begins at when the whole chain is dead. */
static __always_inline __u32 ring_scan_start(__u32 slot, __u32 count)
{
	return (mix64((__u64)(LIMIT_FALLBACK_PROBES + 1) << 32 | slot) >> 32) * count >> 32;
}

/* ring_member loads the member id of a slot, or 0xffffffff when the table ends before it. */
static __always_inline __u32 ring_member(void *rings, __u32 first, __u32 slot)
{
	__u32 index = first + (slot >> 2);
	__u64 *word = bpf_map_lookup_elem(rings, &index);

	if (!word)
		return 0xffffffff;
	return *(volatile __u64 *)word >> ((slot & 3) * 16) & 0xffff;
}

/* member_usable_word loads member word `id` of `count` from `first` on: 0 when it is not usable. */
static __always_inline __u64 member_usable_word(void *members, __u32 first, __u32 count, __u32 id)
{
	__u32 index = first + id;
	__u64 *word, value;

	if (id >= count)
		return 0;
	word = bpf_map_lookup_elem(members, &index);
	if (!word)
		return 0;
	value = *(volatile __u64 *)word;
	return member_usable(value) ? value : 0;
}

/* What ring_walk found. */
struct ring_choice {
	__u32 id;     /* member id */
	__u32 probes; /* 1 to LIMIT_FALLBACK_PROBES along the chain, one more by the scan; 0: nothing is usable */
};

struct ring_scan {
	void *members;
	__u32 first;
	__u32 count;
	__u32 id; /* next member id */
	__u32 found;
};

/* ring_scan_step is one step of the scan (bpf_loop): 1 ends it. */
static long ring_scan_step(__u64 i, void *arg)
{
	struct ring_scan *s = arg;

	(void)i;
	if (member_usable_word(s->members, s->first, s->count, s->id)) {
		s->found = 1;
		return 1;
	}
	s->id = s->id + 1 < s->count ? s->id + 1 : 0;
	return 0;
}

/* ring_walk goes along the fallback chain of a slot whose own member is not usable, then scans the members in id order.
 * `ring` and `range` are the words of struct endpoint. */
static __always_inline struct ring_choice ring_walk(void *rings, void *members, __u64 ring, __u64 range, __u32 slot)
{
	__u32 code = ring >> 32 & 0x1f, first = (__u32)range, count = range >> 32;
	struct ring_choice none = {}, c;
	struct ring_scan scan = { .members = members, .first = first, .count = count };

	for (c.probes = 1; c.probes <= LIMIT_FALLBACK_PROBES; c.probes++) {
		c.id = ring_member(rings, (__u32)ring, ring_fallback(slot, code, c.probes));
		if (member_usable_word(members, first, count, c.id))
			return c;
	}
	scan.id = ring_scan_start(slot, count);
	bpf_loop(count, ring_scan_step, &scan, 0);
	c.id = scan.id;
	return scan.found ? c : none;
}

#endif
