/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Path nat: the client's packets leave from an address and port of the mux to the server's own, and its answers come back here. Nothing at the server
 * knows of it. A session is hard state of this mux: a packet of none is given a member, by cookie if it carries one, and another port, so that the server resets
 * the connection. */
#ifndef SHUNT_MUX_NAT_H
#define SHUNT_MUX_NAT_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include "abi.h"
#include "lib/encap.h"
#include "lib/parse.h"
#include "lib/split.h"
#include "mux/aside.h"
#include "mux/nat_find.h"
#include "mux/nat_life.h"
#include "mux/nat_numbers.h"
#include "mux/nat_open.h"
#include "mux/nat_rewrite.h"
#include "mux/schedule.h"
#include "mux/send.h"
#include "mux/too_big.h"
#include "mux/verdict.h"

/* nat_touch notes the time. */
static __always_inline void nat_touch(struct nat_session *s)
{
	__u32 tick = mux_tick();

	if (s->stamp != tick)
		*(volatile __u32 *)&s->stamp = tick;
}

/* nat_came notes where a packet of the client came from, and which endpoint it found. */
static __always_inline void nat_came(struct xdp_md *ctx, struct nat_session *s, const struct aside *aside)
{
	const void *data = (const void *)(long)ctx->data, *end = (const void *)(long)ctx->data_end;
	__u64 way, mac;

	if (data + ETH_HLEN > end)
		return;
	mac = *(const __u64 *)data & 0xffffffffffffULL;
	way = *(const __u64 *)(data + 4) >> 16;
	if (s->way != way || s->mac != mac || s->ifindex != ctx->ingress_ifindex || s->tags != aside->tags) {
		*(volatile __u64 *)&s->way = way;
		*(volatile __u64 *)&s->mac = mac;
		*(volatile __u64 *)&s->tags = aside->tags;
		*(volatile __u32 *)&s->ifindex = ctx->ingress_ifindex;
	}
	if (s->slot != aside->nat.slot)
		*(volatile __u32 *)&s->slot = aside->nat.slot;
}

/* nat_heard notes what a packet of the client does to the session, whose word is `life`: 0, or the reason for refusal. */
static __always_inline int nat_heard(struct xdp_md *ctx, struct nat_session *s, struct aside *aside, __u64 life)
{
	const struct packet *p = &aside->packet;
	int reason;

	nat_came(ctx, s, aside);
	nat_touch(s);
	if (p->protocol != PROTOCOL_TCP) {
		if (life & NAT_ANSWERED)
			nat_set(s, life, NAT_TRUSTED);
		return 0;
	}
	if (!(p->segment & SEGMENT_SYN) || p->segment & SEGMENT_RST) {
		nat_note(s, aside, life, nat_client_says(s, aside, life));
		return 0;
	}
	/* What a SYN does to a connection that there is, its server says: by a SYN of its own, or not (RFC 9293 section 3.10.7.4). */
	if (nat_over(life)) {
		reason = nat_anew(s, aside, &life);
		if (reason)
			return reason;
	}
	if (life & NAT_ANSWERED)
		return 0;
	/* A FIN before this SYN is of another connection. Keep the numbers if another CPU handled the server's answer concurrently. */
	if (nat_clear(s, life, NAT_FINISHING_CLIENT) & NAT_ANSWERED || nat_opened_so(s, aside))
		return 0;
	nat_opened(s, aside);
	nat_answered_meanwhile(s, life);
	return 0;
}

/* nat_stays says whether a session goes on with its member. */
static __always_inline int nat_stays(const struct nat_session *s, const struct packet *p, const struct endpoint_slot *slot)
{
	__u64 range = *(const volatile __u64 *)&slot->members, word;
	int opens = p->protocol == PROTOCOL_TCP && (p->segment & (SEGMENT_SYN | SEGMENT_RST)) == SEGMENT_SYN;
	const struct backend *b;

	if (s->member >= range >> 32)
		return 0;
	word = member_word((__u32)range + s->member);
	if (!(opens ? member_present(word) : member_keeps(word, *(const volatile __u64 *)&slot->policy >> POLICY_FLAGS_SHIFT)))
		return 0;
	b = nat_backend(word);
	if (!b || *(const __u64 *)b->outer_dst != s->dip_hi || *(const __u64 *)(b->outer_dst + 8) != s->dip_lo ||
	    nat_dport(b, p->dport) != s->dport)
		return 0;
	/* A SYN that begins another connection needs a member that takes new ones. */
	return !opens || !nat_over(nat_life(s)) || member_usable(word);
}

