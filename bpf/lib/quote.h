/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* ICMP errors (RFC 792, RFC 4443): what they quote, and rewriting the quoted and the quoting packet together. */
#ifndef SHUNT_QUOTE_H
#define SHUNT_QUOTE_H

#include "nat.h"

/* Types of ICMP messages that quote a packet (the kernel's header for ICMP needs the C library's). IPv6's are a range.
 * Redirects and source quenches are nothing that a server should hear. */
enum quote_type {
	QUOTE_UNREACHABLE = 3,
	QUOTE_TIME_EXCEEDED = 11,
	QUOTE_PARAMETER = 12,
	QUOTE_IP6_FIRST = 1,
	QUOTE_IP6_LAST = 4,
};

/* The beginning of the packet that an ICMP error is about. */
struct quote {
	__u8 src[16];
	__u8 dst[16];
	__u32 ip;          /* offset of its IP header */
	__u32 transport;   /* offset of its transport header, of which 8 bytes are there */
	__u32 end;         /* offset behind what is quoted */
	__be16 sport_be;   /* 0 without ports */
	__be16 dport_be;
	__u8 protocol;
	__u8 rsv[3];
};

/* What a packet and its quote become. */
struct quote_nat {
	__u8 addr[16];     /* instead of the quoted source (inbound) or destination, and of the packet's opposite */
	__be16 sport_be;   /* of the quoted packet */
	__be16 dport_be;
	__u8 inbound;      /* 1: the error goes to who sent the quoted packet, which left by us; 0: it comes from us */
	__u8 rsv[3];
};

/* quote_is_error tells whether an ICMP message of this type is an error that quotes a packet. */
static __always_inline int quote_is_error(__u8 is6, __u8 type)
{
	if (is6)
		return type >= QUOTE_IP6_FIRST && type <= QUOTE_IP6_LAST;
	return type == QUOTE_UNREACHABLE || type == QUOTE_TIME_EXCEEDED || type == QUOTE_PARAMETER;
}

/* quote_header reads the quoted IP header at q->ip; one that is not the first of its datagram has no ports. */
static __always_inline int quote_header(struct __sk_buff *skb, __u8 is6, struct quote *q)
{
	if (is6) {
		struct ipv6hdr ip;

		if (q->ip + sizeof(ip) > q->end || bpf_skb_load_bytes(skb, q->ip, &ip, sizeof(ip)) || ip.version != 6)
			return PARSE_MALFORMED;
		view_copy16(q->src, &ip.saddr);
		view_copy16(q->dst, &ip.daddr);
		q->protocol = ip.nexthdr;
		q->transport = q->ip + sizeof(ip);
	} else {
		struct iphdr ip;

		if (q->ip + sizeof(ip) > q->end || bpf_skb_load_bytes(skb, q->ip, &ip, sizeof(ip)) ||
		    ip.version != 4 || ip.ihl < 5 || ip.frag_off & bpf_htons(0x1fff))
			return PARSE_MALFORMED;
		view_map4(q->src, ip.saddr);
		view_map4(q->dst, ip.daddr);
		q->protocol = ip.protocol;
		q->transport = q->ip + ip.ihl * 4;
	}
	return PARSE_OK;
}

/* quote_protocol tells whether a packet, or part of one, is of ICMP. */
static __always_inline int quote_protocol(const struct ip_view *v)
{
	return v->protocol == (v->is6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP);
}

/* quote_possible tells whether a packet can be an ICMP error: one in fragments quotes more than anybody needs. */
static __always_inline int quote_possible(const struct ip_view *v)
{
	return quote_protocol(v) && !v->fragment;
}

/* quote_view reads what the ICMP error *v quotes. PARSE_OTHER: *v is no ICMP error. Global, so that the verifier looks
 * at it once. */
__noinline int quote_view(struct __sk_buff *skb, const struct ip_view *v, struct quote *q)
{
	__be16 ports[2];
	__u8 type;

	if (!v || !q)
		return PARSE_MALFORMED;
	if (!quote_possible(v))
		return PARSE_OTHER;
	if (v->payload + sizeof(type) > v->end || bpf_skb_load_bytes(skb, v->payload, &type, sizeof(type)))
		return PARSE_MALFORMED;
	if (!quote_is_error(v->is6, type))
		return PARSE_OTHER;
	q->ip = v->payload + 8;
	q->end = v->end;
	if (quote_header(skb, v->is6, q))
		return PARSE_MALFORMED;
	if (q->transport + 8 > q->end || bpf_skb_load_bytes(skb, q->transport, ports, sizeof(ports)))
		return PARSE_MALFORMED;
	if (q->protocol == IPPROTO_TCP || q->protocol == IPPROTO_UDP) {
		q->sport_be = ports[0];
		q->dport_be = ports[1];
	}
	return PARSE_OK;
}

