/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Rewriting packets of path nat: addresses, ports, timestamps, and what ICMP errors quote. Checksums stay as right or wrong as they were. */
#ifndef SHUNT_MUX_NAT_REWRITE_H
#define SHUNT_MUX_NAT_REWRITE_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include "abi.h"
#include "lib/csum.h"
#include "lib/options.h"
#include "lib/parse.h"
#include "mux/aside.h"
#include "mux/tables.h"

/* nat_diff is what a 64-bit word does to a sum when it becomes another one. */
static __always_inline __u64 nat_diff(__u64 from, __u64 to)
{
	return (__u64)(__u32)~from + (__u32)~(from >> 32) + (__u32)to + (to >> 32);
}

/* nat_address_diff is what other addresses do to the sum over the pseudo header. Of mapped addresses the first 96 bits are equal. */
static __always_inline __u64 nat_address_diff(const struct packet *p, const struct nat_key *to)
{
	__u64 sum = nat_diff(p->src_lo, to->src_lo) + nat_diff(p->dst_lo, to->dst_lo);

	if (p->family == 6)
		sum += nat_diff(p->src_hi, to->src_hi) + nat_diff(p->dst_hi, to->dst_hi);
	return sum;
}

/* nat_ports_diff is what other ports do to a sum. */
static __always_inline __u64 nat_ports_diff(__u16 sport, __u16 dport, __u16 new_sport, __u16 new_dport)
{
	return (__u64)(__u16)~bpf_htons(sport) + (__u16)~bpf_htons(dport) + bpf_htons(new_sport) + bpf_htons(new_dport);
}

/* nat_check is a checksum after a change of the sum (RFC 1624): of the two zeros 0xffff. */
static __always_inline __u16 nat_check(__u16 check, __u64 diff)
{
	__u16 sum = ~csum_fold((__u64)(__u16)~check + diff);

	return sum ? sum : 0xffff;
}

/* nat_ip gives the IP header other addresses. */
static __always_inline int nat_ip(void *data, const void *end, const struct packet *p, const struct nat_key *to)
{
	struct ipv6hdr *ip6 = data + ETH_HLEN;
	struct iphdr *ip = data + ETH_HLEN;
	__u64 *addr;

	if (p->family == 4) {
		if ((const void *)(ip + 1) > end)
			return 0;
		ip->check = ~csum_fold((__u64)(__u16)~ip->check + nat_address_diff(p, to));
		ip->saddr = to->src_lo >> 32;
		ip->daddr = to->dst_lo >> 32;
		return 1;
	}
	if ((const void *)(ip6 + 1) > end)
		return 0;
	addr = (__u64 *)&ip6->saddr;
	addr[0] = to->src_hi;
	addr[1] = to->src_lo;
	addr[2] = to->dst_hi;
	addr[3] = to->dst_lo;
	return 1;
}

/* nat_packet makes source and destination of the packet of aside those of aside->nat.to; false when the frame is too short, which parsing has
 * excluded. */
__attribute__((noinline)) int nat_packet(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 zero = 0;
	struct aside *aside = bpf_map_lookup_elem(&asides, &zero);
	const struct packet *p;
	const struct nat_key *to;
	__u16 *l4, *check;
	__u64 diff;

	if (!aside)
		return 0;
	p = &aside->packet;
	to = &aside->nat.to;
	if (!nat_ip(data, end, p, to))
		return 0;
	l4 = data + (p->l4 & 0x7fff);
	if ((const void *)(l4 + 4) > end)
		return 0;
	diff = nat_address_diff(p, to) + nat_ports_diff(p->sport, p->dport, to->sport, to->dport);
	l4[0] = bpf_htons(to->sport);
	l4[1] = bpf_htons(to->dport);
	check = p->protocol == PROTOCOL_UDP ? l4 + 3 : l4 + 8;
	if ((const void *)(check + 1) > end)
		return 0;
	if (p->protocol != PROTOCOL_UDP || *check)
		*check = nat_check(*check, diff);
	return 1;
}

/* nat_options is where TSval of the segment's timestamps begins, counted from the TCP header; 0: there are none. */
__attribute__((noinline)) __u32 nat_options(struct xdp_md *ctx, __u32 at, __u32 limit)
{
	const void *data = (const void *)(long)ctx->data, *end = (const void *)(long)ctx->data_end;
	const struct tcphdr *tcp = data + (at & 0x7fff);
	const __u32 *opt = (const __u32 *)(tcp + 1);
	struct tcp_options o = {};
	__u32 len;

	if ((const void *)(tcp + 1) > end)
		return 0;
	len = tcp->doff * 4 - sizeof(*tcp);
	if (len >= OPTIONS_USUAL_LEN && (const void *)(opt + 3) <= end && *opt == OPTIONS_USUAL)
		return sizeof(*tcp) + 4;
	if (!len || len > LIMIT_TCP_OPTIONS || at + sizeof(*tcp) + len > limit)
		return 0;
	if (bpf_xdp_load_bytes(ctx, (at & 0x7fff) + sizeof(*tcp), o.bytes, len))
		return 0;
	o.len = len;
	len = options_timestamps(&o);
	return len ? sizeof(*tcp) + len : 0;
}

