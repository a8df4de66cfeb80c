// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The mux: finds the endpoint of a packet, chooses a member by the ring, encapsulates, sends.
 *
 * Its tables are memory-mapped arrays that the agent writes with plain stores (abi.h, publication rule). Nothing here
 * writes to them. What is not for a VIP of ours goes to the kernel untouched. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include "abi.h"
#include "lib/count.h"
#include "lib/encap.h"
#include "lib/endpoint.h"
#include "lib/hash.h"
#include "lib/icmp.h"
#include "lib/parse.h"
#include "lib/ring.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LIMIT_ENDPOINT_SLOTS);
	__type(key, __u32);
	__type(value, struct endpoint_slot);
} endpoint_slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LIMIT_ENDPOINTS);
	__type(key, __u32);
	__type(value, struct endpoint);
} endpoints SEC(".maps");

/* Ring slots, four to a word. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LIMIT_RING_WORDS);
	__type(key, __u32);
	__type(value, __u64);
} rings SEC(".maps");

/* Member words (enum member_bit). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LIMIT_MEMBERS);
	__type(key, __u32);
	__type(value, __u64);
} members SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LIMIT_BACKENDS);
	__type(key, __u32);
	__type(value, struct backend);
} backends SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LIMIT_DEVICES);
	__type(key, __u32);
	__type(value, struct device);
} devices SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct mux_config);
} configs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, LIMIT_REASONS);
	__type(key, enum mux_reason);
	__type(value, __u64);
} reasons SEC(".maps");
_Static_assert((int)MUX_REASON_MAX <= (int)LIMIT_REASONS, "a reason without a counter");

/* By endpoint index: what found the endpoint, forwarded or not. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, LIMIT_ENDPOINTS);
	__type(key, __u32);
	__type(value, struct counter);
} endpoint_counts SEC(".maps");

/* By member word: what was sent to the member. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, LIMIT_MEMBERS);
	__type(key, __u32);
	__type(value, struct counter);
} member_counts SEC(".maps");

/* Slots of endpoint_slots, less one. */
const volatile __u32 endpoint_mask = LIMIT_ENDPOINT_SLOTS - 1;

/* 1: frames leave the interface they came in by as redirected ones. On veth XDP_TX reaches the peer only if that runs an
 * XDP program too (veth_xdp_flush, Linux 6.18); a redirect needs no more than the peer's GRO. */
const volatile __u32 bounce_redirects = 0;

/* The interface's address as in struct device, written again when that changes: frames for other addresses are the
 * kernel's. 0: all frames are taken. */
volatile __u64 own_mac;

/* A prefix that covers all VIPs of a family, addresses as stored: mask:32 | value:32, and for IPv6 the first 8 bytes. It
 * spares packets of clients a search for their source; 0 covers everything. */
volatile __u64 cover4;
volatile __u64 cover6_mask;
volatile __u64 cover6_value;

/* Carries the enumerations that Go needs, and that no map mentions, into BTF. */
const struct {
	enum limit limit;
	enum endpoint_slot_value slot;
	enum endpoint_flag flag;
	enum member_bit member;
	enum nexthop_bit nexthop;
} abi_enums = {};

/* drop counts the reason and ends the packet. */
static __always_inline int drop(enum mux_reason reason)
{
	count_reason(&reasons, reason);
	return XDP_DROP;
}

/* pass counts the reason and hands the packet to the kernel. */
static __always_inline int pass(enum mux_reason reason)
{
	count_reason(&reasons, reason);
	return XDP_PASS;
}

/* bounce sends the packet out of the interface it came in by. */
static __always_inline int bounce(struct xdp_md *ctx)
{
	return bounce_redirects ? bpf_redirect(ctx->ingress_ifindex, 0) : XDP_TX;
}

/* Global functions below take what they need by value or as const struct packet *: the verifier looks at each once. */

/* probe_on continues a search that the home bucket did not end. */
__attribute__((noinline)) __u64 probe_on(__u64 vip_hi, __u64 vip_lo, __u64 key)
{
	return endpoint_search(&endpoint_slots, endpoint_mask, 2, vip_hi, vip_lo, key);
}

