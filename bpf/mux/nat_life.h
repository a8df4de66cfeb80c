/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* How sessions of path nat change, and how they end: each by one CPU alone. */
#ifndef SHUNT_MUX_NAT_LIFE_H
#define SHUNT_MUX_NAT_LIFE_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "mux/aside.h"
#include "mux/find.h"
#include "mux/nat_find.h"
#include "mux/schedule.h"
#include "mux/shares.h"
#include "mux/tables.h"
#include "mux/verdict.h"

/* nat_life is the word of a session's flags, count of connections, and number. */
static __always_inline __u64 nat_life(const struct nat_session *s)
{
	return *(const volatile __u64 *)&s->life;
}

/* nat_same returns 1 if two such words are of one connection of one session, else 0. */
static __always_inline int nat_same(__u64 a, __u64 b)
{
	return a >> NAT_CONNECTION_SHIFT == b >> NAT_CONNECTION_SHIFT;
}

/* nat_still says whether what was read of a session since its word was `life` is its own. */
static __always_inline int nat_still(const struct nat_session *s, __u64 life)
{
	asm volatile("" ::: "memory");
	return nat_same(nat_life(s), life);
}

/* nat_over says whether a session's connection is over: both sides are done, or one has reset it. */
static __always_inline int nat_over(__u64 life)
{
	return life & NAT_RESET || (life & (NAT_FIN_CLIENT | NAT_FIN_SERVER)) == (NAT_FIN_CLIENT | NAT_FIN_SERVER);
}

/* nat_set gives a session whose word was `life` more flags: the word that it had before. Of a session that has gone meanwhile it is as if they had
 * been there. */
static __always_inline __u64 nat_set(struct nat_session *s, __u64 life, __u32 flags)
{
#pragma unroll
	for (int i = 0; i < LIMIT_NAT_TRIES; i++) {
		__u64 seen;

		if ((life & flags) == flags)
			return life;
		seen = __sync_val_compare_and_swap(&s->life, life, life | flags);
		if (seen == life)
			return life;
		if (!nat_same(seen, life))
			break;
		life = seen;
	}
	return life | flags;
}

/* nat_forget takes the session of a client, whose word was `life`, out of the tables, with its port unless that shall rest, which the agent frees
 * then; `port` is room for a key. False: another CPU does so, or it has changed. */
static __always_inline int nat_forget(const struct nat_key *client, struct nat_session *s, __u64 life, struct nat_key *port, int rests)
{
	if (life & NAT_ENDING || __sync_val_compare_and_swap(&s->life, life, life | NAT_ENDING) != life)
		return 0;
	/* Only who has set NAT_ENDING takes a session out: what is found now stays. */
	if (bpf_map_lookup_elem(&nat_sessions, client) != s) {
		__sync_val_compare_and_swap(&s->life, life | NAT_ENDING, life);
		return 0;
	}
	port->src_hi = s->dip_hi;
	port->src_lo = s->dip_lo;
	port->dst_hi = s->lip_hi;
	port->dst_lo = s->lip_lo;
	port->sport = s->dport;
	port->dport = s->lport;
	port->protocol = client->protocol;
	port->rsv[0] = port->rsv[1] = port->rsv[2] = 0;
	/* The port last, so that nobody else has it meanwhile. */
	bpf_map_delete_elem(&nat_sessions, client);
	if (!rests && !(life & NAT_RESTS))
		bpf_map_delete_elem(&nat_ports, port);
	return 1;
}

/* nat_untrusted returns 1 if a session has this number, is untrusted, and no CPU ends it, else 0. */
static __always_inline int nat_untrusted(const struct nat_session *s, __u32 number)
{
	__u64 life = nat_life(s);

	return life >> NAT_NUMBER_SHIFT == number && !(life & (NAT_TRUSTED | NAT_ENDING));
}

/* nat_end_untrusted ends the session of a client with this number if it is untrusted, although other CPUs change its word: 1, else 0. `port` is room for a key. After
 * LIMIT_NAT_TRIES changes it returns 0. */
static __always_inline int nat_end_untrusted(const struct nat_key *client, struct nat_session *s, __u32 number, struct nat_key *port)
{
#pragma clang loop unroll(disable)
	for (int i = 0; i < LIMIT_NAT_TRIES; i++) {
		__u64 life = nat_life(s);

		if (life >> NAT_NUMBER_SHIFT != number || life & (NAT_TRUSTED | NAT_ENDING))
			return 0;
		if (nat_forget(client, s, life, port, 0))
			return 1;
	}
	return 0;
}

/* nat_slot is the slot of the endpoint of a client's session; nothing when the slot is another one's by now: the client's next packet says where its
 * own is. */
