/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The table that leads later fragments to where their first one went. */
#ifndef SHUNT_MUX_FRAGMENTS_H
#define SHUNT_MUX_FRAGMENTS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "lib/parse.h"
#include "lib/ring.h"
#include "mux/aside.h"
#include "mux/find.h"
#include "mux/snat.h"
#include "mux/tables.h"
#include "mux/verdict.h"

/* fragment_key_of is the key of the packet that a fragment is of. */
static __always_inline void fragment_key_of(struct fragment_key *k, const struct packet *p, __u32 id)
{
	k->src_hi = p->src_hi;
	k->src_lo = p->src_lo;
	k->dst_hi = p->dst_hi;
	k->dst_lo = p->dst_lo;
	k->id = id;
	k->scope = p->family == 4 ? p->protocol : 0;
}

/* slot_of is the slot with an index when that is an endpoint of the packet's VIP still. */
static __always_inline struct endpoint_slot *slot_of(const struct packet *p, __u32 index)
{
	struct endpoint_slot *s = slot_at(index);
	const __u64 *vip;

	if (!s || *(volatile __u64 *)&s->value < ENDPOINT_SLOT_FIRST)
		return 0;
	vip = (const __u64 *)s->vip;
	return vip[0] == p->dst_hi && vip[1] == p->dst_lo ? s : 0;
}

/* slot_is_vip says whether a slot is that of a VIP as such. */
static __always_inline int slot_is_vip(const struct endpoint_slot *slot)
{
	return !(slot->key >> 32 & 0xff);
}

/* fragment_range is the members that a first fragment to a slot may have gone to: of a VIP as such those with ports of it. */
static __always_inline __u64 fragment_range(const struct endpoint_slot *slot)
{
	const struct snat_block *b;

	if (!slot_is_vip(slot))
		return *(const volatile __u64 *)&slot->members;
	b = snat_block_of(slot);
	return b ? b->members : 0;
}

/* fragment_recall finds where the first fragment went: true when that is a member still that can be used, whose word it
 * gives. One that cannot is no place to go: the packet is lost there anyway. */
static __always_inline int fragment_recall(const struct packet *p, const struct fragment *f, __u64 *word)
{
	struct endpoint_slot *slot;
	__u32 member = f->member;
	__u64 range, *w;

	if ((__u32)mux_now() - f->time >= LIMIT_FRAGMENT_SECONDS * second)
		return 0;
	slot = slot_of(p, f->slot);
	if (!slot)
		return 0;
	range = fragment_range(slot);
	w = bpf_map_lookup_elem(&members, &member);
	if (!w || member - (__u32)range >= (__u32)(range >> 32))
		return 0;
	*word = *(volatile __u64 *)w;
	return member_keeps(*word, *(const volatile __u64 *)&slot->policy >> POLICY_FLAGS_SHIFT);
}

/* fragment_allowed takes a token from the bucket of the VIP of a slot. Without a rate the first fragments of one VIP would evict those of all others from the table
 * before their later fragments arrive. */
static __always_inline int fragment_allowed(__u32 slot)
{
	const struct endpoint_slot *s = slot_at(slot);
	const __u64 *vip = s ? (const __u64 *)s->vip : 0;
	__u32 found = vip ? find_vip(vip[0], vip[1]) : 0, index;
	__u64 *bucket;

	s = found ? slot_at(found - 1) : 0;
	if (!s)
		return 0;
	index = *(const volatile __u64 *)&s->value - ENDPOINT_SLOT_FIRST;
	bucket = bpf_map_lookup_elem(&fragment_rates, &index);
	return bucket && mux_take(bucket, LIMIT_FRAGMENT_RATE);
}

/* fragment_remember notes that the first fragment `aside` is about went to this member of the endpoint of a slot. */
static __noinline void fragment_remember(const struct aside *aside, __u32 slot, __u32 member, __u64 hash)
{
	struct fragment f = { .slot = slot, .member = member, .hash = hash, .time = mux_now() };

	if (!fragment_allowed(slot)) {
		note(MUX_REASON_FRAGMENT_LIMITED);
		return;
	}
	bpf_map_update_elem(&fragments, &aside->fragment, &f, BPF_ANY);
}

#endif
