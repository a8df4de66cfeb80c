/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Fragments (RFC 791 section 3.2, RFC 8200 section 4.5): what they say of themselves. */
#ifndef SHUNT_FRAGMENT_H
#define SHUNT_FRAGMENT_H

#include <linux/types.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include "abi.h"
#include "parse.h"

/* What a fragment says of itself. */
struct fragment_view {
	__u32 id;     /* as stored */
	__u16 offset; /* nonzero: not the first */
	__u16 more;   /* nonzero: not the last */
};

/* fragment_udp reads the UDP header of a first fragment: its length is the whole datagram's. */
static __always_inline int fragment_udp(const void *l4, __u32 len, const void *end, struct packet *p)
{
	int reason = parse_udp(l4, len, end, p);
	const struct udphdr *udp = l4;

	if (reason != MUX_REASON_UDP_BAD_LENGTH || (const void *)(udp + 1) > end)
		return reason;
	return bpf_ntohs(udp->len) < sizeof(*udp) ? reason : 0;
}

/* fragment_l4 reads the ports of a first fragment, whose transport header must be whole. */
static __always_inline int fragment_l4(struct xdp_md *ctx, __u32 more, struct packet *p)
{
	const void *data = (const void *)(long)ctx->data, *end = (const void *)(long)ctx->data_end;
	const void *l4 = data + (p->l4 & 0x7fff);
	__u32 len = ETH_HLEN + p->l3_len - p->l4;

	if (p->protocol == PROTOCOL_UDP && more)
		return fragment_udp(l4, len, end, p);
	return parse_l4(ctx, l4, len, end, p);
}

/* fragment_read4 reads what parse_ip4 has checked. */
static __always_inline int fragment_read4(struct xdp_md *ctx, struct packet *p, struct fragment_view *v)
{
	const void *data = (const void *)(long)ctx->data, *end = (const void *)(long)ctx->data_end;
	const struct iphdr *ip = data + ETH_HLEN;
	__u16 word;

	if ((const void *)(ip + 1) > end)
		return MUX_REASON_TRUNCATED;
	word = bpf_ntohs(ip->frag_off);
	v->id = ip->id;
	v->offset = word & 0x1fff;
	v->more = word & 0x2000;
	return v->offset ? 0 : fragment_l4(ctx, v->more, p);
}

/* fragment_read6 reads a packet that parse_ip6 found to be a fragment, and what follows in a first one. */
static __always_inline int fragment_read6(struct xdp_md *ctx, struct packet *p, struct fragment_view *v)
{
	__u32 at = parse_ip6_extensions(ctx, p->l3_len, p->protocol, ETH_HLEN + sizeof(struct ipv6hdr)) & 0x7fff, behind;
	const void *data = (const void *)(long)ctx->data, *end = (const void *)(long)ctx->data_end;
	const __u8 *h = data + at;
	__u16 word;

	if (at + 8 > ETH_HLEN + p->l3_len || (const void *)(h + 8) > end)
		return MUX_REASON_IP6_EXTENSIONS;
	word = bpf_ntohs(*(const __u16 *)(h + 2));
	v->id = *(const __u32 *)(h + 4);
	v->offset = word >> 3;
	v->more = word & 1;
	p->protocol = h[0];
	p->l4 = at + 8;
	if (v->offset)
		return 0;
	behind = parse_ip6_extensions(ctx, p->l3_len, p->protocol, at + 8);
	if (behind >> EXTENSIONS_REASON_SHIFT)
		return MUX_REASON_IP6_EXTENSIONS; /* a fragment of a fragment among them */
	p->protocol = behind >> EXTENSIONS_PROTOCOL_SHIFT;
	p->l4 = behind & 0x7fff;
	return fragment_l4(ctx, v->more, p);
}

/* fragment_read reads a packet that parsing ended at with MUX_REASON_FRAGMENT: the reason for refusal, or 0. Of a first
 * fragment protocol and ports are known then; of another one the protocol is what its header says, which need not be the
 * first one's (RFC 8200). */
static __always_inline int fragment_read(struct xdp_md *ctx, struct packet *p, struct fragment_view *v)
{
	int reason;

	p->sport = p->dport = 0;
	reason = p->family == 4 ? fragment_read4(ctx, p, v) : fragment_read6(ctx, p, v);
	if (v->offset)
		p->segment = p->protocol == PROTOCOL_TCP ? 0 : SEGMENT_ACK;
	return reason;
}

#endif
