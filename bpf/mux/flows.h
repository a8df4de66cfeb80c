/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The flow table: what is done when the usual packet's short way does not do. */
#ifndef SHUNT_MUX_FLOWS_H
#define SHUNT_MUX_FLOWS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "lib/flow.h"
#include "lib/parse.h"
#include "lib/ring.h"
#include "mux/admit.h"
#include "mux/choose.h"
#include "mux/schedule.h"
#include "mux/shares.h"
#include "mux/tables.h"
#include "mux/verdict.h"

/* What the flow table is asked. */
struct flow_query {
	__u64 hash;      /* under the flow key */
	__u64 ring_hash;
	__u64 ring;      /* words of the endpoint's slot */
	__u64 range;
	__u64 policy;
	__u64 extra;
	__u32 segment;
	__u32 peek;      /* nothing is written */
	__u32 first;     /* it may be the first packet of a flow: the scheduler is asked */
	__u32 endpoint;  /* index of the endpoint's counter */
};

/* The bit of a hash that becomes FLOW_CLIENT_SHIFT of its fingerprint. */
#define FLOW_CLIENT (1ULL << FLOW_CLIENT_SHIFT)

/* In the segment that flow_settle is given: nothing is to be written. */
#define FLOW_PEEK 0x100

/* The packet may be the first of a flow: a SYN, or one of a protocol without connections. */
#define FLOW_FIRST 0x200

/* In the segment that flow_settle is given: a flow that is not known stays so. */
#define FLOW_UNKNOWN 0x400

/* In the segment that flow_settle is given: the ring chooses, not the scheduler. */
#define FLOW_BY_RING 0x800

/* flow_bucket_of is the bucket of a flow. */
static __always_inline struct flow_bucket *flow_bucket_of(__u64 hash)
{
	__u32 index = hash & flow_mask;

	return bpf_map_lookup_elem(&flows, &index);
}

/* flow_here is the index of an entry's member word if that is one of the endpoint's, all ones if not. Words that were
 * the endpoint's before its block moved count as what they are now. */
static __always_inline __u32 flow_here(const struct flow_query *q, __u64 e)
{
	__u32 member = flow_member(e), count = q->range >> 32, index = (__u32)q->extra - 1;
	struct endpoint_extra *x;
	__u64 before;

	if (member - (__u32)q->range < count)
		return member;
	if (!(q->policy >> POLICY_FLAGS_SHIFT & ENDPOINT_MOVED))
		return 0xffffffff;
	x = bpf_map_lookup_elem(&endpoint_extras, &index);
	if (!x)
		return 0xffffffff;
	before = *(volatile __u64 *)&x->members_before;
	member -= (__u32)before;
	return member < before >> 32 && member < count ? (__u32)q->range + member : 0xffffffff;
}

/* flow_stays says whether a live flow with this class stays with the member whose word is `word`. Only the server can tell whether a SYN with the tuple of an
 * established connection begins a new one, and its answers do not pass here: anybody can send such a SYN. It goes to the flow's member, whose kernel answers with a
 * challenge ACK if the connection exists (RFC 5961 section 4), and changes nothing. */
static __always_inline int flow_stays(const struct flow_query *q, __u64 word, __u32 class)
{
	__u32 flags = q->policy >> POLICY_FLAGS_SHIFT;

	if (!(q->segment & SEGMENT_SYN))
		return member_keeps(word, flags);
	switch (class) {
	case FLOW_CLASS_TRUSTED:
		return member_keeps(word, flags);
	case FLOW_CLASS_CLOSING:
		/* With cookies the entry is for RSTs of a connection that ended (flow_close): the next one of these ports is chosen for. */
		return !(flags & ENDPOINT_COOKIE) && member_usable(word);
	}
	return member_present(word);
}

