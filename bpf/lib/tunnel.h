/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What is inside an sk_buff that came through a tunnel, or that leaves towards a client.
 *
 * Headers are copied to the stack, also out of paged data, and nothing here writes: packets that are none of ours are
 * never unshared or linearised. Offsets count from the start of the frame; Ethernet is assumed.
 */
#ifndef SHUNT_TUNNEL_H
#define SHUNT_TUNNEL_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"

/* Results of the parsers below. */
enum parse_result {
	PARSE_OK = 0,
	PARSE_OTHER = 1,     /* well formed as far as looked at, but not of the kind asked for */
	PARSE_MALFORMED = 2, /* truncated, or a length that cannot be */
	PARSE_FRAGMENT = 3,  /* addresses are valid; ports only in a first fragment */
};

/* Explicit congestion notification (RFC 3168 section 5). */
enum ecn {
	ECN_NOT_CAPABLE = 0,
	ECN_CONGESTION = 3,
};

/* An IP header and where its payload lies. */
struct ip_view {
	__u8 src[16];
	__u8 dst[16];
	__u32 payload;      /* offset of the header that `protocol` names */
	__u32 end;          /* offset behind the packet, by its own length field */
	__u8 protocol;
	__u8 is6;
	__u8 fragment;      /* 0 none, 1 first, 2 later */
	__u8 ecn;           /* enum ecn, or between: capable */
};

/* The transport header of a packet. */
struct transport_view {
	__u32 offset;
	__u32 header_len;
	__u32 csum_offset;
	__u16 sport_be;
	__u16 dport_be;
	__u8 syn;           /* TCP with SYN, with or without ACK */
	__u8 rsv[3];
};

/* tunnel_map4 stores an IPv4 address as ::ffff:a.b.c.d. */
static __always_inline void tunnel_map4(__u8 to[16], __be32 addr)
{
	__u32 *w = (__u32 *)to;

	w[0] = 0;
	w[1] = 0;
	w[2] = bpf_htonl(0xffff);
	w[3] = addr;
}

/* tunnel_copy16 copies an address; both are aligned to four bytes. */
static __always_inline void tunnel_copy16(void *to, const void *from)
{
	__u32 *t = to;
	const __u32 *f = from;

	t[0] = f[0];
	t[1] = f[1];
	t[2] = f[2];
	t[3] = f[3];
}

/* tunnel_equal16 compares two addresses aligned to four bytes. */
static __always_inline int tunnel_equal16(const void *a, const void *b)
{
	const __u32 *x = a, *y = b;

	return !((x[0] ^ y[0]) | (x[1] ^ y[1]) | (x[2] ^ y[2]) | (x[3] ^ y[3]));
}

/* tunnel_load copies `len` bytes (a constant) at `at`: directly when they lie in the linear part near the start, as
 * nearly always, else by helper. */
static __always_inline int tunnel_load(struct __sk_buff *skb, __u32 at, void *to, const __u32 len)
{
	const void *end = (const void *)(long)skb->data_end;
	const void *from = (const void *)(long)skb->data;
	__u64 offset = at;

	if (at <= 255) {
		/* The verifier wants the bound on the very register that is added (Linux 6.18: "math between pkt pointer and
		 * register with unbounded min value is not allowed"). */
		asm volatile("%0 &= 255" : "+r"(offset));
		from += offset;
		if (from + len <= end) {
			__builtin_memcpy(to, from, len);
			return 0;
		}
	}
	return bpf_skb_load_bytes(skb, at, to, len);
}