static __always_inline const struct endpoint_slot *nat_slot(const struct nat_session *s, const struct nat_key *client)
{
	const struct endpoint_slot *slot = slot_at(*(const volatile __u32 *)&s->slot);
	const __u64 *vip;
	__u32 low, high;

	if (!slot || *(const volatile __u64 *)&slot->value < ENDPOINT_SLOT_FIRST)
		return 0;
	vip = (const __u64 *)slot->vip;
	low = slot->key >> 16 & 0xffff;
	high = slot->key & 0xffff;
	if (vip[0] != client->dst_hi || vip[1] != client->dst_lo || (slot->key >> 32 & 0xff) != client->protocol)
		return 0;
	return client->dport == low || (client->dport > low && client->dport <= high) ? slot : 0;
}

/* nat_floods returns 1 if the VIP of an endpoint has more than its share of the sessions that wait for trust, else 0. */
static __always_inline __u64 nat_floods(const struct endpoint_slot *slot)
{
	return share_mark((__u32)*(const volatile __u64 *)&slot->members, SHARE_WAITING);
}

/* nat_spares returns 1 if session `s` of the client of aside->nat.old does not end for the newcomer of aside: the VIP of that one has more than its
 * share of the sessions that wait for trust, and this one's has not. */
static __always_inline int nat_spares(const struct aside *aside, const struct nat_session *s)
{
	const struct endpoint_slot *newcomer = slot_at(aside->nat.slot), *old;

	if (!newcomer || !nat_floods(newcomer))
		return 0;
	old = nat_slot(s, &aside->nat.old.client);
	return old && !nat_floods(old);
}

enum nat_displaced {
	NAT_STAYS = 0,  /* it is trusted by now, or has gone */
	NAT_ENDED = 1,
	NAT_SPARED = 2, /* it must wait again */
};

/* nat_displace_old ends the session of aside->nat.old if it is untrusted, and returns enum nat_displaced. With `spares` 0 it spares no VIP's session. */
__attribute__((noinline)) int nat_displace_old(__u32 spares)
{
	__u32 zero = 0;
	struct aside *aside = bpf_map_lookup_elem(&asides, &zero);
	struct nat_session *s;

	if (!aside)
		return NAT_STAYS;
	s = bpf_map_lookup_elem(&nat_sessions, &aside->nat.old.client);
	if (!s)
		return NAT_STAYS;
	if (spares && nat_spares(aside, s))
		return nat_untrusted(s, aside->nat.old.number) ? NAT_SPARED : NAT_STAYS;
	if (nat_end_untrusted(&aside->nat.old.client, s, aside->nat.old.number, &aside->nat.spare)) {
		note(MUX_REASON_NAT_DISPLACED);
		return NAT_ENDED;
	}
	return nat_untrusted(s, aside->nat.old.number) ? NAT_SPARED : NAT_STAYS;
}

/* nat_displace takes the oldest session out of those that wait for trust, and ends it if it has none yet: 1; 0: that need not be, or it was put behind
 * the others; -1: there are no more. */
__attribute__((noinline)) int nat_displace(void)
{
	__u32 zero = 0;
	struct aside *aside = bpf_map_lookup_elem(&asides, &zero);
	int what;

	if (!aside || bpf_map_pop_elem(&nat_openings, &aside->nat.old))
		return -1;
	what = nat_displace_old(1);
	/* End the session if the queue is full again, because a session outside of the queue is never displaced. */
	if (what == NAT_SPARED && bpf_map_push_elem(&nat_openings, &aside->nat.old, BPF_ANY))
		what = nat_displace_old(0);
	return what == NAT_ENDED;
}

/* nat_make_room ends the oldest session that nobody trusts: true. Those that are trusted by now are in nobody's way afterwards. */
__attribute__((noinline)) int nat_make_room(void)
{
#pragma clang loop unroll(disable)
	for (int i = 0; i < LIMIT_NAT_WAITING; i++) {
		int found = nat_displace();

		if (found)
			return found > 0;
	}
	return 0;
}

/* nat_wait puts the session that aside->nat.name names behind those that wait for trust; the oldest makes room for it: true. False: there is no place. */
__attribute__((noinline)) int nat_wait(void)
{
	__u32 zero = 0;
	struct aside *aside = bpf_map_lookup_elem(&asides, &zero);

	if (!aside)
		return 0;
	/* Again: another CPU may have taken the place. */
#pragma clang loop unroll(disable)
	for (int i = 0; i < LIMIT_NAT_TRIES; i++) {
		if (!bpf_map_push_elem(&nat_openings, &aside->nat.name, BPF_ANY))
			return 1;
		nat_displace();
	}
	/* The last displacement may have freed a place. */
	return !bpf_map_push_elem(&nat_openings, &aside->nat.name, BPF_ANY);
}