/* flow_after is the class of a flow of this class after a segment. */
static __always_inline __u32 flow_after(__u32 class, __u32 segment)
{
	if (segment & SEGMENT_SYN)
		return class == FLOW_CLASS_TRUSTED ? FLOW_CLASS_TRUSTED : FLOW_CLASS_UNTRUSTED;
	return flow_next(class, segment);
}

/* flow_ask is the question that a packet of the endpoint of a slot puts. */
static __always_inline struct flow_query flow_ask(const struct endpoint_slot *slot, __u64 hash, __u64 ring_hash, __u32 segment)
{
	struct flow_query q = { .hash = hash, .ring_hash = ring_hash, .segment = segment & 0xff };

	q.peek = segment & FLOW_PEEK;
	q.first = segment & FLOW_FIRST;
	q.endpoint = (__u32)*(const volatile __u64 *)&slot->value - ENDPOINT_SLOT_FIRST;
	q.policy = *(const volatile __u64 *)&slot->policy;
	/* Ring before members: the agent publishes them the other way round. */
	q.ring = *(const volatile __u64 *)&slot->ring;
	q.range = *(const volatile __u64 *)&slot->members;
	q.extra = *(const volatile __u64 *)&slot->extra;
	return q;
}

/* client_idle is how long, in ticks, an endpoint remembers clients. */
static __always_inline __u64 client_idle(__u64 extra)
{
	__u32 index = (__u32)extra - 1;
	const struct endpoint_extra *x = bpf_map_lookup_elem(&endpoint_extras, &index);

	return x ? x->source_ticks : 0;
}

/* client_live is the index of the member word of a client's entry, all ones when there is none that counts. */
static __always_inline __u32 client_live(const struct flow_query *q, __u64 e, __u64 tick)
{
	__u32 here = flow_class(e) ? flow_here(q, e) : 0xffffffff;

	return flow_age(e, tick) <= client_idle(q->extra) ? here : 0xffffffff;
}

/* flow_stamp is the tick that an entry of this class is written with. */
static __always_inline __u64 flow_stamp(const struct flow_query *q, __u32 class, __u64 tick)
{
	__u32 index = (__u32)q->extra - 1;
	const struct endpoint_extra *x;

	if (class != FLOW_CLASS_UNTRUSTED || !(q->policy >> POLICY_FLAGS_SHIFT & ENDPOINT_SCHED))
		return tick;
	x = bpf_map_lookup_elem(&endpoint_extras, &index);
	return x ? tick - x->untrusted_age : tick;
}

/* flow_hit is for a live entry `e` of member `member`: its answer, or 0 when a member must be chosen. */
static __always_inline __u64 flow_hit(const struct flow_query *q, struct flow_bucket *b, __u64 e, __u32 member, __u64 tick)
{
	__u32 class = flow_class(e), at, next;
	__u64 *word = bpf_map_lookup_elem(&members, &member);

	if (!word || !flow_stays(q, *(volatile __u64 *)word, class))
		return 0;
	next = flow_after(class, q->segment);
	if (q->peek || (next == class && member == flow_member(e) && flow_age(e, tick) < 2))
		return FLOW_FOUND | member;
	tick = flow_stamp(q, next, tick);
	at = flow_place(b, e);
	if (at < LIMIT_FLOW_BUCKET)
		*(volatile __u64 *)&b->entries[at] = flow_entry(q->hash, member, next, tick);
	/* A SYN adds a connection to the load only where a FIN or RST took one off: in place of a trusted flow it replaces a connection that is still counted. */
	if (q->policy >> POLICY_FLAGS_SHIFT & ENDPOINT_SCHED && next != class &&
	    (next == FLOW_CLASS_CLOSING || (q->segment & SEGMENT_SYN && class == FLOW_CLASS_CLOSING)))
		schedule_passed(q->extra, member, next == FLOW_CLASS_CLOSING);
	return FLOW_FOUND | member;
}

