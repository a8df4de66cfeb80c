/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* A new session of path nat: which member, and from which address and port. */
#ifndef SHUNT_MUX_NAT_OPEN_H
#define SHUNT_MUX_NAT_OPEN_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "lib/hash.h"
#include "lib/parse.h"
#include "lib/short_cookie.h"
#include "lib/split.h"
#include "mux/admit.h"
#include "mux/choose.h"
#include "mux/cookie.h"
#include "mux/flows.h"
#include "mux/identity.h"
#include "mux/martian.h"
#include "mux/nat_find.h"
#include "mux/nat_life.h"
#include "mux/nat_numbers.h"
#include "mux/schedule.h"
#include "mux/shares.h"
#include "mux/tables.h"

/* Errors of map updates. */
enum nat_error {
	NAT_EXISTS = -17, /* EEXIST */
};

/* nat_cookie_set is what the cookies of an endpoint with this policy word are made of; nothing when it has none. */
static __always_inline const struct cookie_set *nat_cookie_set(__u64 policy)
{
	__u32 index = (policy >> POLICY_COOKIE_SHIFT) - 1;

	if (!(policy >> POLICY_FLAGS_SHIFT & ENDPOINT_COOKIE))
		return 0;
	return bpf_map_lookup_elem(&cookie_sets, &index);
}

/* nat_by_cookie finds the member whose cookie the packet of aside carries, as cookie_member does. */
__attribute__((noinline)) __u64 nat_by_cookie(struct xdp_md *ctx, __u64 policy, __u64 range)
{
	__u32 zero = 0, echo, cookie, kid, id;
	struct aside *aside = bpf_map_lookup_elem(&asides, &zero);
	const struct cookie_set *s = nat_cookie_set(policy);
	__u64 word;

	if (!aside || !s)
		return MUX_REASON_INTERNAL;
	echo = cookie_echo(ctx, &aside->packet);
	if (!echo)
		return MUX_REASON_COOKIE_ABSENT;
	cookie = split_cookie(echo);
	kid = short_cookie_kid(cookie);
	if (!(s->live >> kid & 1))
		return MUX_REASON_COOKIE_INVALID;
	id = short_cookie_decode(cookie_hash(&s->keys[kid & 1], &aside->packet), cookie, set_secret(s, kid & 1));
	if (id >= range >> 32)
		return MUX_REASON_COOKIE_INVALID;
	word = member_word((__u32)range + id);
	if (member_keeps(word, policy >> POLICY_FLAGS_SHIFT))
		return FLOW_FOUND | ((__u32)range + id);
	return word >> MEMBER_PRESENT_SHIFT & 1 ? MUX_REASON_FLOW_MOVED : MUX_REASON_COOKIE_INVALID;
}

/* nat_stamp_of is the cookie of member `id` for the flow of the packet of aside. */
__attribute__((noinline)) __u32 nat_stamp_of(__u64 policy, __u32 id)
{
	__u32 zero = 0, kid;
	struct aside *aside = bpf_map_lookup_elem(&asides, &zero);
	const struct cookie_set *s = nat_cookie_set(policy);

	if (!aside || !s)
		return 0;
	kid = s->mint & 1;
	return short_cookie_encode(cookie_hash(&s->keys[kid], &aside->packet), kid, id, set_secret(s, kid));
}

/* nat_choose gives the packet of aside, of no session, a member of the endpoint of slot `index`: as flow_settle answers. */
__attribute__((noinline)) __u64 nat_choose(struct xdp_md *ctx, __u32 index)
{
	__u32 zero = 0, id, flags, first;
	struct aside *aside = bpf_map_lookup_elem(&asides, &zero);
	struct mux_config *c = bpf_map_lookup_elem(&configs, &zero);
	const struct endpoint_slot *slot = slot_at(index);
	__u64 policy, ring, range, answer;
	struct identity who;
	const struct packet *p;

	if (!aside || !c || !slot)
		return MUX_REASON_INTERNAL;
	p = &aside->packet;
	policy = *(const volatile __u64 *)&slot->policy;
	flags = policy >> POLICY_FLAGS_SHIFT;
	ring = *(const volatile __u64 *)&slot->ring;
	range = *(const volatile __u64 *)&slot->members;
	first = p->protocol != PROTOCOL_TCP || p->segment & SEGMENT_SYN;
	if (!first && flags & ENDPOINT_COOKIE) {
		answer = nat_by_cookie(ctx, policy, range);
		if (answer & FLOW_FOUND)
			return answer;
		note(answer);
	}
	who = identity_of(p);
	if (flags & ENDPOINT_SOURCE)
		identity_client(&who, slot);
	answer = ring_hash(c, slot, ring, p, &who);
	if ((flags & (ENDPOINT_SOURCE | ENDPOINT_FLOW)) == (ENDPOINT_SOURCE | ENDPOINT_FLOW))
		return client_settle(identity_hash(&c->flow_key, p, &who) | FLOW_CLIENT, answer, index, p->segment | (first ? FLOW_FIRST : 0));
	if (first)
		return schedule(slot, answer);
	return choose(ring, range, answer, &id) ? FLOW_FOUND | ((__u32)range + id) : MUX_REASON_NO_BACKEND;
}