/* nat_waits puts the session that aside->nat.name names behind those that wait for trust, as nat_wait does. Without a place it ends the session, because others
 * could not displace it, and returns 0. It returns 1 also if the session is trusted by now, or another CPU ends it. */
__attribute__((noinline)) int nat_waits(void)
{
	__u32 zero = 0;
	struct aside *aside = bpf_map_lookup_elem(&asides, &zero);
	struct nat_session *s;

	if (!aside)
		return 0;
	if (nat_wait())
		return 1;
	s = bpf_map_lookup_elem(&nat_sessions, &aside->nat.name.client);
	return !s || !nat_end_untrusted(&aside->nat.name.client, s, aside->nat.name.number, &aside->nat.spare);
}

/* nat_clear clears flags of a session whose word was `life`, unless NAT_ANSWERED is set, and returns the new word. It returns NAT_ANSWERED if the session
 * has gone or other CPUs changed the word LIMIT_NAT_TRIES times. */
static __always_inline __u64 nat_clear(struct nat_session *s, __u64 life, __u32 flags)
{
#pragma unroll
	for (int i = 0; i < LIMIT_NAT_TRIES; i++) {
		__u64 seen = nat_life(s), next = seen & ~(__u64)flags;

		if (!nat_same(seen, life))
			break;
		if (seen & NAT_ANSWERED || seen == next)
			return seen;
		if (__sync_val_compare_and_swap(&s->life, seen, next) == seen)
			return next;
	}
	return life | NAT_ANSWERED;
}

/* nat_load keeps up the load of a session's member when a connection of it is over, or begins. */
static __always_inline void nat_load(const struct nat_session *s, const struct nat_key *client, __u32 closes)
{
	const struct endpoint_slot *slot = nat_slot(s, client);
	__u64 range;

	if (!slot || !(*(const volatile __u64 *)&slot->policy >> POLICY_FLAGS_SHIFT & ENDPOINT_SCHED))
		return;
	range = *(const volatile __u64 *)&slot->members;
	if (s->member < range >> 32)
		schedule_passed(*(const volatile __u64 *)&slot->extra, (__u32)range + s->member, closes);
}

/* nat_note notes flags of the session of aside, whose word was `life`; the member's load goes down when they end its connection. */
static __always_inline void nat_note(struct nat_session *s, const struct aside *aside, __u64 life, __u32 flags)
{
	__u64 was = nat_set(s, life, flags);

	if (!nat_over(was) && nat_over(was | flags))
		nat_load(s, &aside->nat.key, 1);
}

/* nat_anew begins another connection in the session of aside, whose word was *life, and writes the new word there. The new connection waits for trust. It
 * waits at the place of the connection before it if that was untrusted: else one client could fill the queue with names of one session. 0; MUX_REASON_NAT_FULL
 * if there is no place: it has ended the session. */
static __always_inline int nat_anew(struct nat_session *s, struct aside *aside, __u64 *life)
{
	__u64 was = *life, next = ((was >> NAT_CONNECTION_SHIFT) + 1) << NAT_CONNECTION_SHIFT & ((1ULL << NAT_NUMBER_SHIFT) - 1);

	next |= was & (NAT_STAMPS | NAT_RESTORES | NAT_RESTS);
	if (nat_over(was))
		next |= NAT_RESTS;
	next |= was & NAT_TRUSTED ? (__u64)bpf_get_prandom_u32() << NAT_NUMBER_SHIFT : was >> NAT_NUMBER_SHIFT << NAT_NUMBER_SHIFT;
	if (was & NAT_ENDING || __sync_val_compare_and_swap(&s->life, was, next) != was)
		return 0;
	*life = next;
	if (was & NAT_TRUSTED) {
		aside->nat.name.client = aside->nat.key;
		aside->nat.name.number = next >> NAT_NUMBER_SHIFT;
		aside->nat.name.rsv = 0;
		if (!nat_waits())
			return MUX_REASON_NAT_FULL;
	}
	if (nat_over(was))
		nat_load(s, &aside->nat.key, 0);
	return 0;
}

/* nat_answered_meanwhile clears NAT_NUMBERED of a session whose word was `life` if the server answered while the numbers of a SYN were stored, because these may
 * have replaced those of the answer. The server's next segment begins the numbers again. */
static __always_inline void nat_answered_meanwhile(struct nat_session *s, __u64 life)
{
#pragma unroll
	for (int i = 0; i < LIMIT_NAT_TRIES; i++) {
		/* An atomic operation is a full barrier: the numbers are stored before the word is read. */
		__u64 seen = __sync_fetch_and_or(&s->life, 0);

		if (!nat_same(seen, life) || !(seen & NAT_NUMBERED) ||
		    __sync_val_compare_and_swap(&s->life, seen, seen & ~(__u64)NAT_NUMBERED) == seen)
			return;
	}
}

#endif
