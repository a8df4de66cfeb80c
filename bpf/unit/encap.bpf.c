/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Stands in for a mux in tests of the host: a tcx egress program that puts packets for known addresses into a tunnel,
 * GSO packets whole. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "lib/gue_header.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* The tunnel for one inner destination; IPv4 as ::ffff:a.b.c.d. */
struct encap_tunnel {
	__u8 src[16];
	__u8 dst[16];
	__u32 is6;
	__u32 member; /* GUE_NO_MEMBER: IP in IP */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(key_size, 16);
	__type(value, struct encap_tunnel);
	__uint(max_entries, 64);
} encap_tunnels SEC(".maps");

static __always_inline struct encap_tunnel *find(struct __sk_buff *skb)
{
	__u32 dst[4] = {0, 0, bpf_htonl(0xffff), 0};

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, ETH_HLEN + __builtin_offsetof(struct iphdr, daddr), &dst[3], 4))
			return 0;
	} else if (skb->protocol != bpf_htons(ETH_P_IPV6) ||
		   bpf_skb_load_bytes(skb, ETH_HLEN + __builtin_offsetof(struct ipv6hdr, daddr), dst, 16)) {
		return 0;
	}
	return bpf_map_lookup_elem(&encap_tunnels, dst);
}

static __always_inline int outer4(struct __sk_buff *skb, const struct encap_tunnel *t, __u8 protocol)
{
	struct iphdr ip = { .version = 4, .ihl = 5, .ttl = 64, .protocol = protocol, .frag_off = bpf_htons(0x4000) };
	const __u16 *words = (const __u16 *)&ip;
	__u32 sum = 0;

	ip.tot_len = bpf_htons(skb->len - ETH_HLEN);
	ip.saddr = ((const __u32 *)t->src)[3];
	ip.daddr = ((const __u32 *)t->dst)[3];
	for (int i = 0; i < 10; i++)
		sum += words[i];
	sum = (sum & 0xffff) + (sum >> 16);
	ip.check = ~((sum & 0xffff) + (sum >> 16));
	return bpf_skb_store_bytes(skb, ETH_HLEN, &ip, sizeof(ip), 0);
}

static __always_inline int outer6(struct __sk_buff *skb, const struct encap_tunnel *t, __u8 protocol)
{
	struct ipv6hdr ip = { .version = 6, .hop_limit = 64, .nexthdr = protocol };

	ip.payload_len = bpf_htons(skb->len - ETH_HLEN - sizeof(ip));
	__builtin_memcpy(&ip.saddr, t->src, 16);
	__builtin_memcpy(&ip.daddr, t->dst, 16);
	return bpf_skb_store_bytes(skb, ETH_HLEN, &ip, sizeof(ip), 0);
}

/* UDP and GUE header at `at`; the packet starts with them there. */
static __always_inline int gue(struct __sk_buff *skb, __u32 at, const struct encap_tunnel *t, __u8 protocol)
{
	struct {
		struct udphdr udp;
		struct gue_header gue;
	} h = {
		.udp = { .source = bpf_htons(0xc123), .dest = bpf_htons(GUE_PORT), .len = bpf_htons(skb->len - at) },
		.gue = { .first = GUE_VERSION_0, .protocol = protocol, .member_be = bpf_htons(t->member) },
	};

	return bpf_skb_store_bytes(skb, at, &h, sizeof(h), 0);
}

SEC("tcx/egress")
int encap(struct __sk_buff *skb)
{
	struct encap_tunnel *t = find(skb);
	__u8 protocol = skb->protocol == bpf_htons(ETH_P_IP) ? IPPROTO_IPIP : IPPROTO_IPV6;
	__be16 ethertype;
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO;
	int len, ip;

	if (!t)
		return -1; /* TCX_NEXT */
	ip = len = t->is6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
	flags |= t->is6 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV4;
	if (t->member != GUE_NO_MEMBER) {
		len += GUE_OVERHEAD;
		flags |= BPF_F_ADJ_ROOM_ENCAP_L4_UDP;
	}
	if (bpf_skb_adjust_room(skb, len, BPF_ADJ_ROOM_MAC, flags))
		return 2; /* TCX_DROP */
	if (t->member != GUE_NO_MEMBER && gue(skb, ETH_HLEN + ip, t, protocol))
		return 2;
	if (t->member != GUE_NO_MEMBER)
		protocol = IPPROTO_UDP;
	ethertype = t->is6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	if (bpf_skb_store_bytes(skb, __builtin_offsetof(struct ethhdr, h_proto), &ethertype, sizeof(ethertype), 0))
		return 2;
	return (t->is6 ? outer6(skb, t, protocol) : outer4(skb, t, protocol)) ? 2 : -1;
}
