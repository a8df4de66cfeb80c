// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* A client that is its own mux, for benchmarks of hosts: packets for the VIP go into an IPv4 tunnel to the target of the
 * moment. GSO packets go whole, as a sender's network card or the receiver's GRO would have it. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

enum tunnel_verdict {
	TUNNEL_NEXT = -1,
	TUNNEL_DROP = 2,
};

/* Written by the harness. Addresses as stored. */
volatile __u32 vip4;
volatile __u32 source4;
/* Outer destination in the lower half, number of the device that leads there in the upper half: changed in one step. */
volatile __u64 target;

static __always_inline __u16 outer_sum(const struct iphdr *ip)
{
	const __u16 *w = (const __u16 *)ip;
	__u32 sum = 0;

	for (int i = 0; i < (int)sizeof(*ip) / 2; i++)
		sum += w[i];
	sum = (sum & 0xffff) + (sum >> 16);
	sum += sum >> 16;
	return ~sum;
}

SEC("tcx/egress")
int tunnel(struct __sk_buff *skb)
{
	const __u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 | BPF_F_ADJ_ROOM_NO_CSUM_RESET;
	struct iphdr inner, outer = {};
	__u64 to = target;

	if (skb->protocol != bpf_htons(ETH_P_IP) || bpf_skb_load_bytes(skb, ETH_HLEN, &inner, sizeof(inner)) || inner.daddr != vip4)
		return TUNNEL_NEXT;
	outer.version = 4;
	outer.ihl = 5;
	outer.ttl = 64;
	outer.protocol = IPPROTO_IPIP;
	outer.tot_len = bpf_htons(bpf_ntohs(inner.tot_len) + sizeof(outer));
	outer.frag_off = bpf_htons(0x4000);
	outer.saddr = source4;
	outer.daddr = (__u32)to;
	outer.check = outer_sum(&outer);
	if (bpf_skb_adjust_room(skb, sizeof(outer), BPF_ADJ_ROOM_MAC, flags))
		return TUNNEL_DROP;
	if (bpf_skb_store_bytes(skb, ETH_HLEN, &outer, sizeof(outer), 0))
		return TUNNEL_DROP;
	return bpf_redirect_neigh(to >> 32, 0, 0, 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";
