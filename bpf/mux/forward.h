/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The middle of the walk: from the endpoint to the member. */
#ifndef SHUNT_MUX_FORWARD_H
#define SHUNT_MUX_FORWARD_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "lib/flow.h"
#include "lib/parse.h"
#include "lib/ring.h"
#include "mux/admit.h"
#include "mux/choose.h"
#include "mux/cookie.h"
#include "mux/find.h"
#include "mux/flows.h"
#include "mux/fragments.h"
#include "mux/identity.h"
#include "mux/martian.h"
#include "mux/nat_find.h"
#include "mux/quic.h"
#include "mux/send.h"
#include "mux/snat.h"
#include "mux/tables.h"
#include "mux/track.h"
#include "mux/verdict.h"

/* What an endpoint's slot says to a packet: its words, and what the packet is to the endpoint. */
struct orders {
	__u64 policy;
	struct identity identity;
	__u64 keep; /* bits of the flow hash that count */
	__u32 segment;
	__u32 rsv;
};

/* slot_policy, slot_extra, slot_ring and slot_members load words of a slot where they are needed. Ring goes before members: the agent
 * publishes them the other way round. */
static __always_inline __u64 slot_policy(const struct endpoint_slot *slot)
{
	return *(const volatile __u64 *)&slot->policy;
}

static __always_inline __u64 slot_extra(const struct endpoint_slot *slot)
{
	return *(const volatile __u64 *)&slot->extra;
}

static __always_inline __u64 slot_ring(const struct endpoint_slot *slot)
{
	return *(const volatile __u64 *)&slot->ring;
}

static __always_inline __u64 slot_members(const struct endpoint_slot *slot)
{
	return *(const volatile __u64 *)&slot->members;
}

/* settle_flow is flow_settle for a packet with these orders. Where clients are remembered, the ring is asked about them. */
static __always_inline __u64 settle_flow(const struct mux_config *c, const struct packet *p, const struct orders *o,
					 const struct endpoint_slot *slot, __u32 index, __u64 hash, __u32 segment)
{
	struct identity who = o->identity;
	__u64 ring, client, answer, choice = 0;

	if (!(segment & (FLOW_PEEK | FLOW_UNKNOWN | FLOW_BY_RING)) && (p->protocol != PROTOCOL_TCP || segment & SEGMENT_SYN))
		segment |= FLOW_FIRST;
	/* The ring is asked about addresses and ports: what comes later with these alone finds the same. */
	if (o->policy >> POLICY_FLAGS_SHIFT & ENDPOINT_QUIC)
		who.word &= ~IDENTITY_VNI;
	if (o->policy >> POLICY_FLAGS_SHIFT & ENDPOINT_SOURCE)
		identity_client(&who, slot);
	ring = ring_hash(c, slot, slot_ring(slot), p, &who);
	if (o->policy >> POLICY_FLAGS_SHIFT & ENDPOINT_SOURCE) {
		client = identity_hash(&c->flow_key, p, &who) | FLOW_CLIENT;
		choice = client_settle(client, ring, index, segment);
	}
	answer = flow_settle(hash, ring, index, segment, choice);
	if (who.word != o->identity.word && o->policy >> POLICY_FLAGS_SHIFT & ENDPOINT_QUIC && answer & FLOW_FOUND)
		quic_also(identity_hash(&c->flow_key, p, &who), answer);
	return answer;
}

/* orders_of is what the policy word of a slot says to a packet. */
static __always_inline struct orders orders_of(const struct packet *p, const struct endpoint_slot *slot, __u64 policy)
{
	struct orders o = { .policy = policy, .identity = identity_of(p), .keep = ~0ULL, .segment = p->segment };
	__u32 flags = policy >> POLICY_FLAGS_SHIFT;

	if (flags & ENDPOINT_UNUSUAL) {
		identity_narrow(&o.identity, p, slot, flags);
		if (flags & ENDPOINT_SOURCE)
			o.keep = ~FLOW_CLIENT;
	}
	return o;
}

/* remembered finds the member of a flow in the flow table, or has it chosen and remembered: answers as flow_settle. The
 * short way is that of a trusted flow's packet that changes nothing. */
static __always_inline __u64 remembered(const struct mux_config *c, const struct packet *p, const struct orders *o,
					const struct endpoint_slot *slot, __u32 index, __u64 hash, __u64 range,
					__u64 *word)
{
	struct flow_bucket *b = flow_bucket_of(hash);
	__u64 e, answer;
	__u32 member;

	if (!b)
		return MUX_REASON_INTERNAL;
	e = flow_match(b, hash);
	member = flow_member(e);
	if (flow_class(e) == FLOW_CLASS_TRUSTED && ((mux_tick() - e + 1) & 0xffff) <= 2 &&
	    member - (__u32)range < range >> 32 && flow_is_later(o->segment)) {
		*word = member_word(member);
		if (member_keeps(*word, o->policy >> POLICY_FLAGS_SHIFT))
			return FLOW_FOUND | member;
	}
	if (!source_allowed(c, p))
		return MUX_REASON_BAD_SOURCE;
	answer = settle_flow(c, p, o, slot, index, hash, o->segment);
	*word = answer & FLOW_FOUND ? member_word(answer) : 0;
	/* A member that died in between drops this packet: it would have been sent to a dead server. */
	return answer & FLOW_FOUND && !member_keeps(*word, o->policy >> POLICY_FLAGS_SHIFT) ? MUX_REASON_NO_BACKEND : answer;
}

