/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Packet too big: ICMP type 3 code 4 (RFC 1191), ICMPv6 type 2 (RFC 4443 section 3.2), made of the packet itself. */
#ifndef SHUNT_PTB_H
#define SHUNT_PTB_H

#include <linux/types.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include "abi.h"
#include "csum.h"
#include "encap.h"
#include "icmp.h"
#include "parse.h"

enum ptb {
	PTB_HEADERS4 = sizeof(struct iphdr) + ICMP_HEADER,
	PTB_HEADERS6 = sizeof(struct ipv6hdr) + ICMP_HEADER,
	/* As much of the packet as keeps the message within 576 bytes (RFC 1812 section 4.3.2.3) and 1280 (RFC 4443). */
	PTB_QUOTE4 = 576 - PTB_HEADERS4,
	PTB_QUOTE6 = 1280 - PTB_HEADERS6,
	/* Type 3, code 4; type 2, code 0; as stored. */
	PTB_TYPE4 = 0x0403,
	PTB_TYPE6 = 0x0002,
	/* Precedence of messages about the network itself (RFC 1812 section 4.3.2.5). */
	PTB_TOS = 0xc0,
};

/* ptb_ip4 writes the headers in front of `quote` bytes of the packet. */
static __always_inline int ptb_ip4(struct xdp_md *ctx, const struct packet *p, __u32 mtu, __u32 quote)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 *w = data + ETH_HLEN;
	__u16 *icmp = (__u16 *)(w + 5);
	__u64 sum;

	if (data + ETH_HLEN + PTB_HEADERS4 > end)
		return 0;
	w[0] = 0x45 | PTB_TOS << 8 | (__u32)bpf_htons(quote + PTB_HEADERS4) << 16;
	w[1] = (__u32)bpf_htons(ENCAP_DF) << 16;
	w[2] = ENCAP_TTL | PROTOCOL_ICMP << 8;
	w[3] = p->dst_lo >> 32;
	w[4] = p->src_lo >> 32;
	w[2] |= (__u32)(__u16)~csum_fold((__u64)w[0] + w[1] + w[2] + w[3] + w[4]) << 16;
	icmp[0] = PTB_TYPE4;
	icmp[1] = 0;
	icmp[2] = 0;
	icmp[3] = bpf_htons(mtu);
	sum = icmp_sum(ctx, ETH_HLEN + sizeof(struct iphdr), ICMP_HEADER + quote);
	icmp[1] = ~csum_fold(sum);
	return 1;
}

/* ptb_ip6 is ptb_ip4 for IPv6. */
static __always_inline int ptb_ip6(struct xdp_md *ctx, const struct packet *p, __u32 mtu, __u32 quote)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 *w = data + ETH_HLEN;
	__u64 *addr = (__u64 *)(w + 2);
	__u16 *icmp = (__u16 *)(w + 10);
	__u64 sum;

	if (data + ETH_HLEN + PTB_HEADERS6 > end)
		return 0;
	w[0] = bpf_htonl(0x60000000);
	w[1] = (__u32)bpf_htons(ICMP_HEADER + quote) | PROTOCOL_ICMPV6 << 16 | (__u32)ENCAP_TTL << 24;
	addr[0] = p->dst_hi;
	addr[1] = p->dst_lo;
	addr[2] = p->src_hi;
	addr[3] = p->src_lo;
	icmp[0] = PTB_TYPE6;
	icmp[1] = 0;
	*(__u32 *)(icmp + 2) = bpf_htonl(mtu);
	sum = csum_pseudo6((const __u32 *)addr, bpf_htonl(ICMP_HEADER + quote), bpf_htonl(PROTOCOL_ICMPV6));
	sum += icmp_sum(ctx, ETH_HLEN + sizeof(struct ipv6hdr), ICMP_HEADER + quote);
	icmp[1] = ~csum_fold(sum);
	return 1;
}

/* ptb_make turns a packet into the message that it is larger than `mtu`, from its destination to its source and back
 * through the same Ethernet addresses: a reason for failure, or 0. */
static __always_inline int ptb_make(struct xdp_md *ctx, const struct packet *p, __u32 mtu)
{
	__u32 quote = p->family == 4 ? PTB_QUOTE4 : PTB_QUOTE6, have = bpf_xdp_get_buff_len(ctx) - ETH_HLEN;
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u64 to, from;

	if (quote > p->l3_len)
		quote = p->l3_len;
	if (data + ETH_HLEN > end)
		return MUX_REASON_INTERNAL;
	/* Addresses as in struct device. */
	to = *(__u64 *)(data + 4) >> 16;
	from = *(__u64 *)data & 0xffffffffffffULL;
	if (have > quote && bpf_xdp_adjust_tail(ctx, -(int)(have - quote)))
		return MUX_REASON_INTERNAL;
	if (bpf_xdp_adjust_head(ctx, p->family == 4 ? -PTB_HEADERS4 : -PTB_HEADERS6))
		return MUX_REASON_NO_HEADROOM;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (data + ETH_HLEN > end)
		return MUX_REASON_INTERNAL;
	encap_ethernet(data, to, from, p->family == 4 ? ETH_P_IP : ETH_P_IPV6);
	if (!(p->family == 4 ? ptb_ip4(ctx, p, mtu, quote) : ptb_ip6(ctx, p, mtu, quote)))
		return MUX_REASON_INTERNAL;
	return 0;
}

#endif
