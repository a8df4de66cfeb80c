/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Rewriting one address and both ports of a packet, and the ports that colliding flows get instead.
 *
 * bpf_l4_csum_replace knows what the programs cannot see: whether the checksum field is final, is only the sum of the
 * pseudo header (CHECKSUM_PARTIAL, every GSO packet), or is covered by a sum of the device (CHECKSUM_COMPLETE).
 */
#ifndef SHUNT_NAT_H
#define SHUNT_NAT_H

#include "view.h"

/* A translation: `side` of the packet becomes addr; both ports are set. */
struct nat {
	__u8 addr[16];
	__u16 sport_be;
	__u16 dport_be;
	__u8 dst;   /* 1: the destination address is replaced, 0: the source address */
	__u8 rsv[3];
	__u32 more; /* with ports: the one's complement difference that what else is rewritten under the checksum makes to it */
};

/* nat_diff16 is the one's complement difference that replacing one address by another makes to a checksum. */
static __always_inline __u32 nat_diff16(const __u8 *from, const __u8 *to)
{
	const __u32 *f = (const __u32 *)from, *t = (const __u32 *)to;
	__u64 sum = 0;

	for (int i = 0; i < 4; i++)
		sum += (__u64)t[i] + (__u32)~f[i];
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	return sum;
}

/* nat_sum is the one's complement difference that replacing one word by another makes, and `more` besides. */
static __always_inline __u32 nat_sum(__u32 from, __u32 to, __u32 more)
{
	__u64 sum = (__u64)to + (__u32)~from + more;

	sum = (sum & 0xffffffff) + (sum >> 32);
	return (__u32)sum + (sum >> 32);
}

/* nat_ip4 replaces an address in the IPv4 header at ETH_HLEN. Header and address together leave a device's sum over
 * the packet as it was, so no flag is due. */
static __always_inline int nat_ip4(struct __sk_buff *skb, const struct nat *n, const __u8 *old)
{
	__u32 from = ((const __u32 *)old)[3], to = ((const __u32 *)n->addr)[3];
	__u32 at = ETH_HLEN + (n->dst ? __builtin_offsetof(struct iphdr, daddr) : __builtin_offsetof(struct iphdr, saddr));

	if (bpf_l3_csum_replace(skb, ETH_HLEN + __builtin_offsetof(struct iphdr, check), from, to, sizeof(to)))
		return -1;
	return bpf_skb_store_bytes(skb, at, &to, sizeof(to), 0);
}

/* nat_ip6 replaces an address in the IPv6 header at ETH_HLEN. A transport checksum over it makes up for it in a device's
 * sum over the packet; without one (BPF_F_RECOMPUTE_CSUM) the kernel has to. */
static __always_inline int nat_ip6(struct __sk_buff *skb, const struct nat *n, __u64 flags)
{
	__u32 at = ETH_HLEN + (n->dst ? __builtin_offsetof(struct ipv6hdr, daddr) : __builtin_offsetof(struct ipv6hdr, saddr));

	return bpf_skb_store_bytes(skb, at, n->addr, sizeof(n->addr), flags);
}

/* nat_apply rewrites the packet that v and t describe. A UDP checksum of zero stays zero (RFC 768). ipv6_flag is
 * BPF_F_IPV6 where the kernel has it, else 0. */
static __always_inline int nat_apply(struct __sk_buff *skb, const struct ip_view *v, const struct transport_view *t,
				     const struct nat *n, __u64 ipv6_flag)
{
	const __u8 *old = n->dst ? v->dst : v->src;
	__u64 flags = v->protocol == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
	__u32 from = t->sport_be | (__u32)t->dport_be << 16, to = n->sport_be | (__u32)n->dport_be << 16;
	__u64 pseudo = flags | BPF_F_PSEUDO_HDR | (v->is6 ? ipv6_flag : 0);

	if (t->csum_offset && bpf_l4_csum_replace(skb, t->csum_offset, 0, nat_diff16(old, n->addr), pseudo))
		return -1;
	if (t->ports && (from != to || n->more)) {
		if (bpf_l4_csum_replace(skb, t->csum_offset, 0, nat_sum(from, to, n->more), flags))
			return -1;
		if (bpf_skb_store_bytes(skb, t->offset, &to, sizeof(to), 0))
			return -1;
	}
	return v->is6 ? nat_ip6(skb, n, t->csum_offset ? 0 : BPF_F_RECOMPUTE_CSUM) : nat_ip4(skb, n, old);
}

/* A flow whose client port was taken: as its client and as its server know it, but for the port. */
struct substitute_key {
	__u8 client[16];
	__u8 dip[16];
	__u8 vip[16];
	__u32 scope;
	__u16 dip_port_be;
	__u16 vip_port_be;
	__u16 client_port_be;
	__u16 rsv;
};

/* nat_port is the attempt-th client port to try for a flow, from 1024 up; the sequence depends on the flow alone. */
static __always_inline __u16 nat_port(const struct substitute_key *key, __u32 attempt)
{
	const __u32 *words = (const __u32 *)key;
	__u32 h = 0x9e3779b9;

	for (__u32 i = 0; i < sizeof(*key) / sizeof(*words); i++) {
		h = (h ^ words[i]) * 0x85ebca6b;
		h ^= h >> 15;
	}
	h += attempt * 0x9e3779b1;
	h = (h ^ (h >> 16)) * 0xc2b2ae35;
	return bpf_htons(1024 + (h >> 16) % (65536 - 1024));
}

#endif
