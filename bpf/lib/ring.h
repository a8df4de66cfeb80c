/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The choice of a member: ring slot, fallback chain, scan. internal/ring holds the same functions in Go. */
#ifndef SHUNT_RING_H
#define SHUNT_RING_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "hash.h"

/* What an endpoint's atomic words say. */
struct ring_view {
	void *rings;   /* map of 64-bit words, four slots each */
	void *members; /* map of member words */
	__u32 ring_first;
	__u32 member_first;
	__u32 member_count;
	__u32 code; /* the ring has 1 << code slots */
};

/* A chosen member: its word and the word's index. word 0: none. */
struct ring_choice {
	__u64 word;
	__u32 index;
	__u32 probes; /* 0: the slot's own member */
};

/* member_usable says whether packets may go to a member. */
static __always_inline int member_usable(__u64 word)
{
	const __u64 want = 1ULL << MEMBER_ALIVE_SHIFT | 1ULL << MEMBER_CHOOSABLE_SHIFT | 1ULL << MEMBER_PRESENT_SHIFT;

	return (word & want) == want;
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

/* ring_try loads the word of a member; true when it is usable. */
static __always_inline int ring_try(const struct ring_view *v, void *members, __u32 id, struct ring_choice *c)
{
	__u64 *word;

	if (id >= v->member_count)
		return 0;
	c->index = v->member_first + id;
	word = bpf_map_lookup_elem(members, &c->index);
	if (!word)
		return 0;
	c->word = *(volatile __u64 *)word;
	return member_usable(c->word);
}

struct ring_scan {
	const struct ring_view *view;
	struct ring_choice *choice;
	__u32 next; /* member id */
	__u32 rsv;
};

/* ring_scan_step is one step of the scan (bpf_loop): 1 ends it. */
static long ring_scan_step(__u64 i, void *arg)
{
	struct ring_scan *s = arg;

	(void)i;
	if (ring_try(s->view, s->view->members, s->next, s->choice))
		return 1;
	s->next = s->next + 1 < s->view->member_count ? s->next + 1 : 0;
	return 0;
}

/* ring_walk goes along the fallback chain of a slot whose own member is not usable, then scans the members. */
static __noinline int ring_walk(const struct ring_view *v, __u32 slot, struct ring_choice *c)
{
	struct ring_scan scan = { .view = v, .choice = c };

	for (__u32 probe = 1; probe <= LIMIT_FALLBACK_PROBES; probe++) {
		c->probes = probe;
		if (ring_try(v, v->members, ring_member(v->rings, v->ring_first, ring_fallback(slot, v->code, probe)), c))
			return 0;
	}
	c->probes = LIMIT_FALLBACK_PROBES + 1;
	scan.next = ring_scan_start(slot, v->member_count);
	bpf_loop(v->member_count, ring_scan_step, &scan, 0);
	if (!member_usable(c->word))
		c->word = 0;
	return 0;
}

/* ring_choose picks the member of a flow. */
static __always_inline void ring_choose(const struct ring_view *v, __u64 hash, struct ring_choice *c)
{
	__u32 slot = ring_slot(hash, v->code);

	c->word = 0;
	c->probes = 0;
	if (!ring_try(v, v->members, ring_member(v->rings, v->ring_first, slot), c))
		ring_walk(v, slot, c);
}

#endif