/* find_endpoint returns the value word of (vip, key), or 0. Usually it touches one cache line. */
static __always_inline __u64 find_endpoint(__u64 vip_hi, __u64 vip_lo, __u64 key)
{
	__u64 hash = endpoint_hash(vip_hi, vip_lo, key), value;

	value = endpoint_probe(&endpoint_slots, endpoint_mask, hash, 0, vip_hi, vip_lo, key);
	if (value != ENDPOINT_GO_ON)
		return value;
	value = endpoint_probe(&endpoint_slots, endpoint_mask, hash, 1, vip_hi, vip_lo, key);
	if (value != ENDPOINT_GO_ON)
		return value;
	return probe_on(vip_hi, vip_lo, key);
}

/* walk_on finds a member when the slot's own is not usable: probes:32 | member id:32, 0 when nothing is usable. */
__attribute__((noinline)) __u64 walk_on(__u64 ring, __u64 range, __u32 slot)
{
	struct ring_choice c = ring_walk(&rings, &members, ring, range, slot);

	return (__u64)c.probes << 32 | c.id;
}

/* echo answers an ICMP echo request to a VIP, or says why not. */
static __noinline int echo(struct xdp_md *ctx, const struct packet *p)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	int reason = icmp_check(ctx, data, end, p);

	if (reason)
		return drop(reason);
	if (!icmp_turn(data, end, p))
		return drop(MUX_REASON_TRUNCATED);
	count_reason(&reasons, MUX_REASON_ECHO_REPLIED);
	return bounce(ctx);
}

/* settle ends a packet that is not forwarded. It reads the packet again, so that the walk of those that are need not
 * keep anything for it. */
__attribute__((noinline)) int settle(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct packet p = {};
	int reason = parse_frame(ctx, data, end, &p);

	if (!p.family)
		return reason == MUX_REASON_TRUNCATED ? drop(reason) : pass(reason);
	if (!find_endpoint(p.dst_hi, p.dst_lo, endpoint_key(0, 0, 0)))
		return pass(MUX_REASON_PASS_NOT_OURS);
	if (reason)
		return drop(reason);
	if (p.protocol == (p.family == 4 ? PROTOCOL_ICMP : PROTOCOL_ICMPV6))
		return echo(ctx, &p);
	if (has_ports(&p))
		return drop(MUX_REASON_NO_ENDPOINT);
	return drop(MUX_REASON_PROTOCOL);
}

/* The way out of the machine: interface and both addresses. */
struct way {
	__u64 nexthop; /* destination MAC in bits 0-47 */
	__u64 mac;     /* own MAC in bits 0-47 */
	__u32 ifindex;
	__u32 rsv;
};

/* mac_word packs a MAC address as struct device does. */
static __always_inline __u64 mac_word(const __u8 *mac)
{
	return (__u64)mac[0] | (__u64)mac[1] << 8 | (__u64)mac[2] << 16 | (__u64)mac[3] << 24 | (__u64)mac[4] << 32 |
	       (__u64)mac[5] << 40;
}

/* ask_kernel finds the way to a backend in the kernel's FIB; true when the kernel knows it. */
static __noinline int ask_kernel(struct xdp_md *ctx, const struct backend *b, __u32 source4, struct way *w)
{
	struct bpf_fib_lookup fib = { .ifindex = ctx->ingress_ifindex };

	if (b->outer_v6) {
		fib.family = 10; /* AF_INET6 */
		__builtin_memcpy(fib.ipv6_dst, b->outer_dst, 16);
	} else {
		fib.family = 2; /* AF_INET */
		fib.ipv4_src = source4;
		fib.ipv4_dst = b->outer4_be;
	}
	if (bpf_fib_lookup(ctx, &fib, sizeof(fib), 0) != BPF_FIB_LKUP_RET_SUCCESS)
		return 0;
	w->nexthop = mac_word(fib.dmac);
	w->mac = mac_word(fib.smac);
	w->ifindex = fib.ifindex;
	count_reason(&reasons, MUX_REASON_FIB_FALLBACK);
	return 1;
}