/* flow_choose gives a flow a member: by the endpoint's scheduler if it may be new, else by the ring. As flow_settle answers. */
static __always_inline __u64 flow_choose(const struct flow_query *q)
{
	__u64 picked;
	__u32 id;

	if (q->first && q->policy >> POLICY_FLAGS_SHIFT & ENDPOINT_SCHED) {
		picked = schedule_pick(q->extra, q->range, q->ring_hash, q->endpoint);
		if (picked)
			return picked;
	}
	if (!choose(q->ring, q->range, q->ring_hash, &id))
		return MUX_REASON_NO_BACKEND;
	return FLOW_FOUND | ((__u32)q->range + id);
}

/* flow_newcomer returns the entry that a new flow of the endpoint with member word `member` takes in the bucket of its hash, LIMIT_FLOW_BUCKET
 * if there is none. It is flow_room's as long as that is free, or no VIP is over its share. Else the flow takes the oldest entry of a VIP that is over its share;
 * a flow of such a VIP itself takes no trusted entry and none of a VIP within its share. A function of its own because of the
 * stack. */
__attribute__((noinline)) __u32 flow_newcomer(__u64 hash, __u64 tick, __u32 member)
{
	struct flow_bucket *b = flow_bucket_of(hash);
	__u32 zero = 0, at, other;
	struct mux_config *c = bpf_map_lookup_elem(&configs, &zero);
	__u64 idle, over;

	if (!b || !c)
		return LIMIT_FLOW_BUCKET;
	idle = *(volatile __u64 *)&c->idle;
	at = flow_room(b, flow_home(hash), idle, tick);
	if (!*(volatile __u64 *)&c->over || (at < LIMIT_FLOW_BUCKET && flow_free(flow_load(b, at), idle, tick)))
		return at;
	over = over_share(member);
	other = flow_over(b, over, tick);
	if (over)
		return other;
	if (other == LIMIT_FLOW_BUCKET)
		return at;
	note(MUX_REASON_FLOW_DISPLACED);
	return other;
}

/* flow_close makes the flow with a hash lead to member word `member` for the idle time of untrusted flows, as closing. The FIN of a connection with cookies
 * calls it: the client's kernel may answer later data with RSTs without timestamps, which must find the server (RFC 7323 section 3.2). */
__attribute__((noinline)) int flow_close(__u64 hash, __u32 member)
{
	struct flow_bucket *b = flow_bucket_of(hash);
	__u64 tick = mux_tick(), e;
	__u32 at;

	if (!b)
		return 0;
	e = flow_match(b, hash);
	if (flow_class(e) == FLOW_CLASS_CLOSING && flow_member(e) == member && flow_age(e, tick) < 2)
		return 0;
	at = e ? flow_place(b, e) : LIMIT_FLOW_BUCKET;
	if (at == LIMIT_FLOW_BUCKET)
		at = flow_newcomer(hash, tick, member);
	if (at < LIMIT_FLOW_BUCKET)
		*(volatile __u64 *)&b->entries[at] = flow_entry(hash, member, FLOW_CLASS_CLOSING, tick);
	return 0;
}

/* flow_seat is the entry that will remember a flow, which has entry `e` or none: LIMIT_FLOW_BUCKET when there is no room. What is not
 * remembered is for the ring alone, where the flow's later packets find the same. */
static __always_inline __u32 flow_seat(struct flow_query *q, struct flow_bucket *b, __u64 e, __u64 tick)
{
	__u32 at = e ? flow_place(b, e) : LIMIT_FLOW_BUCKET;

	/* An endpoint without members evicts no entry: no member will be chosen, and its range names no VIP whose share could count. */
	if (at == LIMIT_FLOW_BUCKET && q->range >> 32)
		at = flow_newcomer(q->hash, tick, (__u32)q->range);
	if (at == LIMIT_FLOW_BUCKET)
		q->first = 0;
	return at;
}

/* client_settle finds the member for new flows of a client: the remembered one if it takes new flows, else one chosen by
 * the ring, which is remembered from then on. Answers as flow_settle, and is asked whenever a flow of the client is: so
 * clients are known as long as their flows go on, and trusted as soon as any of these is. */
