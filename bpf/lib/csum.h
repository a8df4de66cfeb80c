/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The Internet checksum (RFC 1071, RFC 1624). Sums are of 16-bit words as stored, so no byte is ever swapped. */
#ifndef SHUNT_CSUM_H
#define SHUNT_CSUM_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

/* csum_fold folds a sum of 16- and 32-bit words (below 1 << 48) into 16 bits. */
static __always_inline __u16 csum_fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (__u16)sum;
}

/* csum_fold_small folds a sum below 1 << 31. */
static __always_inline __u16 csum_fold_small(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return sum + (sum >> 16);
}

/* csum_ip4_ok says whether the checksum of an IPv4 header without options is right. */
static __always_inline int csum_ip4_ok(const void *ip)
{
	const __u32 *w = ip;
	__u64 sum = (__u64)w[0] + w[1] + w[2] + w[3] + w[4];

	sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
	/* Now below 3 << 16, and not 0. */
	return (sum & 0xffff) + (sum >> 16) == 0xffff;
}

/* csum_replace updates a checksum for one 16-bit word that changed (RFC 1624, equation 3). Of the two zeros it gives
 * 0xffff, which is right even where everything else is zero. */
static __always_inline __u16 csum_replace(__u16 check, __u16 from, __u16 to)
{
	__u16 sum = ~csum_fold((__u64)(__u16)~check + (__u16)~from + to);

	return sum ? sum : 0xffff;
}

/* csum_pseudo6 sums the IPv6 pseudo header (RFC 8200 section 8.1): addresses, upper-layer length, next header. */
static __always_inline __u64 csum_pseudo6(const __u32 *src_dst, __u32 len_be, __u32 next_be)
{
	__u64 sum = (__u64)len_be + next_be;

#pragma unroll
	for (int i = 0; i < 8; i++)
		sum += src_dst[i];
	return sum;
}

#endif