/* ip4_view reads the IPv4 header at `at` (RFC 791); the packet must end at or before `end`. */
static __always_inline int ip4_view(struct __sk_buff *skb, __u32 at, __u32 end, struct ip_view *v)
{
	struct iphdr ip;
	__u32 header, total, frag;

	if (tunnel_load(skb, at, &ip, sizeof(ip)))
		return PARSE_MALFORMED;
	v->is6 = 0;
	v->ecn = ip.tos & 3;
	v->protocol = ip.protocol;
	tunnel_map4(v->src, ip.saddr);
	tunnel_map4(v->dst, ip.daddr);
	header = ip.ihl * 4;
	total = bpf_ntohs(ip.tot_len);
	if (ip.version != 4 || header < sizeof(ip) || total < header || at + total > end)
		return PARSE_MALFORMED;
	v->payload = at + header;
	v->end = at + total;
	frag = bpf_ntohs(ip.frag_off);
	v->fragment = !(frag & 0x3fff) ? 0 : (frag & 0x1fff) ? 2 : 1;
	return PARSE_OK;
}

/* ip6_extensions moves v->payload behind the extension headers (RFC 8200 section 4). Global, so that the verifier
 * looks at it once, on its own. */
__noinline int ip6_extensions(struct __sk_buff *skb, struct ip_view *v)
{
	if (!v)
		return PARSE_MALFORMED;
	for (int i = 0; i <= LIMIT_IP6_EXTENSIONS; i++) {
		struct { __u8 next, len; __be16 more; } ext; /* `more`: of a fragment header; of a routing header its type and segments left */
		__u32 len;

		switch (v->protocol) {
		case IPPROTO_HOPOPTS:
		case IPPROTO_ROUTING:
		case IPPROTO_DSTOPTS:
		case IPPROTO_FRAGMENT:
			break;
		default:
			return PARSE_OK;
		}
		if (i == LIMIT_IP6_EXTENSIONS || (v->protocol == IPPROTO_HOPOPTS && i > 0))
			return PARSE_MALFORMED;
		if (v->payload + 8 > v->end || bpf_skb_load_bytes(skb, v->payload, &ext, sizeof(ext)))
			return PARSE_MALFORMED;
		/* Segments left: the destination is not the final one, which the checksum is made with (RFC 8200). */
		if (v->protocol == IPPROTO_ROUTING && bpf_ntohs(ext.more) & 0xff)
			return PARSE_MALFORMED;
		len = 8;
		if (v->protocol != IPPROTO_FRAGMENT)
			len += ext.len * 8;
		else if (bpf_ntohs(ext.more) & 0xfff8)
			v->fragment = 2;
		else if (ext.more & bpf_htons(1))
			v->fragment = 1;
		v->payload += len;
		v->protocol = ext.next;
		if (v->payload > v->end)
			return PARSE_MALFORMED;
		if (v->fragment == 2)
			return PARSE_OK;
	}
	return PARSE_MALFORMED;
}

/* ip6_view reads the IPv6 header at `at` (RFC 8200) and its extension headers; jumbograms are malformed. */
static __always_inline int ip6_view(struct __sk_buff *skb, __u32 at, __u32 end, struct ip_view *v)
{
	struct ipv6hdr ip;

	if (tunnel_load(skb, at, &ip, sizeof(ip)))
		return PARSE_MALFORMED;
	v->is6 = 1;
	v->ecn = ip.flow_lbl[0] >> 4 & 3;
	v->fragment = 0;
	v->protocol = ip.nexthdr;
	tunnel_copy16(v->src, &ip.saddr);
	tunnel_copy16(v->dst, &ip.daddr);
	v->payload = at + sizeof(ip);
	v->end = v->payload + bpf_ntohs(ip.payload_len);
	if (ip.version != 6 || !ip.payload_len || v->end > end)
		return PARSE_MALFORMED;
	return ip6_extensions(skb, v);
}