__attribute__((noinline)) __u64 client_settle(__u64 hash, __u64 ring_hash, __u32 index, __u32 segment)
{
	struct endpoint_slot *slot = bpf_map_lookup_elem(&endpoint_slots, &index);
	struct flow_bucket *b = flow_bucket_of(hash);
	__u64 tick = mux_tick(), e, answer;
	struct flow_query q;
	__u32 here, at, class = FLOW_CLASS_UNTRUSTED;

	if (!b || !slot)
		return MUX_REASON_INTERNAL;
	q = flow_ask(slot, hash, ring_hash, segment);
	e = flow_match(b, hash);
	here = client_live(&q, e, tick);
	if (here != 0xffffffff && member_usable_word(&members, here, 1, 0)) {
		class = flow_is_later(segment) ? FLOW_CLASS_TRUSTED : flow_class(e);
		answer = FLOW_FOUND | here;
		if (class == flow_class(e) && flow_age(e, tick) < 2 && here == flow_member(e))
			return answer;
	} else {
		answer = 0;
	}
	at = q.peek ? LIMIT_FLOW_BUCKET : flow_seat(&q, b, e, tick);
	if (!answer)
		answer = flow_choose(&q);
	if (!(answer & FLOW_FOUND) || q.peek)
		return answer;
	if (at < LIMIT_FLOW_BUCKET)
		*(volatile __u64 *)&b->entries[at] = flow_entry(hash, answer, class, tick);
	return answer;
}

/* flow_settle finds the member of a flow to the endpoint of slot `index`, remembered or chosen, and remembers it. `choice`
 * is what is chosen: as this function answers, or 0 for what the scheduler of a packet with FLOW_FIRST says, and of others the ring. */
__attribute__((noinline)) __u64 flow_settle(__u64 hash, __u64 ring_hash, __u32 index, __u32 segment, __u64 choice)
{
	struct endpoint_slot *slot = bpf_map_lookup_elem(&endpoint_slots, &index);
	struct flow_bucket *b = flow_bucket_of(hash);
	struct flow_query asked, *q = &asked;
	__u32 here, class, at, live;
	__u64 tick = mux_tick(), e, answer;
	int reason;

	if (!b || !slot)
		return MUX_REASON_INTERNAL;
	asked = flow_ask(slot, hash, ring_hash, segment);
	e = flow_match(b, q->hash);
	class = flow_class(e);
	here = class ? flow_here(q, e) : 0xffffffff;
	live = here != 0xffffffff && flow_age(e, tick) <= flow_limit(q->policy, class);
	if (live) {
		answer = flow_hit(q, b, e, here, tick);
		if (answer)
			return answer;
		if (!(q->segment & SEGMENT_SYN) && !q->peek)
			note(MUX_REASON_FLOW_MOVED);
	}
	if (segment & FLOW_UNKNOWN && !live)
		q->peek = 1;
	if (!q->peek && q->policy >> POLICY_FLAGS_SHIFT & ENDPOINT_ADMIT && !live && !(q->segment & SEGMENT_SYN)) {
		reason = admit_flow(q->extra);
		if (reason)
			return reason;
	}
	at = q->peek ? LIMIT_FLOW_BUCKET : flow_seat(q, b, e, tick);
	answer = choice ? choice : flow_choose(q);
	if (!(answer & FLOW_FOUND) || q->peek)
		return answer;
	class = live && !(q->segment & SEGMENT_SYN) ? flow_next(class, q->segment) : flow_first(q->segment);
	tick = flow_stamp(q, class, tick);
	if (at < LIMIT_FLOW_BUCKET)
		*(volatile __u64 *)&b->entries[at] = flow_entry(q->hash, answer, class, tick);
	else
		note(MUX_REASON_FLOW_TABLE_FULL);
	return answer;
}

#endif
