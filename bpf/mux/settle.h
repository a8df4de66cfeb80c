/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What is not simply forwarded: other people's packets, answers to probes, malformed ones, ICMP, fragments, tagged frames. */
#ifndef SHUNT_MUX_SETTLE_H
#define SHUNT_MUX_SETTLE_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include "abi.h"
#include "lib/parse.h"
#include "lib/quoted.h"
#include "lib/vlan.h"
#include "mux/aside.h"
#include "mux/find.h"
#include "mux/follow.h"
#include "mux/forward.h"
#include "mux/martian.h"
#include "mux/nat_find.h"
#include "mux/outbound.h"
#include "mux/ping.h"
#include "mux/probe.h"
#include "mux/verdict.h"
#include "mux/wildcard.h"

/* icmp_error finds the endpoint whose packet an ICMP error to the VIP of a slot quotes, or the server that has the port which it
 * was sent from: index of the slot + 1, or 0. aside->flow is then the packet to be sent: the whole error, with the addresses
 * and ports of the client's direction. */
static __noinline __u32 icmp_error(struct xdp_md *ctx, __u32 vip, struct aside *aside)
{
	__u64 found;

	if (!quoted_read(ctx, &aside->packet, &aside->flow) || is_martian(&aside->flow))
		return 0;
	found = find_taker(&aside->flow);
	if (!found)
		found = outbound_error(ctx, vip, aside);
	if (!found || found >> 32)
		return 0;
	note(MUX_REASON_ICMP_ERROR_FORWARDED);
	aside->how |= ASIDE_ERROR | ASIDE_KNOWN;
	return found;
}

/* forward_error sends the ICMP error of aside->flow to the member of its flow, which it does not change, at the endpoint
 * of a slot, or to the server that has its port. */
static __always_inline int forward_error(struct xdp_md *ctx, __u32 index, struct aside *aside)
{
	struct endpoint_slot *slot = slot_at(index);
	__u32 stamp = 0;
	__u64 found;

	if (!slot)
		return drop(MUX_REASON_INTERNAL);
	if (!(aside->how & ASIDE_SNAT) && !(*(volatile __u64 *)&slot->policy >> POLICY_FLAGS_SHIFT & ENDPOINT_NAT)) {
		if (*(volatile __u64 *)&slot->policy >> POLICY_FLAGS_SHIFT & ENDPOINT_COOKIE)
			stamp = cookie_options(ctx, aside->flow.quote, ETH_HLEN + aside->packet.l3_len) >> 32;
		found = find_member(&aside->flow, index, stamp);
		if (!(found & FLOW_FOUND))
			return refuse(*(volatile __u64 *)&slot->value, aside->flow.l3_len, found);
		aside->first.member = found;
		aside->first.hash = aside->flow.src_lo >> 32;
		aside->word = member_word(found);
	}
	return forward_slot(ctx, &aside->flow, index, aside);
}

/* icmp_is_error says whether the ICMP message is one that quotes a packet. */
static __always_inline int icmp_is_error(struct xdp_md *ctx, const struct packet *p)
{
	const void *data = (const void *)(long)ctx->data, *end = (const void *)(long)ctx->data_end;
	const __u8 *type = data + (p->l4 & 0x7fff);

	if (p->l4 + ICMP_HEADER > ETH_HLEN + p->l3_len || type + 1 > (const __u8 *)end)
		return 0;
	return quoted_announced(p, *type);
}

/* untag takes the tags off a frame that is for a VIP of ours, or may be an answer to a probe, and notes them in aside; else it says how the frame ends,
 * untouched. 0: go on. */
static __noinline int untag(struct xdp_md *ctx, struct aside *aside)
{
	const void *data = (const void *)(long)ctx->data, *end = (const void *)(long)ctx->data_end;
	const __u8 *ip;
	__u64 hi = 0, lo;
	__u16 type, protocol;

	if (!vlan_read(data, end, &aside->tags, &type))
		return drop(MUX_REASON_TRUNCATED);
	ip = data + ETH_HLEN + vlan_len(aside->tags);
	if (type == bpf_htons(ETH_P_IP)) {
		if (ip + sizeof(struct iphdr) > (const __u8 *)end)
			return drop(MUX_REASON_TRUNCATED);
		lo = V4_MAPPED | (__u64)*(const __u32 *)(ip + 16) << 32;
		protocol = ip[9];
	} else if (type == bpf_htons(ETH_P_IPV6)) {
		if (ip + sizeof(struct ipv6hdr) > (const __u8 *)end)
			return drop(MUX_REASON_TRUNCATED);
		hi = *(const __u64 *)(ip + 24);
		lo = *(const __u64 *)(ip + 32);
		protocol = ip[6];
		if (is_mapped(hi, lo))
			return pass(MUX_REASON_PASS_NOT_OURS);
	} else {
		return pass(vlan_is(type) ? MUX_REASON_PASS_NOT_OURS : MUX_REASON_PASS_NOT_IP);
	}
	if (!find_vip(hi, lo) && !probe_possible(protocol) && !nat_own(hi, lo))
		return pass(MUX_REASON_PASS_NOT_OURS);
	return vlan_strip(ctx, aside->tags) ? 0 : drop(MUX_REASON_INTERNAL);
}

