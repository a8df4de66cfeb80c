/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* ICMP errors (RFC 792, RFC 4443) and the packet that they quote, as the mux sees them. The checksum is not looked at: the server's kernel, which
 * acts on the message, does that, and a quoted flow that bit errors made leads to a member that throws it away. */
#ifndef SHUNT_QUOTED_H
#define SHUNT_QUOTED_H

#include <linux/types.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include "abi.h"
#include "icmp.h"
#include "parse.h"

/* quoted_announced says whether a message of this type quotes a packet that could be ours: unreachable, time exceeded,
 * parameter problem; of IPv6 packet too big too. Source quench is dead (RFC 6633), redirects are no business of a VIP. */
static __always_inline int quoted_announced(const struct packet *p, __u8 type)
{
	if (p->family == 4)
		return type == 3 || type == 11 || type == 12;
	return type >= 1 && type <= 4;
}

/* quoted_ports takes protocol and ports, the other way round, from the 8 bytes of transport header at `l4`, which every
 * error quotes (RFC 792). Other protocols have no ports. */
static __always_inline void quoted_ports(const __u8 *l4, __u8 protocol, struct packet *flow)
{
	flow->protocol = protocol;
	if (!has_ports(flow))
		return;
	flow->sport = bpf_ntohs(*(const __u16 *)(l4 + 2));
	flow->dport = bpf_ntohs(*(const __u16 *)l4);
}

/* quoted_read4 reads a quoted IPv4 packet at `at`; the message ends at `limit`. */
static __always_inline int quoted_read4(struct xdp_md *ctx, __u32 at, __u32 limit, struct packet *flow)
{
	const void *data = (const void *)(long)ctx->data, *end = (const void *)(long)ctx->data_end;
	const struct iphdr *ip = data + (at & 0x7fff);
	const __u8 *l4;
	__u32 header;

	if (at + sizeof(*ip) > limit || (const void *)(ip + 1) > end)
		return 0;
	header = (*(const __u8 *)ip & 15) * 4;
	l4 = (const __u8 *)ip + header;
	if (*(const __u8 *)ip >> 4 != 4 || header < sizeof(*ip) || bpf_ntohs(ip->tot_len) < header + ICMP_HEADER)
		return 0;
	if (ip->frag_off & bpf_htons(0x1fff)) /* no ports in it */
		return 0;
	if (at + header + ICMP_HEADER > limit || (const void *)(l4 + ICMP_HEADER) > end)
		return 0;
	flow->src_lo = V4_MAPPED | (__u64)ip->daddr << 32;
	flow->dst_lo = V4_MAPPED | (__u64)ip->saddr << 32;
	flow->quote = at + header;
	quoted_ports(l4, ip->protocol, flow);
	return 1;
}

/* quoted_read6 is quoted_read4 for IPv6. Behind extension headers other than that of a first fragment nothing is found. */
static __always_inline int quoted_read6(struct xdp_md *ctx, __u32 at, __u32 limit, struct packet *flow)
{
	const void *data = (const void *)(long)ctx->data, *end = (const void *)(long)ctx->data_end;
	const __u8 *ip = data + (at & 0x7fff), *l4 = ip + sizeof(struct ipv6hdr);
	const __u64 *addr = (const __u64 *)(ip + 8);
	__u8 next;

	if (at + sizeof(struct ipv6hdr) + ICMP_HEADER > limit || (const void *)(l4 + ICMP_HEADER) > end)
		return 0;
	if (ip[0] >> 4 != 6)
		return 0;
	next = ip[6];
	flow->src_hi = addr[2];
	flow->src_lo = addr[3];
	flow->dst_hi = addr[0];
	flow->dst_lo = addr[1];
	flow->quote = at + sizeof(struct ipv6hdr);
	if (next == PROTOCOL_FRAGMENT) {
		next = l4[0];
		if (*(const __u16 *)(l4 + 2) & bpf_htons(0xfff8))
			return 0;
		l4 += 8;
		flow->quote += 8;
		if (at + sizeof(struct ipv6hdr) + 8 + ICMP_HEADER > limit || (const void *)(l4 + ICMP_HEADER) > end)
			return 0;
	}
	quoted_ports(l4, next, flow);
	return 1;
}

/* quoted_read makes `flow` the packet of the client's direction that the quoted packet of an ICMP error answers; length,
 * TOS and TTL are the error's own. False when the error quotes too little, or a packet that did not come from where the
 * error went. */
static __always_inline int quoted_read(struct xdp_md *ctx, const struct packet *p, struct packet *flow)
{
	__u32 at = p->l4 + ICMP_HEADER, limit = ETH_HLEN + p->l3_len;

	*flow = *p;
	flow->sport = flow->dport = 0;
	flow->segment = 0;
	if (!(p->family == 4 ? quoted_read4(ctx, at, limit, flow) : quoted_read6(ctx, at, limit, flow)))
		return 0;
	return flow->dst_hi == p->dst_hi && flow->dst_lo == p->dst_lo;
}

#endif