/* tcp_view reads a TCP header (RFC 9293). */
static __always_inline int tcp_view(struct __sk_buff *skb, const struct ip_view *v, struct transport_view *t)
{
	struct tcphdr tcp;

	if (v->payload + sizeof(tcp) > v->end || tunnel_load(skb, v->payload, &tcp, sizeof(tcp)))
		return PARSE_MALFORMED;
	t->header_len = tcp.doff * 4;
	if (t->header_len < sizeof(tcp) || v->payload + t->header_len > v->end)
		return PARSE_MALFORMED;
	t->offset = v->payload;
	t->csum_offset = v->payload + __builtin_offsetof(struct tcphdr, check);
	t->sport_be = tcp.source;
	t->dport_be = tcp.dest;
	t->syn = tcp.syn;
	return PARSE_OK;
}

/* udp_view reads a UDP header (RFC 768). */
static __always_inline int udp_view(struct __sk_buff *skb, const struct ip_view *v, struct transport_view *t)
{
	struct udphdr udp;
	__u32 len;

	if (v->payload + sizeof(udp) > v->end || tunnel_load(skb, v->payload, &udp, sizeof(udp)))
		return PARSE_MALFORMED;
	len = bpf_ntohs(udp.len);
	if (len < sizeof(udp) || v->payload + len > v->end)
		return PARSE_MALFORMED;
	t->header_len = sizeof(udp);
	t->offset = v->payload;
	t->csum_offset = v->payload + __builtin_offsetof(struct udphdr, check);
	t->sport_be = udp.source;
	t->dport_be = udp.dest;
	t->syn = 0;
	return PARSE_OK;
}

/* transport_view reads the TCP or UDP header of a packet; a later fragment has none, other protocols are
 * PARSE_OTHER. */
static __always_inline int transport_view(struct __sk_buff *skb, const struct ip_view *v, struct transport_view *t)
{
	int r;

	if (v->fragment == 2)
		return PARSE_FRAGMENT;
	if (v->protocol == IPPROTO_TCP && v->fragment == 0)
		r = tcp_view(skb, v, t);
	else if (v->protocol == IPPROTO_UDP && v->fragment == 0)
		r = udp_view(skb, v, t);
	else if (v->protocol == IPPROTO_TCP || v->protocol == IPPROTO_UDP)
		r = PARSE_FRAGMENT;
	else
		r = PARSE_OTHER;
	return r;
}

/* ports_view reads the ports of a first fragment, whose transport header need not be whole. */
static __always_inline int ports_view(struct __sk_buff *skb, const struct ip_view *v, struct transport_view *t)
{
	__be16 ports[2];

	if (v->payload + sizeof(ports) > v->end || bpf_skb_load_bytes(skb, v->payload, ports, sizeof(ports)))
		return PARSE_MALFORMED;
	t->sport_be = ports[0];
	t->dport_be = ports[1];
	return PARSE_OK;
}

/* frame_ip reads the IP header behind the Ethernet header; PARSE_OTHER when there is none. */
static __always_inline int frame_ip(struct __sk_buff *skb, struct ip_view *v)
{
	if (skb->protocol == bpf_htons(ETH_P_IP))
		return ip4_view(skb, ETH_HLEN, skb->len, v);
	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		return ip6_view(skb, ETH_HLEN, skb->len, v);
	return PARSE_OTHER;
}

/* tunnel_is tells whether a protocol number is IP in IP (RFC 2003, RFC 2473). */
static __always_inline int tunnel_is(__u8 protocol)
{
	return protocol == IPPROTO_IPIP || protocol == IPPROTO_IPV6;
}

/* tunnel_candidate tells whether the frame can be a tunnel packet at all: nearly all frames of a server are not, and it
 * costs them one comparison. */
static __always_inline int tunnel_candidate(struct __sk_buff *skb)
{
	const void *end = (const void *)(long)skb->data_end;
	const void *ip = (const void *)(long)skb->data + ETH_HLEN;
	const struct iphdr *ip4 = ip;
	const struct ipv6hdr *ip6 = ip;

	if (skb->protocol == bpf_htons(ETH_P_IP))
		return (const void *)(ip4 + 1) > end || tunnel_is(ip4->protocol);
	if (skb->protocol != bpf_htons(ETH_P_IPV6))
		return 0;
	return (const void *)(ip6 + 1) > end ||
	       (ip6->nexthdr != IPPROTO_TCP && ip6->nexthdr != IPPROTO_UDP && ip6->nexthdr != IPPROTO_ICMPV6);
}