/* quote_sum is the one's complement sum of two 32-bit sums. */
static __always_inline __u32 quote_sum(__u32 a, __u32 b)
{
	__u64 sum = (__u64)a + b;

	return (sum & 0xffffffff) + (sum >> 32);
}

/* quote_transport rewrites the quoted ports, and the quoted checksum if the quote reaches so far. Returns whether it
 * does (1), or a negative number when the kernel refused. `addr` and `ports` are what the sums over them change by. */
static __always_inline int quote_transport(struct __sk_buff *skb, const struct quote *q, const struct quote_nat *n,
					   __u32 addr, __u32 ports)
{
	__u32 to = n->sport_be | (__u32)n->dport_be << 16;
	__u32 at = q->transport + (q->protocol == IPPROTO_UDP ? 6 : 16);
	__u64 flags = q->protocol == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
	__u16 check;

	if (q->protocol != IPPROTO_TCP && q->protocol != IPPROTO_UDP)
		return 0;
	if (bpf_skb_store_bytes(skb, q->transport, &to, sizeof(to), 0))
		return -1;
	if (at + sizeof(check) > q->end)
		return 0;
	if (bpf_skb_load_bytes(skb, at, &check, sizeof(check)))
		return -1;
	if (q->protocol == IPPROTO_UDP && !check)
		return 0;
	return bpf_l4_csum_replace(skb, at, 0, quote_sum(addr, ports), flags) ? -1 : 1;
}

/* quote_address replaces the quoted address; with IPv4 the quoted header checksum follows. */
static __always_inline int quote_address(struct __sk_buff *skb, const struct ip_view *v, const struct quote *q,
					 const struct quote_nat *n)
{
	const __u8 *old = n->inbound ? q->src : q->dst;
	__u32 from, to;

	if (v->is6)
		return bpf_skb_store_bytes(skb, q->ip + (n->inbound ? 8 : 24), n->addr, sizeof(n->addr), 0);
	from = ((const __u32 *)old)[3];
	to = ((const __u32 *)n->addr)[3];
	if (bpf_l3_csum_replace(skb, q->ip + __builtin_offsetof(struct iphdr, check), from, to, sizeof(to)))
		return -1;
	return bpf_skb_store_bytes(skb, q->ip + (n->inbound ? 12 : 16), &to, sizeof(to), 0);
}

/* quote_apply rewrites the ICMP error *v, which quotes *q, and the quote with it: all checksums stay as right or wrong
 * as they were. The sum over the quote changes by what no quoted checksum makes up for. Global, so that the verifier
 * looks at it once. */
__noinline int quote_apply(struct __sk_buff *skb, const struct ip_view *v, const struct quote *q, const struct quote_nat *n,
			   __u64 ipv6_flag)
{
	struct nat own = {};
	__u32 addr, ports, sum, at;
	int checked;

	if (!v || !q || !n)
		return -1;
	addr = nat_diff16(n->inbound ? q->src : q->dst, n->addr);
	ports = quote_sum(n->sport_be | (__u32)n->dport_be << 16, ~(q->sport_be | (__u32)q->dport_be << 16));
	checked = quote_transport(skb, q, n, addr, ports);
	if (checked < 0 || quote_address(skb, v, q, n))
		return -1;
	sum = quote_sum(addr, ports);
	if (checked)
		sum = quote_sum(sum, ~sum);
	if (!v->is6)
		sum = quote_sum(sum, ~addr);
	at = v->payload + 2;
	if (bpf_l4_csum_replace(skb, at, 0, sum, 0))
		return -1;
	view_copy16(own.addr, n->addr);
	own.dst = n->inbound;
	if (!v->is6)
		return nat_ip4(skb, &own, own.dst ? v->dst : v->src);
	if (bpf_l4_csum_replace(skb, at, 0, nat_diff16(own.dst ? v->dst : v->src, own.addr), BPF_F_PSEUDO_HDR | ipv6_flag))
		return -1;
	return nat_ip6(skb, &own, 0);
}

#endif
