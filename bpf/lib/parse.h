/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Headers from Ethernet to the ports. A parser reads at an offset that it is given, checks every length that the packet
 * claims against the frame, and returns the reason for refusal, 0 when there is none. */
#ifndef SHUNT_PARSE_H
#define SHUNT_PARSE_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include "abi.h"
#include "csum.h"
#include "options.h"

/* Protocol numbers (IANA) that the headers above lack or spell as enumerators. */
enum protocol {
	PROTOCOL_HOPOPTS = 0,
	PROTOCOL_ICMP = 1,
	PROTOCOL_IPIP = 4,
	PROTOCOL_TCP = 6,
	PROTOCOL_UDP = 17,
	PROTOCOL_IPV6 = 41,
	PROTOCOL_ROUTING = 43,
	PROTOCOL_FRAGMENT = 44,
	PROTOCOL_ICMPV6 = 58,
	PROTOCOL_DSTOPTS = 60,
};

/* What the walk needs of a packet. Valid as far as parsing came; `family` is 0 until the destination is known. */
struct packet {
	__u64 src_hi; /* addresses: two halves as stored, IPv4 as ::ffff:a.b.c.d */
	__u64 src_lo;
	__u64 dst_hi;
	__u64 dst_lo;
	__u32 l3_len; /* of the IP packet, by its own header */
	__u32 l4;     /* offset of the transport header from the Ethernet header */
	__u16 sport;  /* host order */
	__u16 dport;
	__u8 family;  /* 4 or 6 */
	__u8 protocol;
	__u8 tos;     /* or traffic class */
	__u8 ttl;     /* or hop limit */
	__u8 segment; /* enum segment_flag; of other protocols than TCP SEGMENT_ACK */
	__u8 rsv[3];
	__u32 echo_be; /* what a segment echoes of our timestamps, where its options lie as usual (OPTIONS_USUAL) and are all; else 0 */
	__u32 quote;   /* of what an ICMP error quotes: offset of the quoted transport header from the Ethernet header */
	__u32 rsv0;
};

/* The TCP flags that the walk looks at (RFC 9293). */
enum segment_flag {
	SEGMENT_FIN = 0x01,
	SEGMENT_SYN = 0x02,
	SEGMENT_RST = 0x04,
	SEGMENT_ACK = 0x10,
};

/* has_ports says whether sport and dport mean anything. */
static __always_inline int has_ports(const struct packet *p)
{
	return p->protocol == PROTOCOL_TCP || p->protocol == PROTOCOL_UDP;
}

/* The second half of a v4-mapped address, as stored, before its IPv4 part. */
#define V4_MAPPED 0xffff0000ULL

/* is_mapped says whether an address, given as its two halves as stored, is an IPv4-mapped one. */
static __always_inline int is_mapped(__u64 hi, __u64 lo)
{
	return !hi && (__u32)lo == V4_MAPPED;
}

/* source_possible says whether a packet may come from its source: not if that is 0.0.0.0/8, 127.0.0.0/8, multicast, reserved or broadcast, ::, ::1, or an
 * IPv4-mapped IPv6 address (RFC 1122 section 3.2.1.3, RFC 4291 section 2.5, RFC 6890). */
static __always_inline int source_possible(const struct packet *p)
{
	__u8 first = p->family == 4 ? p->src_lo >> 32 : p->src_hi;

	if (p->family == 4)
		return first != 0 && first != 127 && first < 224;
	if (first == 0xff || is_mapped(p->src_hi, p->src_lo))
		return 0;
	/* The octets of ::1 as stored, in either order of bytes. */
	return p->src_hi || (p->src_lo && p->src_lo != bpf_cpu_to_be64(1));
}

/* frame_room is the number of bytes from `from` to the frame's end. */
static __always_inline __u32 frame_room(const void *from, const void *end)
{
	__u64 room = end - from;

	/* Without this clang subtracts 32-bit halves: "32-bit pointer arithmetic prohibited" (Linux 6.18). */
	asm volatile("" : "+r"(room));
	return room;
}

/* frame_lacks says whether a frame has fewer bytes than its Ethernet header and l3_len, fragments of a jumbo frame
 * included. For the rare packet that claims more than the linear part has. */
static __always_inline int frame_lacks(struct xdp_md *ctx, __u32 l3_len)
{
	return bpf_xdp_get_buff_len(ctx) < ETH_HLEN + (__u64)l3_len;
}

/* parse_tcp_options walks the TCP options of `len` bytes at offset `at` of the frame: 0 when one lies about its length
 * (RFC 9293 section 3.1). A global function: the verifier then looks at it once, not once for every way to it. */