/* flow_known returns 1 if the flow table has a live entry for the packet's flow, else 0: on an endpoint with ENDPOINT_FLOWS_FIRST such an entry goes before
 * the packet's cookie or connection id. The flow may be older than the endpoint's cookies: the server's own timestamp in its echo, or a connection id that
 * the server chose freely, can read as another member's. QUIC's untrusted entries do not count: they are those of connections that begin, several of which
 * may share a socket, and only affinity flow makes trusted ones. */
__attribute__((noinline)) int flow_known(const struct packet *p __arg_nonnull, __u32 index)
{
	const struct endpoint_slot *slot = slot_at(index);
	__u32 zero = 0, class;
	const struct mux_config *c = bpf_map_lookup_elem(&configs, &zero);
	const struct flow_bucket *b;
	struct flow_query q;
	struct orders o;
	__u64 e;

	if (!p || !slot || !c)
		return 0;
	o = orders_of(p, slot, slot_policy(slot));
	q = flow_ask(slot, identity_hash(&c->flow_key, p, &o.identity) & o.keep, 0, 0);
	b = flow_bucket_of(q.hash);
	if (!b)
		return 0;
	e = flow_match(b, q.hash);
	class = flow_class(e);
	if (!class || (class == FLOW_CLASS_UNTRUSTED && q.policy >> POLICY_FLAGS_SHIFT & ENDPOINT_QUIC))
		return 0;
	return flow_here(&q, e) != 0xffffffff && flow_age(e, mux_tick()) <= flow_limit(q.policy, class);
}

/* forward sends a packet to a member of the endpoint of slot `index`: a verdict, or NAT_DUE. */
static __always_inline int forward(struct xdp_md *ctx, const struct packet *p, struct endpoint_slot *slot, __u32 index,
				   struct aside *aside)
{
	__u64 policy = slot_policy(slot), hash, word, answer = 0, ring, range;
	__u32 zero = 0, id, flags = policy >> POLICY_FLAGS_SHIFT;
	struct mux_config *c = bpf_map_lookup_elem(&configs, &zero);
	struct orders o;
	int reason;