/* Where a search for a port stands. */
struct nat_search {
	struct aside *aside;
	__u64 word; /* of the addresses */
	__u64 hash;
	__s64 error; /* of the last update */
	__u64 displaces; /* what is looked for is a port whose session may end for the newcomer */
};

/* nat_candidate ends the session that has the port which is being tried, if nobody trusts it: true. */
static __always_inline int nat_candidate(struct aside *aside)
{
	const struct nat_name *name = bpf_map_lookup_elem(&nat_ports, &aside->nat.port);
	const struct nat_session *s;
	int ended;

	if (!name)
		return 0;
	aside->nat.old.client = name->client;
	s = bpf_map_lookup_elem(&nat_sessions, &aside->nat.old.client);
	if (!s || !nat_is(s, &aside->nat.port) || nat_life(s) & NAT_RESTS)
		return 0;
	aside->nat.old.number = nat_life(s) >> NAT_NUMBER_SHIFT;
	ended = nat_displace_old(1) == NAT_ENDED;
	/* clang knows that this is 0 or 1, the verifier does not: "At callback return the register R0 has smin=0 smax=4294967295" (Linux 6.18). */
	asm volatile("" : "+r"(ended));
	return ended != 0;
}

/* nat_try tries port number n (bpf_loop): 1 ends the search. */
static long nat_try(__u64 n, void *context)
{
	struct nat_search *w = context;
	struct nat_key *port = &w->aside->nat.port;
	int is6 = w->aside->packet.family == 6;
	__u32 count = nat_count(w->word, is6), size, at, stride;
	const struct nat_address *a;

	if (!count)
		return 1;
	at = ((w->hash >> 32) * count >> 32) + (n >= LIMIT_NAT_PROBES / 2);
	a = nat_address_at(w->word, is6, at < count ? at : at - count);
	if (!a)
		return 1;
	size = (__u32)a->high - a->low + 1;
	port->dst_hi = a->hi;
	port->dst_lo = a->lo;
	/* The first one varies with the flow, and so does the stride by which the others go on, so small that all together go round once at most:
	 * each is another port. */
	stride = 1 + ((w->hash >> 24 & 0xffff) * (size / LIMIT_NAT_PROBES) >> 16);
	port->dport = a->low + (((w->hash & 0xffffffff) * size >> 32) + n * stride) % size;
	if (w->displaces)
		return nat_candidate(w->aside);
	w->error = bpf_map_update_elem(&nat_ports, port, &w->aside->nat.name, BPF_NOEXIST);
	return w->error != NAT_EXISTS;
}

/* nat_port finds a free port to send the packet of aside from, whose server aside->nat.port says, and takes it: 0. NAT_EXISTS: all that were tried
 * are taken; with `displaces` one of them may be free afterwards. Another error of an update: there is no room. */
__attribute__((noinline)) int nat_port(__u32 displaces)
{
	__u32 zero = 0;
	struct mux_config *c = bpf_map_lookup_elem(&configs, &zero);
	struct nat_search w = {
		.aside = bpf_map_lookup_elem(&asides, &zero), .word = nat_word(), .error = NAT_EXISTS, .displaces = displaces
	};
	const struct packet *p;
	__u64 word;

	if (!c || !w.aside)
		return NAT_EXISTS;
	p = &w.aside->packet;
	word = flow_word(0, p->sport, p->dport, p->protocol);
	if (p->family == 4)
		w.hash = table_hash4(&c->flow_key, bpf_ntohl(p->src_lo >> 32), bpf_ntohl(w.aside->nat.port.src_lo >> 32), word);
	else
		w.hash = table_hash6(&c->flow_key, p->src_hi, p->src_lo, w.aside->nat.port.src_hi, w.aside->nat.port.src_lo, word);
	bpf_loop(LIMIT_NAT_PROBES, nat_try, &w, 0);
	return w.error;
}

/* nat_take takes a port for the packet of aside: a free one, or that of a session which gives its place to it. 0, or why there is none. */
static __always_inline int nat_take(const struct packet *p)
{
	int error;

	if (!nat_count(nat_word(), p->family == 6))
		return MUX_REASON_NAT_NO_ADDRESS;
	error = nat_port(0);
	if (!error)
		return 0;
	if (error == NAT_EXISTS)
		nat_port(1);
	else if (!nat_make_room())
		return MUX_REASON_NAT_FULL;
	return nat_port(0) ? MUX_REASON_NAT_FULL : 0;
}

