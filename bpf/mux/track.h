/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Records of connections (abi/connection.h): what was sent by each to a member. They are opened by segments with a valid cookie alone, which shows that the client
 * got the server's SYN-ACK, or guessed: SYNs open none, and of forged cookies N in 32,768 do, of N servers. A new record is on probation until a packet that is no copy
 * of the first names the same member. Nothing depends on records: without one a packet goes the same way.
 *
 * A record is opened and freed in constant time, and without locks: free ones are on stacks, one for each CPU, and no program interrupts another on its CPU. A
 * CPU that has few asks the depot for a batch, one that has many gives it one. */
#ifndef SHUNT_MUX_TRACK_H
#define SHUNT_MUX_TRACK_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "lib/flow.h"
#include "lib/parse.h"
#include "mux/find.h"
#include "mux/identity.h"
#include "mux/tables.h"
#include "mux/verdict.h"

/* track_head is how many indices this CPU's stack has. */
static __always_inline __u64 *track_head(void)
{
	__u32 at = bpf_get_smp_processor_id() * LIMIT_DATAGRAM_REGION;

	return bpf_map_lookup_elem(&track_heads, &at);
}

/* track_slot is a place of this CPU's stack, from the lowest up. */
static __always_inline __u64 *track_slot(__u64 at)
{
	__u32 index = bpf_get_smp_processor_id() * track_region + at;

	return at < track_region ? bpf_map_lookup_elem(&track_stacks, &index) : 0;
}

/* track_refill puts a batch of the depot on this CPU's stack, which has room for it. */
__attribute__((noinline)) int track_refill(void)
{
	__u32 zero = 0, i;
	struct connection_batch *batch = bpf_map_lookup_elem(&track_batches, &zero);
	__u64 *head = track_head(), n;

	if (!batch || !head || bpf_map_pop_elem(&track_depot, batch))
		return 0;
	n = *head;
#pragma clang loop unroll(disable)
	for (i = 0; i < LIMIT_CONNECTION_BATCH; i++) {
		__u64 *slot = track_slot(n);

		if (i >= batch->count || !slot)
			break;
		*slot = batch->indices[i];
		n++;
	}
	*head = n;
	return 0;
}

/* track_stow gives the depot a batch of this CPU's stack, which has more. */
__attribute__((noinline)) int track_stow(void)
{
	__u32 zero = 0, i;
	struct connection_batch *batch = bpf_map_lookup_elem(&track_batches, &zero);
	__u64 *head = track_head(), n;

	if (!batch || !head)
		return 0;
	n = *head;
#pragma clang loop unroll(disable)
	for (i = 0; i < LIMIT_CONNECTION_BATCH; i++) {
		__u64 *slot = track_slot(--n);

		if (!slot)
			return 0;
		batch->indices[i] = *slot;
	}
	batch->count = LIMIT_CONNECTION_BATCH;
	if (!bpf_map_push_elem(&track_depot, batch, BPF_ANY))
		*head = n;
	return 0;
}

/* track_take takes the index of a free record, + 1; 0: there is none. */
static __always_inline __u32 track_take(void)
{
	__u64 *head = track_head();
	__u64 *slot;

	if (!head)
		return 0;
	if (*head <= track_region / 4)
		track_refill();
	slot = track_slot(*head - 1);
	if (!slot)
		return 0;
	--*head;
	return *slot + 1;
}

/* track_room says whether this CPU's stack has room for one more. */
static __always_inline int track_room(void)
{
	__u64 *head = track_head();

	if (!head)
		return 0;
	if (*head >= track_region - track_region / 4)
		track_stow();
	return *head < track_region;
}

/* track_give puts an index on this CPU's stack, which has room. */
static __always_inline void track_give(__u32 index)
{
	__u64 *head = track_head();
	__u64 *slot = head ? track_slot(*head) : 0;

	if (!slot)
		return;
	*slot = index;
	++*head;
}

/* track_drop takes entry `e` away from its place, and frees its record; this CPU's stack has room. Who comes late finds nothing to do. */
__attribute__((noinline)) int track_drop(struct flow_bucket *b __arg_nonnull, __u32 at, __u64 e)
{
	__u32 index = flow_member(e);
	struct track_record *r = bpf_map_lookup_elem(&connections, &index);

	if (!b || at >= LIMIT_FLOW_BUCKET || __sync_val_compare_and_swap(&b->entries[at], e, 0) != e)
		return 0;
	if (r)
		*(volatile __u64 *)&r->hash = 0;
	track_give(index);
	return 1;
}