/* settle_icmp ends an ICMP message to the VIP whose slot has index `vip`. */
static __always_inline int settle_icmp(struct xdp_md *ctx, __u32 vip, struct aside *aside)
{
	struct packet *p = &aside->packet;
	__u64 found;
	__u32 index;

	if (icmp_is_error(ctx, p)) {
		if (is_martian(p))
			return drop(MUX_REASON_BAD_SOURCE);
		index = icmp_error(ctx, vip, aside);
		return index ? forward_error(ctx, index - 1, aside) : drop(MUX_REASON_ICMP_ERROR_UNKNOWN);
	}
	found = outbound_echo(ctx, vip, aside);
	if (!found)
		return ping(ctx, p, vip, aside);
	return found >> 32 ? drop(found >> 32) : forward_slot(ctx, p, found - 1, aside);
}

/* settle_found finds who takes a packet to the VIP whose slot has index `vip`: as fragment answers. */
static __always_inline __u64 settle_found(__u32 vip, struct aside *aside)
{
	struct packet *p = &aside->packet;
	/* Untagged packets with ports were looked for already. */
	__u64 found = aside->tags || !has_ports(p) ? find_taker(p) : 0;

	if (!found && has_ports(p))
		found = outbound(p, vip, p->dport, aside);
	if (found)
		return found;
	return (__u64)(has_ports(p) ? MUX_REASON_NO_ENDPOINT : MUX_REASON_PROTOCOL) << 32;
}

/* settle_ip ends an IP packet for the VIP whose slot has index `vip`; parsing ended with `reason`. */
static __always_inline int settle_ip(struct xdp_md *ctx, int reason, __u32 vip, struct aside *aside)
{
	struct packet *p = &aside->packet;
	__u64 found;

	if (reason && reason != MUX_REASON_FRAGMENT)
		return drop(reason);
	if (!reason && p->protocol == (p->family == 4 ? PROTOCOL_ICMP : PROTOCOL_ICMPV6))
		return settle_icmp(ctx, vip, aside);
	found = reason ? fragment(ctx, vip, aside) : settle_found(vip, aside);
	return found >> 32 ? drop(found >> 32) : forward_slot(ctx, p, found - 1, aside);
}

/* unclaimed ends an IP packet for no VIP of ours; parsing ended with `reason`. It may be a server's, for the client of a session. */
static __noinline int unclaimed(struct xdp_md *ctx, int reason, struct aside *aside)
{
	int verdict = nat_word() ? nat_returned(ctx, reason) : NAT_NONE;

	if (verdict != NAT_NONE)
		return verdict;
	/* The address is on no interface: the kernel would send it back to the router, which sends it here. */
	if (nat_own(aside->packet.dst_hi, aside->packet.dst_lo))
		return drop(MUX_REASON_NAT_UNKNOWN);
	verdict = reason ? PROBE_NONE : probe(ctx, aside);
	if (verdict != PROBE_NONE)
		return verdict;
	if (aside->tags && !vlan_push(ctx, aside->tags))
		return drop(MUX_REASON_NO_HEADROOM);
	return pass(MUX_REASON_PASS_NOT_OURS);
}

/* settle ends a packet that is not simply forwarded. It reads the packet again, so that the walk of those that are need
 * not keep anything for it. */
__attribute__((noinline)) int settle(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 zero = 0, vip;
	struct aside *aside = bpf_map_lookup_elem(&asides, &zero);
	int reason;

	if (!aside)
		return drop(MUX_REASON_INTERNAL);
	aside->tags = 0;
	aside->how = 0;
	if (data + ETH_HLEN <= end && vlan_is(*(const __u16 *)(data + VLAN_MACS))) {
		reason = untag(ctx, aside);
		if (reason)
			return reason;
		data = (void *)(long)ctx->data;
		end = (void *)(long)ctx->data_end;
	}
	reason = parse_frame(ctx, data, end, &aside->packet);
	if (!aside->packet.family)
		return reason == MUX_REASON_TRUNCATED ? drop(reason) : pass(reason);
	vip = find_vip(aside->packet.dst_hi, aside->packet.dst_lo);
	return vip ? settle_ip(ctx, reason, vip - 1, aside) : unclaimed(ctx, reason, aside);
}

#endif
