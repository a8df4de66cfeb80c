/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The choice of a member for a new flow by the endpoint's scheduler (abi/schedule.h). internal/sched holds what the agent does for it. */
#ifndef SHUNT_MUX_SCHEDULE_H
#define SHUNT_MUX_SCHEDULE_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "lib/hash.h"
#include "lib/load.h"
#include "lib/ring.h"
#include "mux/choose.h"
#include "mux/tables.h"

/* The answer: index of the member word:32 | FLOW_FOUND, or the reason why there is none. */
#define FLOW_FOUND (1ULL << 32)

/* What a sequence is asked. */
struct schedule_query {
	__u64 word;   /* enum schedule_shift */
	__u64 range;  /* the `members` word of the slot */
};

/* schedule_usable is the index of the member word at a place of a sequence, all ones when it takes no new flows. */
static __always_inline __u32 schedule_usable(const struct schedule_query *q, __u32 at)
{
	__u32 id = ring_member(&rings, (__u32)q->word, at);

	return member_usable_word(&members, (__u32)q->range, q->range >> 32, id) ? (__u32)q->range + id : 0xffffffff;
}

/* schedule_length is the number of ids of a sequence; not 0. */
static __always_inline __u32 schedule_length(__u64 word)
{
	__u32 n = word >> SCHEDULE_LENGTH_SHIFT & 0xffffff;

	return n ? n : 1;
}

/* schedule_next goes on from this CPU's cursor of an endpoint to the next member that takes new flows. */
static __always_inline __u32 schedule_next(const struct schedule_query *q, __u32 endpoint)
{
	__u32 index = bpf_get_smp_processor_id() * endpoint_region + endpoint, length = schedule_length(q->word), found;
	__u64 *cursor = bpf_map_lookup_elem(&schedule_cursors, &index), was;
	__u32 phase, step = 0xffffffff / length + 1;

	if (!cursor)
		return 0xffffffff;
	was = *cursor;
	phase = was;
	found = 0xffffffff;
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < LIMIT_SCHEDULE_TRIES && found == 0xffffffff; i++) {
		found = schedule_usable(q, (__u64)phase * length >> SCHEDULE_COUNT_SHIFT);
		phase += step;
	}
	*cursor = ((was >> SCHEDULE_COUNT_SHIFT) + 1) << SCHEDULE_COUNT_SHIFT | phase;
	return found;
}

/* schedule_load is the word of a member's load. */
static __always_inline __u64 *schedule_load(__u32 member)
{
	return bpf_map_lookup_elem(&member_loads, &member);
}

/* schedule_lighter takes of two members the less loaded for its weight, and counts the flow as its own. */
static __always_inline __u32 schedule_lighter(__u32 first, __u32 second)
{
	__u64 *a = schedule_load(first), *b = schedule_load(second), *taken = a, of_a, of_b;

	if (a && b) {
		of_a = *(volatile __u64 *)a;
		of_b = *(volatile __u64 *)b;
		if (of_a && of_b && load_score(of_a) > load_score(of_b)) {
			taken = b;
			first = second;
		}
	}
	if (taken)
		load_add(taken);
	return first;
}

/* schedule_drawn takes a member at one of two places that a hash says, which differ where there are two. */
static __always_inline __u32 schedule_drawn(const struct schedule_query *q, __u64 ring_hash)
{
	__u64 hash = mix64(ring_hash), length = schedule_length(q->word);
	__u32 at = (hash >> 32) * length >> 32, first = schedule_usable(q, at), second = 0xffffffff;
	int lighter = q->word >> SCHEDULE_KIND_SHIFT == SCHEDULE_LIGHTER;

	if (lighter || first == 0xffffffff) {
		at += 1 + ((hash & 0xffffffff) * (length - 1) >> 32);
		second = schedule_usable(q, at < length ? at : at - length);
	}
	if (first == 0xffffffff)
		first = second;
	if (!lighter || first == 0xffffffff)
		return first;
	return schedule_lighter(first, second == 0xffffffff ? first : second);
}

/* schedule_pick takes a member from the sequence of an endpoint, given the words `extra` and `members` of its slot and the index of its counter:
 * FLOW_FOUND | index of the member word, or 0 when there is no sequence, or nobody near by takes new flows. It counts as taken. */
__attribute__((noinline)) __u64 schedule_pick(__u64 extra, __u64 range, __u64 ring_hash, __u32 endpoint)
{
	__u32 index = (__u32)extra - 1, found;
	const struct endpoint_extra *x = bpf_map_lookup_elem(&endpoint_extras, &index);
	struct schedule_query q = { .range = range };

	if (!x)
		return 0;
	q.word = *(const volatile __u64 *)&x->schedule;
	if (!q.word)
		return 0;
	found = q.word >> SCHEDULE_KIND_SHIFT == SCHEDULE_NEXT ? schedule_next(&q, endpoint) : schedule_drawn(&q, ring_hash);
	return found == 0xffffffff ? 0 : FLOW_FOUND | found;
}

/* schedule_passed keeps up the load of a member, given the word `extra` of its endpoint's slot, when a remembered flow of it closes, or begins anew. */
__attribute__((noinline)) int schedule_passed(__u64 extra, __u32 member, __u32 closes)
{
	__u32 index = (__u32)extra - 1;
	const struct endpoint_extra *x = bpf_map_lookup_elem(&endpoint_extras, &index);
	__u64 *load = schedule_load(member);

	if (!x || !load || *(const volatile __u64 *)&x->schedule >> SCHEDULE_KIND_SHIFT != SCHEDULE_LIGHTER)
		return 0;
	if (closes)
		load_take(load);
	else
		load_add(load);
	return 0;
}

/* schedule gives a new flow with this ring hash to a member of the endpoint of a slot: as its scheduler says, or else the ring. For the first packet
 * of a flow alone, and once. */
static __always_inline __u64 schedule(const struct endpoint_slot *slot, __u64 ring_hash)
{
	__u64 ring = *(const volatile __u64 *)&slot->ring, range = *(const volatile __u64 *)&slot->members, found = 0;
	__u32 id;

	if (*(const volatile __u64 *)&slot->policy >> POLICY_FLAGS_SHIFT & ENDPOINT_SCHED)
		found = schedule_pick(*(const volatile __u64 *)&slot->extra, range, ring_hash,
				      (__u32)*(const volatile __u64 *)&slot->value - ENDPOINT_SLOT_FIRST);
	if (found)
		return found;
	if (!choose(ring, range, ring_hash, &id))
		return MUX_REASON_NO_BACKEND;
	return FLOW_FOUND | ((__u32)range + id);
}

#endif