__attribute__((noinline)) int parse_tcp_options(struct xdp_md *ctx, __u32 at, __u32 len)
{
	const __u8 *opt = (const __u8 *)(long)ctx->data + (at & 0x7fff), *end = (const __u8 *)(long)ctx->data_end;
	__u32 rest = len;

	for (int i = 0; i < LIMIT_TCP_OPTIONS; i++) {
		const __u8 *p;
		__u32 n;

		/* The masks keep the verifier's ranges the same in every iteration. */
		rest &= 63;
		p = opt + ((len - rest) & 63);
		if (!rest || p + 1 > end || p[0] == 0)
			return 1;
		if (p[0] == 1) {
			rest--;
			continue;
		}
		if (rest < 2 || p + 2 > end)
			return 0;
		n = p[1];
		if (n < 2 || n > rest)
			return 0;
		rest -= n;
	}
	return 1;
}

/* parse_tcp reads the header of a segment of `len` bytes. */
static __always_inline int parse_tcp(struct xdp_md *ctx, const void *l4, __u32 len, const void *end, struct packet *p)
{
	const struct tcphdr *tcp = l4;
	const __u32 *opt = (const __u32 *)(tcp + 1);
	__u32 header;

	if (len < sizeof(*tcp) || (const void *)(tcp + 1) > end)
		return MUX_REASON_TRUNCATED;
	p->sport = bpf_ntohs(tcp->source);
	p->dport = bpf_ntohs(tcp->dest);
	p->segment = ((const __u8 *)tcp)[13];
	p->echo_be = 0;
	header = tcp->doff * 4;
	if (header < sizeof(*tcp) || header > len)
		return MUX_REASON_TCP_BAD_OFFSET;
	if (header == sizeof(*tcp))
		return 0;
	/* NOP NOP timestamps: what nearly every segment of an established connection carries. */
	if (header == sizeof(*tcp) + OPTIONS_USUAL_LEN && (const void *)(opt + 3) <= end && *opt == OPTIONS_USUAL) {
		p->echo_be = opt[2];
		return 0;
	}
	return parse_tcp_options(ctx, p->l4 + sizeof(*tcp), header - sizeof(*tcp)) ? 0 : MUX_REASON_TCP_BAD_OPTION;
}

/* parse_udp reads a UDP header with `len` bytes from it to the end of the IP packet. */
static __always_inline int parse_udp(const void *l4, __u32 len, const void *end, struct packet *p)
{
	const struct udphdr *udp = l4;
	__u32 claimed;

	if (len < sizeof(*udp) || (const void *)(udp + 1) > end)
		return MUX_REASON_TRUNCATED;
	p->sport = bpf_ntohs(udp->source);
	p->dport = bpf_ntohs(udp->dest);
	p->segment = SEGMENT_ACK;
	claimed = bpf_ntohs(udp->len);
	return claimed < sizeof(*udp) || claimed > len ? MUX_REASON_UDP_BAD_LENGTH : 0;
}

/* parse_l4 reads the ports of TCP and UDP; other protocols have none. `len` runs to the end of the IP packet. */
static __always_inline int parse_l4(struct xdp_md *ctx, const void *l4, __u32 len, const void *end, struct packet *p)
{
	if (p->protocol == PROTOCOL_TCP)
		return parse_tcp(ctx, l4, len, end, p);
	if (p->protocol == PROTOCOL_UDP)
		return parse_udp(l4, len, end, p);
	p->sport = p->dport = 0;
	p->segment = SEGMENT_ACK;
	return 0;
}

/* parse_ip4 reads an IPv4 header (RFC 791) and what follows. */
static __always_inline int parse_ip4(struct xdp_md *ctx, const void *data, const void *end, struct packet *p)
{
	const struct iphdr *ip = data + ETH_HLEN;
	__u32 room = frame_room(ip, end), header;

	if ((const void *)(ip + 1) > end)
		return MUX_REASON_TRUNCATED;
	p->family = 4;
	p->src_hi = 0;
	p->src_lo = V4_MAPPED | (__u64)ip->saddr << 32;
	p->dst_hi = 0;
	p->dst_lo = V4_MAPPED | (__u64)ip->daddr << 32;
	p->protocol = ip->protocol;
	p->tos = ip->tos;
	p->ttl = ip->ttl;
	p->l3_len = bpf_ntohs(ip->tot_len);
	p->l4 = ETH_HLEN + sizeof(*ip);
	if (*(const __u8 *)ip != 0x45) {
		if (ip->version != 4)
			return MUX_REASON_BAD_VERSION;
		header = ip->ihl * 4;
		if (header < sizeof(*ip) || header > room)
			return MUX_REASON_IP4_BAD_IHL;
		return p->l3_len < header || frame_lacks(ctx, p->l3_len) ? MUX_REASON_IP4_BAD_LENGTH : MUX_REASON_IP4_OPTIONS;
	}
	if (p->l3_len < sizeof(*ip) || (p->l3_len > room && frame_lacks(ctx, p->l3_len)))
		return MUX_REASON_IP4_BAD_LENGTH;
	if (!csum_ip4_ok(ip))
		return MUX_REASON_BAD_CHECKSUM;
	if (ip->frag_off & bpf_htons(0x3fff))
		return MUX_REASON_FRAGMENT;
	return parse_l4(ctx, ip + 1, p->l3_len - sizeof(*ip), end, p);
}