	if (!c)
		return drop(MUX_REASON_INTERNAL);
	if (p->ttl <= 1)
		return refuse(slot_value(slot), p->l3_len, MUX_REASON_TTL_EXPIRED);
	if (!aside_checked(aside) && from_vip(p))
		return refuse(slot_value(slot), p->l3_len, MUX_REASON_BAD_SOURCE);
	if (flags & ENDPOINT_UNUSUAL) {
		reason = flags & ENDPOINT_ADMIT ? admit(slot_extra(slot), p->src_hi, p->src_lo) : 0;
		if (!reason && flags & ENDPOINT_ADMIT && p->segment & SEGMENT_SYN)
			reason = admit_flow(slot_extra(slot));
		if (reason)
			return refuse(slot_value(slot), p->l3_len, reason);
		if (flags & ENDPOINT_NAT)
			return nat_give(p, index, aside);
	}
	if (aside_how(aside) & ASIDE_KNOWN) {
		if (aside->how & ASIDE_LATER)
			note(MUX_REASON_FRAGMENT_FOLLOWED);
		if (aside->how & ASIDE_SNAT) {
			reason = admit_answer(slot_extra(slot));
			if (reason)
				return refuse(slot_value(slot), p->l3_len, reason);
			note(MUX_REASON_SNAT_FORWARDED);
		}
		return send_member(ctx, c, p, slot, slot_members(slot), aside->first.member, aside->word, aside->first.hash,
				   aside);
	}
	/* First what the packet itself says, unless the flow table goes before it. Nothing else is looked at then. */
	if (flags & ENDPOINT_FLOWS_FIRST && flow_known(p, index)) {
		answer = 0;
	} else if (flags & ENDPOINT_COOKIE) {
		range = slot_members(slot);
		answer = by_cookie(ctx, p, policy, range, &word, &hash);
		if (answer & FLOW_FOUND) {
			if (!source_allowed(c, p))
				return refuse(slot_value(slot), p->l3_len, MUX_REASON_BAD_SOURCE);
			if (flags & ENDPOINT_TRACK)
				track(p, index, (__u32)answer - (__u32)range);
			/* The outer source and flow label take the lowest bits, in clear. Bits 16 to 47 make no cookie, but for 1 flow in 800 (cookie_factor). */
			hash >>= 16;
			if (p->segment & SEGMENT_FIN) {
				o = orders_of(p, slot, policy);
				flow_close(identity_hash(&c->flow_key, p, &o.identity) & o.keep, answer);
			}
			goto send;
		}
	} else if (flags & ENDPOINT_QUIC) {
		range = slot_members(slot);
		answer = quic_find(ctx, policy, range, p->l4, ETH_HLEN + p->l3_len);
		if (answer & FLOW_FOUND) {
			word = member_word(answer);
			if (!member_keeps(word, flags))
				return refuse(slot_value(slot), p->l3_len, MUX_REASON_NO_BACKEND);
			if (!source_allowed(c, p))
				return refuse(slot_value(slot), p->l3_len, MUX_REASON_BAD_SOURCE);
			hash = spread_hash(&c->spread_key, p->src_hi, p->src_lo, p->sport);
			if (flags & ENDPOINT_TRACK)
				track(p, index, (__u32)answer - (__u32)range);
			goto send;
		}
	}
	o = orders_of(p, slot, policy);
	if (flags & ENDPOINT_FLOW) {
		/* A flow that the ring gave a member is remembered when it shows that it carries no cookie: until then the ring says the same. */
		if ((flags & (ENDPOINT_COOKIE | ENDPOINT_SCHED | ENDPOINT_FLOWS_FIRST)) == ENDPOINT_COOKIE && !answer)
			o.segment |= FLOW_UNKNOWN;
		/* A client without timestamps echoes no cookie. All muxes find its server if the ring chooses it. */
		if ((flags & (ENDPOINT_COOKIE | ENDPOINT_SCHED)) == (ENDPOINT_COOKIE | ENDPOINT_SCHED) && p->segment & SEGMENT_SYN &&
		    !cookie_options(ctx, p->l4, ETH_HLEN + p->l3_len))
			o.segment |= FLOW_BY_RING;
		if (flags & ENDPOINT_QUIC) {
			o.segment = answer & FLOW_UNKNOWN;
			o.identity.word |= answer >> 40 << IDENTITY_VNI_SHIFT;
		}
		range = slot_members(slot);
		hash = identity_hash(&c->flow_key, p, &o.identity) & o.keep;
		answer = remembered(c, p, &o, slot, index, hash, range, &word);
		if (!(answer & FLOW_FOUND))
			return refuse(slot_value(slot), p->l3_len, answer);
	} else {
		if (!source_allowed(c, p))
			return refuse(slot_value(slot), p->l3_len, MUX_REASON_BAD_SOURCE);
		ring = slot_ring(slot);
		range = slot_members(slot);
		hash = ring_hash(c, slot, ring, p, &o.identity);
		word = choose(ring, range, hash, &id);
		if (!word)
			return refuse(slot_value(slot), p->l3_len, MUX_REASON_NO_BACKEND);
		answer = (__u32)range + id;
	}
send:
	if (aside_how(aside) & ASIDE_FIRST)
		fragment_remember(aside, index, answer, hash);
	return send_member(ctx, c, p, slot, range, answer, word, hash, aside);
}

/* forward_slot is forward for the slower ways: the endpoint by the index of its slot. */
static __noinline int forward_slot(struct xdp_md *ctx, const struct packet *p, __u32 index, struct aside *aside)
{
	struct endpoint_slot *slot = slot_at(index);

	return slot ? forward(ctx, p, slot, index, aside) : drop(MUX_REASON_INTERNAL);
}

/* find_member tells where packets of a flow to the endpoint of a slot go, and changes nothing: as flow_settle answers.
 * The packet need not have arrived: its addresses, ports and protocol are looked at. `stamp` is a timestamp that a member gave the flow's client, 0 when
 * none is known. */
__attribute__((noinline)) __u64 find_member(const struct packet *p __arg_nonnull, __u32 index, __u32 stamp)
{
	struct endpoint_slot *slot = slot_at(index);
	__u32 zero = 0, id, flags;
	struct mux_config *c = bpf_map_lookup_elem(&configs, &zero);
	__u64 ring, range, word, hash, answer;
	struct orders o;

	if (!p || !slot || !c)
		return MUX_REASON_INTERNAL;
	o = orders_of(p, slot, slot_policy(slot));
	flags = o.policy >> POLICY_FLAGS_SHIFT;
	if (flags & ENDPOINT_COOKIE && stamp && !(flags & ENDPOINT_FLOWS_FIRST && flow_known(p, index))) {
		answer = cookie_member(p, o.policy, slot_members(slot), stamp, &word, &hash);
		if (answer & FLOW_FOUND)
			return answer;
	}
	if (flags & ENDPOINT_FLOW)
		return settle_flow(c, p, &o, slot, index, identity_hash(&c->flow_key, p, &o.identity) & o.keep,
				   SEGMENT_ACK | FLOW_PEEK);
	ring = slot_ring(slot);
	range = slot_members(slot);
	if (!choose(ring, range, ring_hash(c, slot, ring, p, &o.identity), &id))
		return MUX_REASON_NO_BACKEND;
	return FLOW_FOUND | ((__u32)range + id);
}

#endif