/* nat_session_of finds the session of the packet of aside, or makes one, whose key is aside->nat.key afterwards: 0, or the reason for refusal. */
__attribute__((noinline)) int nat_session_of(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct aside *aside = bpf_map_lookup_elem(&asides, &zero);
	const struct endpoint_slot *slot;
	struct nat_session *s;
	__u64 life;

	if (!aside)
		return MUX_REASON_INTERNAL;
	slot = slot_at(aside->nat.slot);
	if (!slot)
		return MUX_REASON_INTERNAL;
	nat_key_of(&aside->nat.key, &aside->packet);
	s = bpf_map_lookup_elem(&nat_sessions, &aside->nat.key);
	if (s && nat_stays(s, &aside->packet, slot))
		return 0;
	if (s) {
		if (!(aside->packet.segment & SEGMENT_SYN))
			note(MUX_REASON_FLOW_MOVED);
		/* The port of a connection that is over rests (LIMIT_NAT_REST). */
		life = nat_life(s);
		nat_forget(&aside->nat.key, s, life, &aside->nat.spare, nat_over(life));
	}
	return nat_open(ctx);
}

/* nat_echo gives a server the echo that it knows for the client's. Without ACK the field means nothing, and says nothing. */
static __always_inline int nat_echo(struct xdp_md *ctx, const struct nat_session *s, const struct packet *p)
{
	__u32 at = nat_options(ctx, p->l4, ETH_HLEN + p->l3_len), echo, value = 0;
	__u32 flags = nat_life(s);

	if (!at)
		return 1;
	at += 4;
	if (bpf_xdp_load_bytes(ctx, (p->l4 & 0x7fff) + at, &echo, sizeof(echo)))
		return 0;
	echo = bpf_ntohl(echo);
	if (!echo)
		return 1;
	if (p->segment & SEGMENT_ACK && (flags & (NAT_RESTORES | NAT_CLOCK)) == (NAT_RESTORES | NAT_CLOCK))
		value = split_restore(echo, *(const volatile __u32 *)&s->newest);
	return nat_time(ctx, at, echo, value);
}

/* nat_mint puts the session's cookie into the timestamp of a server's segment. */
static __always_inline int nat_mint(struct xdp_md *ctx, struct nat_session *s, const struct packet *p)
{
	__u32 at = nat_options(ctx, p->l4, ETH_HLEN + p->l3_len), value;
	__u64 life = nat_life(s);

	if (!at)
		return 1;
	if (bpf_xdp_load_bytes(ctx, (p->l4 & 0x7fff) + at, &value, sizeof(value)))
		return 0;
	value = bpf_ntohl(value);
	if (!(life & NAT_CLOCK) || (__s32)(value - s->newest) > 0) {
		*(volatile __u32 *)&s->newest = value;
		nat_set(s, life, NAT_CLOCK);
	}
	return nat_time(ctx, at, value, split_place(value, s->cookie));
}

/* nat_end ends the way of a rewritten frame: TTL, length. */
static __always_inline int nat_end(struct xdp_md *ctx, const struct packet *p)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	if (data + ETH_HLEN + sizeof(struct iphdr) > end)
		return 0;
	decrement_ttl(data, p->family);
	return frame_room(data, end) == ETH_HLEN + p->l3_len || trim(ctx, p->l3_len);
}

/* nat_to_server sends a rewritten frame of p to its server by a way. */
static __always_inline int nat_to_server(struct xdp_md *ctx, const struct packet *p, const struct way *way)
{
	void *data, *end;

	if (!nat_end(ctx, p))
		return drop(MUX_REASON_INTERNAL);
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (data + ETH_HLEN > end)
		return drop(MUX_REASON_INTERNAL);
	encap_ethernet(data, way->nexthop, way->mac, p->family == 4 ? ETH_P_IP : ETH_P_IPV6);
	return leave(ctx, way);
}

