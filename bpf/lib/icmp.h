/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Echo replies (RFC 792, RFC 4443 section 4.2): the request, turned round in place. */
#ifndef SHUNT_ICMP_H
#define SHUNT_ICMP_H

#include <linux/types.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include "abi.h"
#include "csum.h"
#include "encap.h"
#include "parse.h"

enum icmp {
	ICMP_HEADER = 8,
	ICMP_TYPE_REPLY4 = 0,
	ICMP_TYPE_REQUEST4 = 8,
	ICMP_TYPE_REQUEST6 = 128,
	ICMP_TYPE_REPLY6 = 129,
	/* Largest message answered: an IPv4 packet of 9000 bytes. */
	ICMP_MAX = 8980,
	ICMP_CHUNK = 32, /* bytes summed at a time */
};

/* icmp_sum sums `len` bytes, at most ICMP_MAX, at offset `at` of the frame, whose tail may be in fragments. The result is
 * below 1 << 48. Global for the verifier's sake, like parse_tcp_options. */
__attribute__((noinline)) __u64 icmp_sum(struct xdp_md *ctx, __u32 at, __u32 len)
{
	__u32 chunk[ICMP_CHUNK / 4];
	__u64 sum = 0;

	for (__u32 i = 0; i < ICMP_MAX / ICMP_CHUNK && len >= ICMP_CHUNK; i++) {
		if (bpf_xdp_load_bytes(ctx, at, chunk, ICMP_CHUNK))
			return 0;
#pragma unroll
		for (__u32 k = 0; k < ICMP_CHUNK / 4; k++)
			sum += chunk[k];
		at += ICMP_CHUNK;
		len -= ICMP_CHUNK;
	}
	len &= ICMP_CHUNK - 1;
	/* Without this clang drops the mask: "invalid zero-sized read: u64=[0,4294967295]" (Linux 6.18). */
	asm volatile("" : "+r"(len));
	if (!len)
		return sum;
	__builtin_memset(chunk, 0, sizeof(chunk));
	if (bpf_xdp_load_bytes(ctx, at, chunk, len))
		return 0;
#pragma unroll
	for (__u32 k = 0; k < ICMP_CHUNK / 4; k++)
		sum += chunk[k];
	return sum;
}

/* icmp_check says why an ICMP message to a VIP is not answered, 0 when it is. */
static __always_inline int icmp_check(struct xdp_md *ctx, const void *data, const void *end, const struct packet *p)
{
	const __u8 *icmp = data + (p->l4 & 0x7fff);
	__u32 len = ETH_HLEN + p->l3_len - p->l4;
	__u8 request = p->family == 4 ? ICMP_TYPE_REQUEST4 : ICMP_TYPE_REQUEST6;
	__u32 plain = p->family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	__u64 sum = 0;

	if (len < ICMP_HEADER || icmp + ICMP_HEADER > (const __u8 *)end || data + ETH_HLEN + plain > end)
		return MUX_REASON_TRUNCATED;
	if (icmp[0] != request || icmp[1] != 0 || len > ICMP_MAX || p->l4 != ETH_HLEN + plain || !source_possible(p))
		return MUX_REASON_ICMP_IGNORED;
	if (p->family == 6)
		sum = csum_pseudo6(data + ETH_HLEN + 8, bpf_htonl(len), bpf_htonl(PROTOCOL_ICMPV6));
	return csum_fold(sum + icmp_sum(ctx, p->l4, len)) == 0xffff ? 0 : MUX_REASON_BAD_CHECKSUM;
}

/* icmp_turn makes the reply of a request that icmp_check accepted: addresses swapped, TTL 64, everything else kept.
 * False when the frame is too short, which icmp_check has excluded. */
static __always_inline int icmp_turn(void *data, const void *end, const struct packet *p)
{
	__u8 mac[ETH_ALEN];
	struct ethhdr *eth = data;
	__u16 *icmp;

	if (p->family == 4) {
		struct iphdr *ip = data + ETH_HLEN;
		__u32 addr;
		__u16 ttl, check;

		icmp = (__u16 *)(ip + 1);
		if ((const void *)(icmp + 4) > end)
			return 0;
		addr = ip->saddr;
		ip->saddr = ip->daddr;
		ip->daddr = addr;
		ttl = *(__u16 *)&ip->ttl;
		ip->ttl = ENCAP_TTL;
		check = csum_replace(ip->check, ttl, (ttl & 0xff00) | ENCAP_TTL);
		/* What is not all zeros has no sum of 0xffff (RFC 1624 section 3). */
		ip->check = check == 0xffff ? 0 : check;
		icmp[1] = csum_replace(icmp[1], ICMP_TYPE_REQUEST4, ICMP_TYPE_REPLY4);
		*(__u8 *)icmp = ICMP_TYPE_REPLY4;
	} else {
		struct ipv6hdr *ip = data + ETH_HLEN;
		struct in6_addr addr;

		icmp = (__u16 *)(ip + 1);
		if ((const void *)(icmp + 4) > end)
			return 0;
		addr = ip->saddr;
		ip->saddr = ip->daddr;
		ip->daddr = addr;
		ip->hop_limit = ENCAP_TTL;
		icmp[1] = csum_replace(icmp[1], ICMP_TYPE_REQUEST6, ICMP_TYPE_REPLY6);
		*(__u8 *)icmp = ICMP_TYPE_REPLY6;
	}
	__builtin_memcpy(mac, eth->h_source, ETH_ALEN);
	__builtin_memcpy(eth->h_source, eth->h_dest, ETH_ALEN);
	__builtin_memcpy(eth->h_dest, mac, ETH_ALEN);
	return 1;
}

#endif