/* find_way follows the backend's next hop word; an empty one asks the kernel. True when there is a way. */
static __always_inline int find_way(struct xdp_md *ctx, const struct backend *b, __u32 source4, struct way *w)
{
	__u32 slot, first = 0;
	struct device *dev;

	w->nexthop = *(volatile __u64 *)&b->nexthop;
	if (!(w->nexthop >> NEXTHOP_VALID_SHIFT))
		return ask_kernel(ctx, b, source4, w);
	slot = w->nexthop >> NEXTHOP_DEVICE_SHIFT & (LIMIT_DEVICES - 1);
	/* A branch, not an index: the usual device is then known before the next hop word has come. */
	dev = slot ? bpf_map_lookup_elem(&devices, &slot) : bpf_map_lookup_elem(&devices, &first);
	if (!dev)
		return 0;
	w->mac = dev->mac;
	w->ifindex = dev->ifindex;
	return 1;
}

/* transmit encapsulates and transmits; what could still go wrong has been checked but for headroom. */
static __always_inline int transmit(struct xdp_md *ctx, const struct packet *p, const struct backend *b,
				const struct mux_config *c, const struct way *w, __u64 hash, __u32 source4)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	int pad = (int)frame_room(data, end) - (int)(ETH_HLEN + p->l3_len);
	int outer = b->outer_v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);

	if (data + ETH_HLEN + sizeof(struct iphdr) > end)
		return drop(MUX_REASON_INTERNAL);
	decrement_ttl(data, p->family);
	/* Ethernet padding would otherwise travel on as bytes behind the inner packet. */
	if (pad > 0 && bpf_xdp_adjust_tail(ctx, -pad))
		return drop(MUX_REASON_INTERNAL);
	if (bpf_xdp_adjust_head(ctx, -outer))
		return drop(MUX_REASON_NO_HEADROOM);
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (outer == sizeof(struct iphdr)) {
		if (data + ETH_HLEN + sizeof(struct iphdr) > end)
			return drop(MUX_REASON_INTERNAL);
		encap_ethernet(data, w->nexthop, w->mac, ETH_P_IP);
		encap_ip4(data + ETH_HLEN, b, p, source4);
	} else {
		if (data + ETH_HLEN + sizeof(struct ipv6hdr) > end)
			return drop(MUX_REASON_INTERNAL);
		encap_ethernet(data, w->nexthop, w->mac, ETH_P_IPV6);
		encap_ip6(data + ETH_HLEN, b, p, c, hash);
	}
	count_reason(&reasons, MUX_REASON_FORWARDED);
	return w->ifindex == ctx->ingress_ifindex ? bounce(ctx) : bpf_redirect(w->ifindex, 0);
}

/* hash_flow is the ring hash of a packet. */
static __always_inline __u64 hash_flow(const struct siphash_key *key, const struct packet *p)
{
	__u64 word = flow_word(0, p->sport, p->dport, p->protocol);

	if (p->family == 4)
		return flow_hash4(key, bpf_ntohl(p->src_lo >> 32), bpf_ntohl(p->dst_lo >> 32), word);
	return flow_hash6(key, p->src_hi, p->src_lo, p->dst_hi, p->dst_lo, word);
}

/* choose picks the member of a flow: its word, or 0; its id. */
static __always_inline __u64 choose(__u64 ring, __u64 range, __u64 hash, __u32 *id)
{
	__u32 slot = ring_slot(hash, ring >> 32 & 0x1f), first = (__u32)range, count = range >> 32;
	__u64 word, found;

	*id = ring_member(&rings, (__u32)ring, slot);
	word = member_usable_word(&members, first, count, *id);
	if (word)
		return word;
	found = walk_on(ring, range, slot);
	*id = (__u32)found;
	/* A member that died in between drops this packet: it would have been sent to a dead server. */
	return found ? member_usable_word(&members, first, count, *id) : 0;
}

/* is_vip says whether an address is a VIP of ours. */
__attribute__((noinline)) int is_vip(__u64 hi, __u64 lo)
{
	return find_endpoint(hi, lo, endpoint_key(0, 0, 0)) != 0;
}