/* nat_to_client sends a rewritten frame of p the way that the client's last packet came. */
static __always_inline int nat_to_client(struct xdp_md *ctx, const struct packet *p, const struct nat_session *s)
{
	__u32 ifindex = s->ifindex;
	__u64 tags = s->tags;
	void *data, *end;

	if (!nat_end(ctx, p))
		return drop(MUX_REASON_INTERNAL);
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (data + ETH_HLEN > end)
		return drop(MUX_REASON_INTERNAL);
	encap_ethernet(data, s->way, s->mac, p->family == 4 ? ETH_P_IP : ETH_P_IPV6);
	if (tags && !vlan_push(ctx, tags))
		return drop(MUX_REASON_NO_HEADROOM);
	note(MUX_REASON_NAT_REPLIED);
	return ifindex == ctx->ingress_ifindex ? bounce(ctx) : bpf_redirect(ifindex, 0);
}

/* nat_toward says how packets of a session become the server's, and nat_back how they become the client's. */
static __always_inline void nat_toward(struct nat_key *to, const struct nat_session *s)
{
	to->src_hi = s->lip_hi;
	to->src_lo = s->lip_lo;
	to->dst_hi = s->dip_hi;
	to->dst_lo = s->dip_lo;
	to->sport = s->lport;
	to->dport = s->dport;
}

static __always_inline void nat_back(struct nat_key *to, const struct nat_key *client)
{
	to->src_hi = client->dst_hi;
	to->src_lo = client->dst_lo;
	to->dst_hi = client->src_hi;
	to->dst_lo = client->src_lo;
	to->sport = client->dport;
	to->dport = client->sport;
}

/* nat_client sends a client's packet, or an ICMP error from its side, to the server of its session. */
__attribute__((noinline)) int nat_client(struct xdp_md *ctx)
{
	__u32 zero = 0, member;
	struct aside *aside = bpf_map_lookup_elem(&asides, &zero);
	const struct endpoint_slot *slot;
	const struct backend *b;
	struct nat_session *s;
	const struct packet *p;
	struct way way = {};
	__u64 life;
	int error;

	if (!aside)
		return drop(MUX_REASON_INTERNAL);
	p = &aside->packet;
	slot = slot_at(aside->nat.slot);
	s = bpf_map_lookup_elem(&nat_sessions, &aside->nat.key);
	if (!slot)
		return drop(MUX_REASON_INTERNAL);
	/* Another CPU has ended it. */
	if (!s)
		return refuse(slot_value(slot), p->l3_len, MUX_REASON_NAT_UNKNOWN);
	life = nat_life(s);
	error = aside->nat.what == NAT_ERROR_IN;
	if (error && !nat_stays(s, &aside->flow, slot))
		return refuse(slot_value(slot), p->l3_len, MUX_REASON_ICMP_ERROR_UNKNOWN);
	member = (__u32)*(const volatile __u64 *)&slot->members + s->member;
	b = nat_backend(member_word(member));
	if (!b)
		return refuse(slot_value(slot), p->l3_len, MUX_REASON_INTERNAL);
	if (p->l3_len > b->mtu)
		return too_big(ctx, p, slot_value(slot), b->mtu, aside);
	if (!find_way(ctx, b, s->lip_lo >> 32, &way))
		return refuse(slot_value(slot), p->l3_len, MUX_REASON_NO_NEXTHOP);
	nat_toward(&aside->nat.to, s);
	/* Its memory was another's meanwhile. */
	if (!nat_still(s, life))
		return refuse(slot_value(slot), p->l3_len, MUX_REASON_NAT_UNKNOWN);
	if (!error) {
		error = nat_heard(ctx, s, aside, life);
		if (error)
			return refuse(slot_value(slot), p->l3_len, error);
		if (life & NAT_STAMPS && p->protocol == PROTOCOL_TCP && !nat_echo(ctx, s, p))
			return drop(MUX_REASON_INTERNAL);
	}
	count_packet_in(&member_counts, member_region, member, p->l3_len);
	if (!(error ? nat_message(ctx) : nat_packet(ctx)))
		return drop(MUX_REASON_INTERNAL);
	return nat_to_server(ctx, p, &way);
}