/* track_rid takes away the entry at a place if it is one of the flow whose entry is `e`. It may be proven meanwhile, once. */
__attribute__((noinline)) int track_rid(struct flow_bucket *b __arg_nonnull, __u32 at, __u64 e)
{
	if (!b || at >= LIMIT_FLOW_BUCKET)
		return 0;
#pragma clang loop unroll(disable)
	for (__u32 tries = 0; tries < 2; tries++) {
		__u64 now = flow_load(b, at);

		if (!flow_class(now) || (now ^ e) >> FLOW_FINGERPRINT_SHIFT || track_drop(b, at, now))
			break;
	}
	return 0;
}

/* track_single leaves one of the entries that a flow has in its bucket, whose own at `at` is `e`: two CPUs may have opened it at once. The one in the lower place
 * stays, whoever looks. */
static __always_inline void track_single(struct flow_bucket *b, __u32 at, __u64 e)
{
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < LIMIT_FLOW_BUCKET; i++) {
		__u64 other = flow_load(b, i);

		if (i == at || !flow_class(other) || (other ^ e) >> FLOW_FINGERPRINT_SHIFT)
			continue;
		track_rid(b, i > at ? i : at, e);
		if (i < at)
			return;
	}
}

/* track_oldest is the entry that is on probation for longest; 0: fewer than `least` are on it. */
static __always_inline __u64 track_oldest(const struct flow_bucket *b, __u64 now, __u32 least)
{
	__u64 found = 0;
	__u32 n = 0;

#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < LIMIT_FLOW_BUCKET; i++) {
		__u64 e = flow_load(b, i);

		if (flow_class(e) != FLOW_CLASS_UNTRUSTED)
			continue;
		if (!n++ || flow_age(e, now) > flow_age(found, now))
			found = e;
	}
	return n < least ? 0 : found;
}

/* track_place is the place that a new entry takes: its home, or the first one that is empty; LIMIT_FLOW_BUCKET: there is none. */
static __always_inline __u32 track_place(const struct flow_bucket *b, __u64 hash)
{
	return flow_load(b, flow_home(hash)) ? flow_place(b, 0) : flow_home(hash);
}

/* What became of a packet: how many bytes it has, whose its connection is, its flags. */
struct track_packet {
	__u64 hash;
	__u64 now; /* jiffies */
	__u32 bytes;
	__u32 whose;
	__u32 segment;
	__u32 tick;
};

/* track_seat takes a free record for a newcomer, and a place, which it gives: the index + 1; 0: one of them is not there. */
__attribute__((noinline)) __u32 track_seat(struct flow_bucket *b __arg_nonnull, __u64 hash, __u32 *at __arg_nonnull)
{
	if (!b || !at)
		return 0;
	*at = track_place(b, hash);
	return *at < LIMIT_FLOW_BUCKET ? track_take() : 0;
}

/* track_admit is track_seat, but on probation are no more than may be: the oldest gives way, also when there is nothing free. Who is proven stays. */
static __always_inline __u32 track_admit(struct flow_bucket *b, const struct track_packet *t, __u32 *at)
{
	__u64 oldest = track_oldest(b, t->now, LIMIT_CONNECTION_NEW);
	__u32 index = oldest ? 0 : track_seat(b, t->hash, at);

	if (index)
		return index;
	if (!oldest)
		oldest = track_oldest(b, t->now, 1);
	if (!oldest || !track_room())
		return 0;
	if (track_drop(b, flow_place(b, oldest), oldest))
		note(MUX_REASON_TRACK_DISPLACED);
	return track_seat(b, t->hash, at);
}

/* track_open gives a flow a record with its first packet: true when that is done, or never will be. */
__attribute__((noinline)) int track_open(struct flow_bucket *b __arg_nonnull, const struct track_packet *t __arg_nonnull)
{
	struct track_record *r;
	__u32 at = LIMIT_FLOW_BUCKET, index;
	__u64 e;

	if (!b || !t)
		return 1;
	index = track_admit(b, t, &at);
	if (!index) {
		note(MUX_REASON_TRACK_FULL);
		return 1;
	}
	index--;
	r = bpf_map_lookup_elem(&connections, &index);
	if (!r)
		return 1;
	r->whose = t->whose | (t->segment & SEGMENT_FIN ? 1U << CONNECTION_CLOSING_SHIFT : 0);
	r->last = t->tick;
	r->packets = 1;
	r->bytes = t->bytes;
	*(volatile __u64 *)&r->hash = t->hash;
	e = flow_entry(t->hash, index, FLOW_CLASS_UNTRUSTED, t->now);
	if (at < LIMIT_FLOW_BUCKET && !__sync_val_compare_and_swap(&b->entries[at], 0, e)) {
		track_single(b, at, e);
		return 1;
	}
	/* Another CPU was faster: with the same flow, or another one. */
	*(volatile __u64 *)&r->hash = 0;
	track_give(index);
	return 0;
}

