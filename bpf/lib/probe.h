/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The client of probes, without state of its own: what a server acknowledges says which probe it answers. */
#ifndef SHUNT_PROBE_H
#define SHUNT_PROBE_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include "abi.h"
#include "csum.h"
#include "encap.h"
#include "parse.h"

/* probe_mix is the round function of the permutation of rule numbers: 10 bits of a keyed hash. */
static __always_inline __u32 probe_mix(__u64 key, __u32 round, __u32 half)
{
	__u64 v = (key ^ (__u64)half << 2 ^ round) * 0x9e3779b97f4a7c15ULL;

	v ^= v >> 32;
	v += key;
	v *= 0xd6e8feb86659fd93ULL;
	v ^= v >> 32;
	v *= 0x9e3779b97f4a7c15ULL;
	return v >> 54;
}

/* probe_number is the number of the rule whose probe was sent with sequence number `seq`, or up to 2047 above its initial
 * one; it may be beyond the table. It inverts a Feistel network with four rounds, whose Go twin is dataplane.ProbeKey. */
static __always_inline __u32 probe_number(__u32 seq, __u64 word)
{
	__u64 key = word & ~(1ULL << PROBE_ON_SHIFT);
	__u32 left = seq >> (PROBE_NUMBER_SHIFT + 10), right = seq >> PROBE_NUMBER_SHIFT & 0x3ff, next;

#pragma unroll
	for (int round = 3; round >= 0; round--) {
		next = right ^ probe_mix(key, round, left);
		right = left;
		left = next;
	}
	return left << 10 | right;
}

/* probe_fits says whether a packet from the server goes to a port of this round of a rule, at our address. */
static __always_inline int probe_fits(const struct probe_rule *r, __u64 round, const struct packet *p)
{
	const __u64 *peer = (const __u64 *)r->peer, *local = (const __u64 *)r->local;
	__u32 attempt = (__u16)(p->dport - (__u16)(round >> PROBE_ROUND_PORT_SHIFT));

	return round && attempt < LIMIT_PROBE_ATTEMPTS && p->sport == bpf_ntohs(r->port_be) && p->src_lo == peer[1] &&
	       p->src_hi == peer[0] && p->dst_lo == local[1] && p->dst_hi == local[0];
}

/* probe_line_of is one of the lines of a rule's texts (enum probe_lines_shift). */
static __always_inline __u32 probe_line_of(__u64 lines, enum probe_lines_shift which)
{
	return lines >> which & 0xfffff;
}

enum probe_line {
	PROBE_STATUS_LINE = 13, /* bytes of "HTTP/1.1 200 " */
};

/* probe_status is the status of an HTTP answer that begins with these PROBE_STATUS_LINE bytes (RFC 9112 section 4), 0 when it
 * is none of HTTP/1, or an interim one (RFC 9110 section 15.2). */
static __always_inline __u32 probe_status(const __u8 *b)
{
	__u32 x = b[9] - '0', y = b[10] - '0', z = b[11] - '0';

	if (b[0] != 'H' || b[1] != 'T' || b[2] != 'T' || b[3] != 'P' || b[4] != '/' || b[5] != '1' || b[6] != '.')
		return 0;
	if ((b[7] != '0' && b[7] != '1') || b[8] != ' ' || x < 2 || x > 9 || y > 9 || z > 9)
		return 0;
	if (b[12] != ' ' && b[12] != '\r' && b[12] != '\n')
		return 0;
	return x * 100 + y * 10 + z;
}

/* probe_stamp notes what a round came to, and gives what it had come to before. Of two CPUs that note at once one wins. */
static __always_inline __u32 probe_stamp(struct probe_result *r, __u32 isn, __u64 state, __u64 status, __u64 attempt, __u64 now)
{
	__u64 word = isn | status << PROBE_RESULT_STATUS_SHIFT | state << PROBE_RESULT_STATE_SHIFT |
		     attempt << PROBE_RESULT_ATTEMPT_SHIFT;
	__u32 before = 0;

#pragma unroll
	for (int i = 0; i < 2; i++) {
		__u64 old = *(volatile __u64 *)&r->word;

		before = (__u32)old == isn ? old >> PROBE_RESULT_STATE_SHIFT & 0xff : PROBE_SILENT;
		if (before >= PROBE_FINAL || state <= before)
			return before;
		*(volatile __u64 *)&r->time = now;
		if (__sync_val_compare_and_swap(&r->word, old, word) == old)
			return before;
	}
	return before;
}

/* probe_tcp writes the header of a segment back to the sender of packet p; `sum` is that of the pseudo header's addresses, `text`
 * that of the request's `len` bytes, without which it is a RST. */
static __always_inline void probe_tcp(__u32 *tcp, const struct packet *p, __u32 seq_be, __u32 ack_be, __u32 len, __u64 sum,
				      __u32 text)
{
	/* Data offset 5; PSH and ACK, or RST. */
	__u32 flags = len ? 0x5018 : 0x5004;

	tcp[0] = (__u32)bpf_htons(p->dport) | (__u32)bpf_htons(p->sport) << 16;
	tcp[1] = seq_be;
	tcp[2] = ack_be;
	tcp[3] = (__u32)bpf_htons(flags) | (__u32)bpf_htons(LIMIT_PROBE_TCP_WINDOW) << 16;
	sum += (__u64)tcp[0] + tcp[1] + tcp[2] + tcp[3] + text;
	sum += bpf_htons(PROTOCOL_TCP) + bpf_htons(sizeof(struct tcphdr) + len);
	tcp[4] = (__u16)~csum_fold(sum);
}

/* probe_ip4 writes the IPv4 and TCP headers of such a segment: don't fragment, id 0 (RFC 6864). */
static __always_inline void probe_ip4(__u32 *ip, const struct packet *p, __u32 seq_be, __u32 ack_be, __u32 len, __u32 text)
{
	__u32 from = p->dst_lo >> 32, to = p->src_lo >> 32;

	ip[0] = 0x45 | (__u32)bpf_htons(sizeof(struct iphdr) + sizeof(struct tcphdr) + len) << 16;
	ip[1] = (__u32)bpf_htons(ENCAP_DF) << 16;
	ip[2] = ENCAP_TTL | PROTOCOL_TCP << 8;
	ip[3] = from;
	ip[4] = to;
	ip[2] |= (__u32)(__u16)~csum_fold((__u64)ip[0] + ip[1] + ip[2] + from + to) << 16;
	probe_tcp(ip + 5, p, seq_be, ack_be, len, (__u64)from + to, text);
}

/* probe_ip6 writes the IPv6 and TCP headers of such a segment. */
static __always_inline void probe_ip6(__u32 *ip, const struct packet *p, __u32 seq_be, __u32 ack_be, __u32 len, __u32 text)
{
	ip[0] = bpf_htonl(0x60000000);
	ip[1] = (__u32)bpf_htons(sizeof(struct tcphdr) + len) | PROTOCOL_TCP << 16 | (__u32)ENCAP_TTL << 24;
	*(__u64 *)(ip + 2) = p->dst_hi;
	*(__u64 *)(ip + 4) = p->dst_lo;
	*(__u64 *)(ip + 6) = p->src_hi;
	*(__u64 *)(ip + 8) = p->src_lo;
	probe_tcp(ip + 10, p, seq_be, ack_be, len, csum_pseudo6(ip + 2, 0, 0), text);
}

#endif