/* nat_time makes the 32-bit word at offset `at` of the TCP header of the packet of aside another one, both in host order. */
__attribute__((noinline)) int nat_time(struct xdp_md *ctx, __u32 at, __u32 from, __u32 value)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 zero = 0, be = bpf_htonl(value), was = bpf_htonl(from);
	struct aside *aside = bpf_map_lookup_elem(&asides, &zero);
	struct tcphdr *tcp;
	__u64 diff;

	if (!aside)
		return 0;
	tcp = data + (aside->packet.l4 & 0x7fff);
	if ((void *)(tcp + 1) > end)
		return 0;
	diff = (__u64)(__u32)~was + be;
	diff = (__u32)diff + (diff >> 32);
	/* At an odd offset bytes count swapped (RFC 1071 section 2). */
	if (at & 1)
		diff = (__u64)(__u32)diff << 8;
	tcp->check = nat_check(tcp->check, diff);
	return !bpf_xdp_store_bytes(ctx, (aside->packet.l4 & 0x7fff) + at, &be, sizeof(be));
}

/* The beginning of a packet that an ICMP error quotes, and where it is. */
struct nat_quote {
	__u32 ip;        /* offset of its IP header in the frame */
	__u32 transport; /* and of its transport header */
	__u32 limit;     /* where the quote ends */
	__u32 rsv;
	__u64 diff;      /* what was changed does to the sum over the message */
};

/* nat_quoted_word puts 16 bits, as stored, at `at` of the frame, and counts what that does to the sum. */
static __always_inline int nat_quoted_word(struct xdp_md *ctx, struct nat_quote *q, __u32 at, __u16 from, __u16 to)
{
	q->diff += (__u64)(__u16)~from + to;
	return !bpf_xdp_store_bytes(ctx, at, &to, sizeof(to));
}

/* nat_quoted_ip gives the quoted IP header the addresses of a packet that goes the other way than `to`; what they do to a sum is added to *addresses. */
static __always_inline int nat_quoted_ip(struct xdp_md *ctx, struct nat_quote *q, const struct packet *flow, const struct nat_key *to,
					 __u64 *addresses)
{
	__u64 addr[4] = { to->dst_hi, to->dst_lo, to->src_hi, to->src_lo };
	__u32 four[2] = { to->dst_lo >> 32, to->src_lo >> 32 };
	__u16 check;

	/* The quoted packet is the flow's the other way round: what it does to a sum is the same. */
	*addresses = nat_address_diff(flow, to);
	q->diff += *addresses;
	if (flow->family == 6)
		return !bpf_xdp_store_bytes(ctx, q->ip + 8, addr, sizeof(addr));
	if (bpf_xdp_load_bytes(ctx, q->ip + 10, &check, sizeof(check)) || bpf_xdp_store_bytes(ctx, q->ip + 12, four, sizeof(four)))
		return 0;
	return nat_quoted_word(ctx, q, q->ip + 10, check, ~csum_fold((__u64)(__u16)~check + *addresses));
}

/* nat_quoted_l4 gives the quoted transport header other ports, and its checksum what goes with them if the quote reaches so far. */
static __always_inline int nat_quoted_l4(struct xdp_md *ctx, struct nat_quote *q, const struct packet *flow, const struct nat_key *to,
					 __u64 addresses)
{
	__u32 at = q->transport + (flow->protocol == PROTOCOL_UDP ? 6 : 16);
	__u64 diff = nat_ports_diff(flow->sport, flow->dport, to->sport, to->dport);
	__u16 check;

	if (!nat_quoted_word(ctx, q, q->transport, bpf_htons(flow->dport), bpf_htons(to->dport)) ||
	    !nat_quoted_word(ctx, q, q->transport + 2, bpf_htons(flow->sport), bpf_htons(to->sport)))
		return 0;
	if (at + sizeof(check) > q->limit)
		return 1;
	if (bpf_xdp_load_bytes(ctx, at, &check, sizeof(check)))
		return 1; /* nor does the frame */
	if (flow->protocol == PROTOCOL_UDP && !check)
		return 1;
	return nat_quoted_word(ctx, q, at, check, nat_check(check, addresses + diff));
}

/* nat_message makes the ICMP error of aside, about aside->flow, one about the same packet as it is on the other side, from and to the addresses of
 * aside->nat.to. */
__attribute__((noinline)) int nat_message(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 zero = 0;
	struct aside *aside = bpf_map_lookup_elem(&asides, &zero);
	struct nat_quote q = {};
	const struct packet *p, *flow;
	const struct nat_key *to;
	__u64 addresses = 0;
	__u16 *icmp;

	if (!aside)
		return 0;
	p = &aside->packet;
	flow = &aside->flow;
	to = &aside->nat.to;
	q.ip = (p->l4 & 0x7fff) + ICMP_HEADER;
	q.transport = flow->quote & 0x7fff;
	q.limit = ETH_HLEN + p->l3_len;
	if (!nat_quoted_ip(ctx, &q, flow, to, &addresses) || !nat_quoted_l4(ctx, &q, flow, to, addresses))
		return 0;
	if (p->family == 6)
		q.diff += nat_address_diff(p, to);
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	icmp = data + (p->l4 & 0x7fff);
	if ((void *)(icmp + 2) > end)
		return 0;
	icmp[1] = nat_check(icmp[1], q.diff);
	return nat_ip(data, end, p, to);
}

#endif