/* tunnel_opening tells whether the frame can be a TCP SYN without a tunnel: most others are told apart without a copy. */
static __always_inline int tunnel_opening(struct __sk_buff *skb)
{
	const void *end = (const void *)(long)skb->data_end;
	const void *ip = (const void *)(long)skb->data + ETH_HLEN;
	const struct iphdr *ip4 = ip;
	const struct ipv6hdr *ip6 = ip;
	const struct tcphdr *tcp;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		tcp = (const void *)(ip4 + 1);
		if ((const void *)(tcp + 1) > end || ip4->ihl != 5)
			return 1;
		return ip4->protocol == IPPROTO_TCP && tcp->syn;
	}
	if (skb->protocol != bpf_htons(ETH_P_IPV6))
		return 0;
	tcp = (const void *)(ip6 + 1);
	if ((const void *)(tcp + 1) > end)
		return 1;
	return ip6->nexthdr == IPPROTO_TCP && tcp->syn;
}

/* tunnel_inner reads the IP header inside a tunnel packet. */
static __always_inline int tunnel_inner(struct __sk_buff *skb, const struct ip_view *outer, struct ip_view *inner)
{
	if (outer->protocol == IPPROTO_IPIP)
		return ip4_view(skb, outer->payload, outer->end, inner);
	return ip6_view(skb, outer->payload, outer->end, inner);
}

/* tunnel_strip removes everything between the Ethernet header and the inner packet. GSO packets stay whole
 * (FIXED_GSO), and what the device or GRO knows about the inner checksum stays known (NO_CSUM_RESET: IP in IP has no
 * checksum of its own over the payload). */
static __always_inline int tunnel_strip(struct __sk_buff *skb, const struct ip_view *outer, const struct ip_view *inner)
{
	/* BPF_F_ADJ_ROOM_DECAP_L3_IPV4 and _IPV6 came with Linux 6.3, later than the headers of some builders. */
	const __u64 decap4 = 1 << 7, decap6 = 1 << 8;
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_NO_CSUM_RESET;
	__s32 len = outer->payload - ETH_HLEN;
	__be16 ethertype;

	flags |= inner->is6 ? decap6 : decap4;
	if (bpf_skb_adjust_room(skb, -len, BPF_ADJ_ROOM_MAC, flags))
		return -1;
	if (inner->is6 == outer->is6)
		return 0;
	ethertype = inner->is6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	return bpf_skb_store_bytes(skb, __builtin_offsetof(struct ethhdr, h_proto), &ethertype, sizeof(ethertype), 0);
}

/* tunnel_mark carries a congestion mark that the packet got in the tunnel over to the bare packet (RFC 6040 section
 * 4.2). Not for inner packets that are not capable. */
static __always_inline int tunnel_mark(struct __sk_buff *skb, const struct ip_view *outer, const struct ip_view *inner)
{
	__u16 from, to;

	if (outer->ecn != ECN_CONGESTION || inner->ecn == ECN_CONGESTION)
		return 0;
	if (bpf_skb_load_bytes(skb, ETH_HLEN, &from, sizeof(from)))
		return -1;
	if (inner->is6) {
		to = from | bpf_htons(ECN_CONGESTION << 4);
		return bpf_skb_store_bytes(skb, ETH_HLEN, &to, sizeof(to), BPF_F_RECOMPUTE_CSUM);
	}
	to = from | bpf_htons(ECN_CONGESTION);
	if (bpf_l3_csum_replace(skb, ETH_HLEN + __builtin_offsetof(struct iphdr, check), from, to, sizeof(to)))
		return -1;
	return bpf_skb_store_bytes(skb, ETH_HLEN, &to, sizeof(to), 0);
}

#endif
