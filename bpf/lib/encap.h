/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Outer headers: IPv4 (RFC 2003, 4in4 and 6in4) and IPv6 (RFC 2473, 6in6 and 4in6). */
#ifndef SHUNT_ENCAP_H
#define SHUNT_ENCAP_H

#include <linux/types.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include "abi.h"
#include "csum.h"
#include "parse.h"

enum encap {
	ENCAP_TTL = 64,
	ENCAP_DF = 0x4000,
};

/* decrement_ttl takes one off the inner TTL, as forwarding into a tunnel does (RFC 2003 section 3.1), and keeps the
 * IPv4 checksum right: the word loses 1 as stored, so the checksum gains 1. */
static __always_inline void decrement_ttl(void *data, __u8 family)
{
	if (family == 4) {
		struct iphdr *ip = data + ETH_HLEN;
		__u32 check = (__u32)ip->check + 1;

		ip->ttl--;
		ip->check = check + (check >= 0xffff);
	} else {
		struct ipv6hdr *ip = data + ETH_HLEN;

		ip->hop_limit--;
	}
}

/* encap_source4 is the outer IPv4 source of a flow, as stored. */
static __always_inline __u32 encap_source4(const struct mux_config *c, __u64 hash)
{
	return c->outer4_base_be | (bpf_htonl((__u32)hash) & c->outer4_mask_be);
}

/* encap_inner is the protocol number of a packet in a tunnel. */
static __always_inline __u32 encap_inner(const struct packet *p)
{
	return p->family == 4 ? PROTOCOL_IPIP : PROTOCOL_IPV6;
}

/* encap_ip4 writes an outer IPv4 header in front of `len` bytes of `protocol`: DSCP and ECN as inside (RFC 6040, normal
 * mode), don't fragment, id 0 (RFC 6864). */
static __always_inline void encap_ip4(void *ip, const struct backend *b, const struct packet *p, __u32 len, __u32 protocol,
				      __u32 source)
{
	__u32 first = 0x45 | (__u32)p->tos << 8 | (__u32)bpf_htons(len + sizeof(struct iphdr)) << 16;
	__u32 sum = b->sum4 + (first & 0xffff) + (first >> 16) + (protocol << 8) + (source & 0xffff) + (source >> 16);
	__u32 *w = ip;

	w[0] = first;
	w[1] = (__u32)bpf_htons(ENCAP_DF) << 16;
	w[2] = ENCAP_TTL | protocol << 8 | (__u32)(__u16)~csum_fold_small(sum) << 16;
	w[3] = source;
	w[4] = b->outer4_be;
}

/* encap_ip6 writes an outer IPv6 header in front of `len` bytes of protocol `next`. The source's lower half and the flow
 * label (RFC 6438) vary with the flow. */
static __always_inline void encap_ip6(void *ip, const struct backend *b, const struct packet *p, __u32 len, __u32 next,
				      const struct mux_config *c, __u64 hash)
{
	__u32 *w = ip;

	w[0] = bpf_htonl(0x60000000 | (__u32)p->tos << 20 | (hash & 0xfffff));
	w[1] = (__u32)bpf_htons(len) | next << 16 | (__u32)ENCAP_TTL << 24;
	*(__u64 *)(w + 2) = *(const __u64 *)c->outer6_base;
	*(__u64 *)(w + 4) = (__u64)bpf_htonl((__u32)hash) << 32;
	*(__u64 *)(w + 6) = *(const __u64 *)b->outer_dst;
	*(__u64 *)(w + 8) = *(const __u64 *)(b->outer_dst + 8);
}

/* encap_ethernet writes an Ethernet header: next hop word, own address word (enum nexthop_bit, struct device). */
static __always_inline void encap_ethernet(void *eth, __u64 nexthop, __u64 mac, __u16 type)
{
	*(__u64 *)eth = (nexthop & 0xffffffffffffULL) | mac << 48;
	*(__u32 *)(eth + 8) = mac >> 16;
	*(__u16 *)(eth + 12) = bpf_htons(type);
}

#endif
