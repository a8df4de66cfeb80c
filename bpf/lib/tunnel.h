/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Recognising packets that came through a tunnel of a mux, IP in IP or GUE, and taking them out of it. */
#ifndef SHUNT_TUNNEL_H
#define SHUNT_TUNNEL_H

#include "gue_header.h"
#include "view.h"

/* tunnel_is tells whether a protocol number is IP in IP (RFC 2003, RFC 2473). */
static __always_inline int tunnel_is(__u8 protocol)
{
	return protocol == IPPROTO_IPIP || protocol == IPPROTO_IPV6;
}

/* tunnel_ports tells whether the UDP header at `at` can be that of a GUE packet. */
static __always_inline int tunnel_ports(const void *at, const void *end)
{
	const struct udphdr *udp = at;

	return (const void *)(udp + 1) > end || udp->dest == bpf_htons(GUE_PORT);
}

/* tunnel_candidate tells whether the frame can be a tunnel packet at all: nearly all frames of a server are not, and it
 * costs them a comparison or two. */
static __always_inline int tunnel_candidate(struct __sk_buff *skb)
{
	const void *end = (const void *)(long)skb->data_end;
	const void *ip = (const void *)(long)skb->data + ETH_HLEN;
	const struct iphdr *ip4 = ip;
	const struct ipv6hdr *ip6 = ip;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if ((const void *)(ip4 + 1) > end || tunnel_is(ip4->protocol))
			return 1;
		return ip4->protocol == IPPROTO_UDP && (ip4->ihl != 5 || tunnel_ports(ip4 + 1, end));
	}
	if (skb->protocol != bpf_htons(ETH_P_IPV6))
		return 0;
	if ((const void *)(ip6 + 1) > end)
		return 1;
	if (ip6->nexthdr == IPPROTO_UDP)
		return tunnel_ports(ip6 + 1, end);
	return ip6->nexthdr != IPPROTO_TCP && ip6->nexthdr != IPPROTO_ICMPV6;
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

/* tunnel_kind tells which tunnel a well-formed packet can be of; 0: of none. */
static __always_inline enum host_tunnel tunnel_kind(struct __sk_buff *skb, const struct ip_view *v)
{
	__be16 ports[2];

	if (tunnel_is(v->protocol))
		return HOST_TUNNEL_IPIP;
	if (v->protocol != IPPROTO_UDP || v->fragment == 2)
		return 0;
	if (v->payload + sizeof(ports) > v->end || view_load(skb, v->payload, ports, sizeof(ports)))
		return 0;
	return ports[1] == bpf_htons(GUE_PORT) ? HOST_TUNNEL_GUE : 0;
}

/* gue_payload takes UDP and GUE header off a view: protocol, payload and end become those of the packet inside, *g its
 * metadata. PARSE_OTHER: a control message, or a version, a length, flags or a protocol that we do not know. The UDP
 * checksum is not looked at (RFC 6935): what is inside has its own. */
static __always_inline int gue_payload(struct __sk_buff *skb, struct ip_view *v, struct gue_header *g)
{
	const __u32 start = __builtin_offsetof(struct gue_header, hop);
	struct udphdr udp;
	__u32 len;

	if (v->payload + sizeof(udp) > v->end || view_load(skb, v->payload, &udp, sizeof(udp)))
		return PARSE_MALFORMED;
	len = bpf_ntohs(udp.len);
	if (len < sizeof(udp) + start || v->payload + len > v->end)
		return PARSE_MALFORMED;
	v->end = v->payload + len;
	v->payload += sizeof(udp);
	if (view_load(skb, v->payload, g, start))
		return PARSE_MALFORMED;
	if (g->first != GUE_VERSION_0 || g->flags_be || !tunnel_is(g->protocol))
		return PARSE_OTHER;
	if (v->payload + sizeof(*g) > v->end || view_load(skb, v->payload, g, sizeof(*g)))
		return PARSE_MALFORMED;
	if (g->hop & 0x0f || g->vni_be & bpf_htonl(0xff) || g->zero)
		return PARSE_OTHER;
	v->payload += sizeof(*g);
	v->protocol = g->protocol;
	return PARSE_OK;
}

/* tunnel_inner reads the IP header inside a tunnel packet. */
static __always_inline int tunnel_inner(struct __sk_buff *skb, const struct ip_view *outer, struct ip_view *inner)
{
	if (outer->protocol == IPPROTO_IPIP)
		return ip4_view(skb, outer->payload, outer->end, inner);
	return ip6_view(skb, outer->payload, outer->end, inner);
}

/* tunnel_strip removes everything between the Ethernet header and the inner packet. GSO packets stay whole
 * (FIXED_GSO). What the device or GRO knows about the inner checksum stays known with IP in IP, which has none of its
 * own over the payload (NO_CSUM_RESET); with GUE it may have been the outer one that was found right. */
static __always_inline int tunnel_strip(struct __sk_buff *skb, enum host_tunnel kind, const struct ip_view *outer,
					const struct ip_view *inner)
{
	/* BPF_F_ADJ_ROOM_DECAP_L3_IPV4 and _IPV6 came with Linux 6.3, later than the headers of some builders. */
	const __u64 decap4 = 1 << 7, decap6 = 1 << 8;
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | (kind == HOST_TUNNEL_IPIP ? BPF_F_ADJ_ROOM_NO_CSUM_RESET : 0);
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

/* tunnel_ecn_lost tells whether the packet got a congestion mark in the tunnel that its sender would not understand. */
static __always_inline int tunnel_ecn_lost(const struct ip_view *outer, const struct ip_view *inner)
{
	return outer->ecn == ECN_CONGESTION && inner->ecn == ECN_NOT_CAPABLE;
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