/* nat_insert puts the session of aside into the table, where another may have to end for it: 0, or the error of the update. */
static __always_inline int nat_insert(struct aside *aside)
{
	int error = bpf_map_update_elem(&nat_sessions, &aside->nat.key, &aside->nat.session, BPF_NOEXIST);

	if (!error || error == NAT_EXISTS || !nat_make_room())
		return error;
	return bpf_map_update_elem(&nat_sessions, &aside->nat.key, &aside->nat.session, BPF_NOEXIST);
}

/* nat_backend is the record of the member with this word: its server's address and port. */
static __always_inline const struct backend *nat_backend(__u64 word)
{
	__u32 index = word;

	return bpf_map_lookup_elem(&backends, &index);
}

/* nat_dport is the port of a backend that packets to port `vport` of the VIP go to. */
static __always_inline __u16 nat_dport(const struct backend *b, __u16 vport)
{
	return b->port ? b->port : vport;
}

/* nat_open makes a session for the packet of aside: 0, or the reason for refusal. */
__attribute__((noinline)) int nat_open(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct aside *aside = bpf_map_lookup_elem(&asides, &zero);
	const struct endpoint_slot *slot;
	const struct cookie_set *set;
	struct nat_session *s;
	const struct backend *b;
	const struct packet *p;
	__u64 policy, answer, range;
	int reason;

	if (!aside)
		return MUX_REASON_INTERNAL;
	p = &aside->packet;
	slot = slot_at(aside->nat.slot);
	if (!slot)
		return MUX_REASON_INTERNAL;
	/* Nobody is there to be told. */
	if (p->protocol == PROTOCOL_TCP && p->segment & SEGMENT_RST)
		return MUX_REASON_NAT_UNKNOWN;
	policy = *(const volatile __u64 *)&slot->policy;
	if (policy >> POLICY_FLAGS_SHIFT & ENDPOINT_ADMIT && !(p->segment & SEGMENT_SYN)) {
		reason = admit_flow(*(const volatile __u64 *)&slot->extra);
		if (reason)
			return reason;
	}
	answer = nat_choose(ctx, aside->nat.slot);
	if (!(answer & FLOW_FOUND))
		return answer;
	range = *(const volatile __u64 *)&slot->members;
	b = nat_backend(member_word(answer));
	if (!b)
		return MUX_REASON_INTERNAL;
	aside->nat.port.src_hi = *(const __u64 *)b->outer_dst;
	aside->nat.port.src_lo = *(const __u64 *)(b->outer_dst + 8);
	aside->nat.port.sport = nat_dport(b, p->dport);
	aside->nat.port.protocol = p->protocol;
	aside->nat.port.rsv[0] = aside->nat.port.rsv[1] = aside->nat.port.rsv[2] = 0;
	aside->nat.name.client = aside->nat.key;
	aside->nat.name.number = bpf_get_prandom_u32();
	aside->nat.name.rsv = 0;
	if (is_martian(p))
		return MUX_REASON_BAD_SOURCE;
	if (share_mark((__u32)range, SHARE_SESSIONS))
		return MUX_REASON_NAT_FULL;
	reason = nat_take(p);
	if (reason)
		return reason;
	s = &aside->nat.session;
	__builtin_memset(s, 0, sizeof(*s));
	s->lip_hi = aside->nat.port.dst_hi;
	s->lip_lo = aside->nat.port.dst_lo;
	s->dip_hi = aside->nat.port.src_hi;
	s->dip_lo = aside->nat.port.src_lo;
	s->lport = aside->nat.port.dport;
	s->dport = aside->nat.port.sport;
	s->slot = aside->nat.slot;
	s->member = (__u32)answer - (__u32)range;
	s->stamp = mux_tick();
	s->life = (__u64)aside->nat.name.number << NAT_NUMBER_SHIFT;
	if (p->protocol == PROTOCOL_TCP)
		nat_opened(s, aside);
	set = nat_cookie_set(policy);
	if (set) {
		s->life |= NAT_STAMPS | (set->form == COOKIE_FORM_SPLIT_R ? NAT_RESTORES : 0);
		s->cookie = nat_stamp_of(policy, s->member);
	}
	reason = nat_insert(aside);
	/* Without a place the sessions that wait are of VIPs within their share, or other CPUs took each place that was made. */
	if (!reason)
		return nat_waits() ? 0 : MUX_REASON_NAT_FULL;
	bpf_map_delete_elem(&nat_ports, &aside->nat.port);
	/* Another CPU was quicker: its session is the one. */
	return reason == NAT_EXISTS ? 0 : MUX_REASON_NAT_FULL;
}

#endif