/* from_vip says whether the source is a VIP of ours. Two services that answer whatever they get would answer each other,
 * through the mux, without end. */
static __always_inline int from_vip(const struct packet *p)
{
	__u64 cover;

	if (p->family == 4) {
		cover = cover4;
		return (p->src_lo >> 32 & cover >> 32) == (__u32)cover && is_vip(p->src_hi, p->src_lo);
	}
	return (p->src_hi & cover6_mask) == cover6_value && is_vip(p->src_hi, p->src_lo);
}

/* forward sends a packet to a member of the endpoint. */
static __always_inline int forward(struct xdp_md *ctx, const struct packet *p, __u32 index)
{
	struct endpoint *ep = bpf_map_lookup_elem(&endpoints, &index);
	__u32 zero = 0, id, backend, outer, source4;
	struct mux_config *c = bpf_map_lookup_elem(&configs, &zero);
	struct siphash_key key;
	struct backend *b;
	struct way way;
	__u64 ring, range, hash, word;

	if (!ep || !c)
		return drop(MUX_REASON_INTERNAL);
	count_packet(&endpoint_counts, index, p->l3_len);
	if (p->ttl <= 1)
		return drop(MUX_REASON_TTL_EXPIRED);
	if (from_vip(p))
		return drop(MUX_REASON_BAD_SOURCE);
	ring = *(volatile __u64 *)&ep->ring;
	range = *(volatile __u64 *)&ep->members;
	if (!ring)
		return drop(MUX_REASON_NO_BACKEND);
	_Static_assert(LIMIT_RING_KEYS == 2, "the branch below knows two keys");
	/* A branch, not an index: the hash may then begin before the endpoint's record has come. */
	if (ring >> 40 & 1)
		key = c->ring_keys[1];
	else
		key = c->ring_keys[0];
	hash = hash_flow(&key, p);
	word = choose(ring, range, hash, &id);
	if (!word)
		return drop(MUX_REASON_NO_BACKEND);
	backend = (__u32)word;
	b = bpf_map_lookup_elem(&backends, &backend);
	if (!b)
		return drop(MUX_REASON_INTERNAL);
	outer = b->outer_v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
	if (p->l3_len + outer > b->mtu)
		return drop(MUX_REASON_TOO_BIG);
	source4 = encap_source4(c, hash);
	if (!find_way(ctx, b, source4, &way))
		return drop(MUX_REASON_NO_NEXTHOP);
	count_packet(&member_counts, (__u32)range + id, p->l3_len);
	return transmit(ctx, p, b, c, &way, hash, source4);
}

/* walk finds the endpoint of a packet that was read without a fault. */
static __always_inline int walk(struct xdp_md *ctx, const struct packet *p)
{
	__u64 slot;

	if (!has_ports(p))
		return settle(ctx);
	slot = find_endpoint(p->dst_hi, p->dst_lo, endpoint_key(0, p->protocol, p->dport));
	return slot ? forward(ctx, p, slot - ENDPOINT_SLOT_FIRST) : settle(ctx);
}

/* mux is the packet walk. The two families are walked apart so that neither pays for the other's branches. */
SEC("xdp")
int mux(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct packet p;
	__u64 own = own_mac;
	__u16 type;

	if (data + ETH_HLEN > end)
		return settle(ctx);
	/* One load; the two octets behind the address are shifted out. */
	if ((*(const __u64 *)data ^ own) << 16 && own)
		return pass(MUX_REASON_PASS_OTHER_MAC);
	/* In one load: struct ethhdr is packed, and clang would read it byte by byte. */
	type = *(const __u16 *)(data + 2 * ETH_ALEN);
	if (type == bpf_htons(ETH_P_IP) && !parse_ip4(ctx, data, end, &p))
		return walk(ctx, &p);
	if (type == bpf_htons(ETH_P_IPV6) && !parse_ip6(ctx, data, end, &p))
		return walk(ctx, &p);
	return settle(ctx);
}

char _license[] SEC("license") = "Dual BSD/GPL";
