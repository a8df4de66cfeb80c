/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The headers of a packet in an sk_buff: parsers, and what they find.
 *
 * Headers are copied to the stack, also out of paged data, and nothing here writes: packets that are none of ours are
 * never unshared or linearised. Offsets count from the start of the frame; Ethernet is assumed.
 */
#ifndef SHUNT_VIEW_H
#define SHUNT_VIEW_H

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
	PARSE_FRAGMENT = 3,  /* a later fragment: addresses are valid, there is no transport header */
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
	__u32 id;           /* of the datagram, as it lies, of a fragment */
};

/* The transport header of a packet. */
struct transport_view {
	__u32 offset;
	__u32 header_len;
	__u32 csum_offset;  /* of a checksum that covers the addresses; 0: there is none */
	__u16 sport_be;     /* 0 without ports */
	__u16 dport_be;
	__u8 syn;           /* TCP with SYN, with or without ACK */
	__u8 ports;         /* TCP or UDP: ports are there, and are looked at */
	__u8 refusal;       /* TCP: a RST that answers a SYN */
	__u8 bits;          /* TCP: enum tcp_bit */
	__u32 seq;          /* TCP: of the first byte, host order */
	__u32 ack;          /* TCP, with TCP_BIT_ACK */
};

/* Control bits of a TCP segment that flow state goes by. */
enum tcp_bit {
	TCP_BIT_FIN = 1,
	TCP_BIT_SYN = 2,
	TCP_BIT_RST = 4,
	TCP_BIT_ACK = 16,
};

/* view_map4 stores an IPv4 address as ::ffff:a.b.c.d. */
static __always_inline void view_map4(__u8 to[16], __be32 addr)
{
	__u32 *w = (__u32 *)to;

	w[0] = 0;
	w[1] = 0;
	w[2] = bpf_htonl(0xffff);
	w[3] = addr;
}

/* view_copy16 copies an address; both are aligned to four bytes. */
static __always_inline void view_copy16(void *to, const void *from)
{
	__u32 *t = to;
	const __u32 *f = from;

	t[0] = f[0];
	t[1] = f[1];
	t[2] = f[2];
	t[3] = f[3];
}

/* view_equal16 compares two addresses aligned to four bytes. */
static __always_inline int view_equal16(const void *a, const void *b)
{
	const __u32 *x = a, *y = b;

	return !((x[0] ^ y[0]) | (x[1] ^ y[1]) | (x[2] ^ y[2]) | (x[3] ^ y[3]));
}

/* view_load copies `len` bytes (a constant) at `at`: directly when they lie in the linear part near the start, as
 * nearly always, else by helper. */
static __always_inline int view_load(struct __sk_buff *skb, __u32 at, void *to, const __u32 len)
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
			/* Whole words are loaded where the machine does not mind where they lie; byte by byte a header takes a hundred instructions. */
			__builtin_memcpy(to, __builtin_assume_aligned(from, 4), len);
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

	if (view_load(skb, at, &ip, sizeof(ip)))
		return PARSE_MALFORMED;
	v->is6 = 0;
	v->ecn = ip.tos & 3;
	v->protocol = ip.protocol;
	view_map4(v->src, ip.saddr);
	view_map4(v->dst, ip.daddr);
	header = ip.ihl * 4;
	total = bpf_ntohs(ip.tot_len);
	if (ip.version != 4 || header < sizeof(ip) || total < header || at + total > end)
		return PARSE_MALFORMED;
	v->payload = at + header;
	v->end = at + total;
	frag = bpf_ntohs(ip.frag_off);
	v->id = ip.id;
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
		struct {
			__u8 next, len;
			__be16 more; /* of a fragment header; of a routing header its type and segments left */
			__be32 id;   /* of a fragment header */
		} ext;
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
		if (v->protocol == IPPROTO_FRAGMENT)
			v->id = ext.id;
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

	if (view_load(skb, at, &ip, sizeof(ip)))
		return PARSE_MALFORMED;
	v->is6 = 1;
	v->ecn = ip.flow_lbl[0] >> 4 & 3;
	v->fragment = 0;
	v->protocol = ip.nexthdr;
	view_copy16(v->src, &ip.saddr);
	view_copy16(v->dst, &ip.daddr);
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

	if (v->payload + sizeof(tcp) > v->end || view_load(skb, v->payload, &tcp, sizeof(tcp)))
		return PARSE_MALFORMED;
	t->header_len = tcp.doff * 4;
	if (t->header_len < sizeof(tcp) || v->payload + t->header_len > v->end)
		return PARSE_MALFORMED;
	t->offset = v->payload;
	t->csum_offset = v->payload + __builtin_offsetof(struct tcphdr, check);
	t->sport_be = tcp.source;
	t->dport_be = tcp.dest;
	t->syn = tcp.syn;
	t->bits = tcp.fin * TCP_BIT_FIN | tcp.syn * TCP_BIT_SYN | tcp.rst * TCP_BIT_RST | tcp.ack * TCP_BIT_ACK;
	t->seq = bpf_ntohl(tcp.seq);
	t->ack = bpf_ntohl(tcp.ack_seq);
	/* RFC 9293 section 3.10.7.1: what answers a segment without ACK has sequence number zero. */
	t->refusal = tcp.rst && !tcp.seq;
	return PARSE_OK;
}

/* udp_view reads a UDP header (RFC 768). */
static __always_inline int udp_view(struct __sk_buff *skb, const struct ip_view *v, struct transport_view *t)
{
	struct udphdr udp;
	__u32 len;

	if (v->payload + sizeof(udp) > v->end || view_load(skb, v->payload, &udp, sizeof(udp)))
		return PARSE_MALFORMED;
	len = bpf_ntohs(udp.len);
	if (len < sizeof(udp) || (!v->fragment && v->payload + len > v->end))
		return PARSE_MALFORMED;
	t->header_len = sizeof(udp);
	t->offset = v->payload;
	t->csum_offset = v->payload + __builtin_offsetof(struct udphdr, check);
	t->sport_be = udp.source;
	t->dport_be = udp.dest;
	t->syn = 0;
	return PARSE_OK;
}

/* plain_view finds the checksum that covers the addresses in packets of other protocols: DCCP (RFC 4340), UDP-Lite
 * (RFC 3828). SCTP, GRE, ESP and the rest have none; ICMPv6, which has, is not for here. */
static __always_inline int plain_view(const struct ip_view *v, struct transport_view *t)
{
	const __u32 at = 6;

	t->offset = v->payload;
	if (v->protocol != IPPROTO_DCCP && v->protocol != IPPROTO_UDPLITE)
		return PARSE_OTHER;
	if (v->payload + at + 2 > v->end)
		return PARSE_MALFORMED;
	t->csum_offset = v->payload + at;
	return PARSE_OTHER;
}

/* transport_view reads the TCP or UDP header of a packet or of its first fragment; a later fragment has none, other
 * protocols are PARSE_OTHER. *t is zero before. */
static __always_inline int transport_view(struct __sk_buff *skb, const struct ip_view *v, struct transport_view *t)
{
	if (v->fragment == 2)
		return PARSE_FRAGMENT;
	t->ports = v->protocol == IPPROTO_TCP || v->protocol == IPPROTO_UDP;
	if (v->protocol == IPPROTO_TCP)
		return tcp_view(skb, v, t);
	if (v->protocol == IPPROTO_UDP)
		return udp_view(skb, v, t);
	return plain_view(v, t);
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

#endif