/* What parse_ip6_extensions returns: reason:8 | protocol:8 | offset of the transport header:16. With MUX_REASON_FRAGMENT
 * the offset is that of the fragment header. */
enum extensions_shift {
	EXTENSIONS_PROTOCOL_SHIFT = 16,
	EXTENSIONS_REASON_SHIFT = 24,
};

/* parse_ip6_extensions follows hop-by-hop, routing and destination options (RFC 8200 section 4) of an IPv6 packet of
 * `l3_len` bytes from offset `at` of the frame on, where the header `next` begins. Global for the verifier's sake, as
 * above. */
__attribute__((noinline)) __u32 parse_ip6_extensions(struct xdp_md *ctx, __u32 l3_len, __u32 next, __u32 at)
{
	const void *data = (const void *)(long)ctx->data, *end = (const void *)(long)ctx->data_end;
	__u32 limit = ETH_HLEN + l3_len;

	for (int i = 0; i <= LIMIT_IP6_EXTENSIONS; i++) {
		const __u8 *h = data + (at & 0x7fff);

		if (next == PROTOCOL_FRAGMENT)
			return MUX_REASON_FRAGMENT << EXTENSIONS_REASON_SHIFT | (at & 0x7fff);
		if (next != PROTOCOL_HOPOPTS && next != PROTOCOL_ROUTING && next != PROTOCOL_DSTOPTS)
			return (next & 0xff) << EXTENSIONS_PROTOCOL_SHIFT | (at & 0x7fff);
		if (i == LIMIT_IP6_EXTENSIONS || (next == PROTOCOL_HOPOPTS && at != ETH_HLEN + sizeof(struct ipv6hdr)))
			break;
		if (at + 8 > limit || (const void *)(h + 8) > end)
			break;
		/* Segments left: this is not the final destination, and source routes end here (RFC 5095). */
		if (next == PROTOCOL_ROUTING && h[3])
			break;
		next = h[0];
		at += ((__u32)h[1] + 1) * 8;
		if (at > limit)
			break;
	}
	return MUX_REASON_IP6_EXTENSIONS << EXTENSIONS_REASON_SHIFT;
}

/* parse_ip6 reads an IPv6 header (RFC 8200) and what follows. */
static __always_inline int parse_ip6(struct xdp_md *ctx, const void *data, const void *end, struct packet *p)
{
	const struct ipv6hdr *ip = data + ETH_HLEN;
	const __u64 *addr = (const __u64 *)&ip->saddr;
	__u32 first, payload, behind;

	if ((const void *)(ip + 1) > end)
		return MUX_REASON_TRUNCATED;
	/* Nobody's on the wire (RFC 4291 section 2.5.5.2), and not the IPv4 VIP's that the tables have under this address. */
	if (is_mapped(addr[2], addr[3]))
		return MUX_REASON_PASS_NOT_OURS;
	first = bpf_ntohl(*(const __u32 *)ip);
	payload = bpf_ntohs(ip->payload_len);
	p->family = 6;
	p->src_hi = addr[0];
	p->src_lo = addr[1];
	p->dst_hi = addr[2];
	p->dst_lo = addr[3];
	p->protocol = ip->nexthdr;
	p->tos = first >> 20;
	p->ttl = ip->hop_limit;
	p->l3_len = sizeof(*ip) + payload;
	p->l4 = ETH_HLEN + sizeof(*ip);
	if (first >> 28 != 6)
		return MUX_REASON_BAD_VERSION;
	if (!payload || (p->l3_len > frame_room(ip, end) && frame_lacks(ctx, p->l3_len)))
		return MUX_REASON_IP6_BAD_LENGTH;
	if (p->protocol == PROTOCOL_TCP || p->protocol == PROTOCOL_UDP)
		return parse_l4(ctx, ip + 1, payload, end, p);
	behind = parse_ip6_extensions(ctx, p->l3_len, p->protocol, ETH_HLEN + sizeof(*ip));
	if (behind >> EXTENSIONS_REASON_SHIFT)
		return behind >> EXTENSIONS_REASON_SHIFT;
	p->protocol = behind >> EXTENSIONS_PROTOCOL_SHIFT;
	p->l4 = behind & 0x7fff;
	return parse_l4(ctx, data + p->l4, ETH_HLEN + p->l3_len - p->l4, end, p);
}

/* parse_frame reads a frame up to its ports. Reasons of frames that are not for us (PASS_…) are returned too. */
static __always_inline int parse_frame(struct xdp_md *ctx, const void *data, const void *end, struct packet *p)
{
	const struct ethhdr *eth = data;

	p->family = 0;
	if ((const void *)(eth + 1) > end)
		return MUX_REASON_TRUNCATED;
	if (eth->h_proto == bpf_htons(ETH_P_IP))
		return parse_ip4(ctx, data, end, p);
	if (eth->h_proto == bpf_htons(ETH_P_IPV6))
		return parse_ip6(ctx, data, end, p);
	return MUX_REASON_PASS_NOT_IP;
}

#endif