/* track_shows says whether a packet of a record on probation proves it: it is no copy of what came before, but of another tick, another length, or with FIN. */
static __always_inline int track_shows(const struct track_record *r, const struct track_packet *t)
{
	return t->tick != *(const volatile __u32 *)&r->last || t->bytes * r->packets != r->bytes ||
	       (t->segment & SEGMENT_FIN && !(r->whose >> CONNECTION_CLOSING_SHIFT));
}

/* track_proven is an entry off probation. */
static __always_inline __u64 track_proven(__u64 e)
{
	return (e & ~(3ULL << FLOW_CLASS_SHIFT)) | FLOW_CLASS_TRUSTED << FLOW_CLASS_SHIFT;
}

/* track_prove takes entry `e` off probation, if it is still there. */
static __always_inline void track_prove(struct flow_bucket *b, __u64 e)
{
	__u32 at = flow_place(b, e);

	if (at < LIMIT_FLOW_BUCKET)
		__sync_val_compare_and_swap(&b->entries[at], e, track_proven(e));
}

/* track_seen counts a packet of the flow with entry `e` and record `r`; RST ends it. */
static __always_inline void track_seen(struct flow_bucket *b, __u64 e, struct track_record *r, const struct track_packet *t)
{
	__u32 closing = 1U << CONNECTION_CLOSING_SHIFT;

	if (t->segment & SEGMENT_RST && track_room()) {
		if (!track_drop(b, flow_place(b, e), e))
			track_drop(b, flow_place(b, track_proven(e)), track_proven(e));
		return;
	}
	/* The same addresses and ports, and another member: another connection. */
	if ((r->whose ^ t->whose) & ~closing) {
		r->packets = 0;
		r->bytes = 0;
		*(volatile __u32 *)&r->whose = t->whose;
	} else if (flow_class(e) == FLOW_CLASS_UNTRUSTED && track_shows(r, t)) {
		track_prove(b, e);
	}
	if (t->segment & (SEGMENT_FIN | SEGMENT_RST) && !(r->whose & closing))
		*(volatile __u32 *)&r->whose = t->whose | closing;
	if (r->last != t->tick)
		*(volatile __u32 *)&r->last = t->tick;
	__sync_fetch_and_add(&r->packets, 1);
	__sync_fetch_and_add(&r->bytes, t->bytes);
}

/* track counts a packet whose cookie or connection id named member `id` of the endpoint of a slot. */
__attribute__((noinline)) int track(const struct packet *p __arg_nonnull, __u32 slot_index, __u32 id)
{
	const struct endpoint_slot *slot = slot_at(slot_index);
	__u32 zero = 0, at;
	const struct mux_config *c = bpf_map_lookup_elem(&configs, &zero);
	struct track_packet t = {};
	struct flow_bucket *b;
	struct identity who;

	if (!p || !slot || !c)
		return 0;
	who = identity_of(p);
	t.bytes = p->l3_len;
	t.segment = p->segment;
	/* A fingerprint of 0 would be that of empty places. */
	t.hash = identity_hash(&c->flow_key, p, &who) | 1ULL << FLOW_FINGERPRINT_SHIFT;
	t.now = mux_now();
	t.tick = t.now >> (tick_shift & 31);
	t.whose = id | ((__u32)*(const volatile __u64 *)&slot->value - ENDPOINT_SLOT_FIRST) << CONNECTION_ENDPOINT_SHIFT;
	at = t.hash & track_mask;
	b = bpf_map_lookup_elem(&track_buckets, &at);
	if (!b)
		return 0;
#pragma clang loop unroll(disable)
	for (__u32 tries = 0; tries < 2; tries++) {
		__u64 e = flow_match(b, t.hash);
		__u32 index = flow_member(e);
		struct track_record *r;

		if (!e) {
			if (t.segment & SEGMENT_RST || track_open(b, &t))
				return 0;
			continue;
		}
		r = bpf_map_lookup_elem(&connections, &index);
		if (r && *(volatile __u64 *)&r->hash == t.hash)
			track_seen(b, e, r, &t);
		else
			note(MUX_REASON_TRACK_FULL); /* another flow's: it has the only place that this one could be found by */
		return 0;
	}
	return 0;
}

#endif