/* nat_server sends a server's answer, or an ICMP error from its side, to the client of its session. */
__attribute__((noinline)) int nat_server(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct aside *aside = bpf_map_lookup_elem(&asides, &zero);
	struct nat_session *s;
	const struct packet *p;
	__u64 life;

	if (!aside)
		return drop(MUX_REASON_INTERNAL);
	p = &aside->packet;
	s = bpf_map_lookup_elem(&nat_sessions, &aside->nat.key);
	if (!s)
		return NAT_NONE;
	life = nat_life(s);
	if (!nat_is(s, &aside->nat.port) || !nat_still(s, life))
		return NAT_NONE;
	if (p->ttl <= 1)
		return drop(MUX_REASON_TTL_EXPIRED);
	nat_back(&aside->nat.to, &aside->nat.key);
	if (aside->nat.what == NAT_ERROR_OUT) {
		note(MUX_REASON_ICMP_ERROR_FORWARDED);
		return nat_message(ctx) ? nat_to_client(ctx, p, s) : drop(MUX_REASON_INTERNAL);
	}
	nat_touch(s);
	if (p->protocol != PROTOCOL_TCP) {
		nat_set(s, life, NAT_ANSWERED);
	} else {
		/* The slot of aside is that of an earlier packet: the session's says whose share counts. */
		aside->nat.slot = *(const volatile __u32 *)&s->slot;
		if (nat_begins(s, aside, life) && nat_anew(s, aside, &life))
			return drop(MUX_REASON_NAT_FULL);
		nat_note(s, aside, life, nat_server_says(s, aside, life));
		/* Again: a SYN on another CPU that saw no answer yet may have stored its numbers. */
		if (!(life & NAT_NUMBERED) && (p->segment & (SEGMENT_ACK | SEGMENT_RST)) == SEGMENT_ACK)
			nat_numbered_client(s, aside);
		if (life & NAT_STAMPS && !nat_mint(ctx, s, p))
			return drop(MUX_REASON_INTERNAL);
	}
	return nat_packet(ctx) ? nat_to_client(ctx, p, s) : drop(MUX_REASON_INTERNAL);
}

/* nat ends a packet that the walk gave NAT_DUE. */
__attribute__((noinline)) int nat(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct aside *aside = bpf_map_lookup_elem(&asides, &zero);
	const struct endpoint_slot *slot;
	int reason, verdict;

	if (!aside)
		return drop(MUX_REASON_INTERNAL);
	nat_read(ctx);
	if (aside->nat.what == NAT_FROM_SERVER || aside->nat.what == NAT_ERROR_OUT) {
		verdict = nat_server(ctx);
		if (verdict != NAT_NONE)
			return verdict;
		/* To a port that rests, or whose session has just ended. */
		if (nat_own(aside->packet.dst_hi, aside->packet.dst_lo))
			return drop(MUX_REASON_NAT_UNKNOWN);
		if (aside->tags && !vlan_push(ctx, aside->tags))
			return drop(MUX_REASON_NO_HEADROOM);
		return pass(MUX_REASON_PASS_NOT_OURS);
	}
	slot = slot_at(aside->nat.slot);
	if (!slot)
		return drop(MUX_REASON_INTERNAL);
	if (aside->nat.what == NAT_ERROR_IN) {
		nat_key_of(&aside->nat.key, &aside->flow);
		if (!bpf_map_lookup_elem(&nat_sessions, &aside->nat.key))
			return refuse(slot_value(slot), aside->packet.l3_len, MUX_REASON_ICMP_ERROR_UNKNOWN);
	} else {
		reason = nat_session_of(ctx);
		if (reason)
			return refuse(slot_value(slot), aside->packet.l3_len, reason);
	}
	return nat_client(ctx);
}

#endif
