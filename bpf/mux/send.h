/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The last part of the walk: from the member word to the wire. */
#ifndef SHUNT_MUX_SEND_H
#define SHUNT_MUX_SEND_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "lib/encap.h"
#include "lib/gue.h"
#include "lib/parse.h"
#include "mux/aside.h"
#include "mux/too_big.h"
#include "mux/verdict.h"

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
	note(MUX_REASON_FIB_FALLBACK);
	return 1;
}

/* find_way follows the backend's next hop word; an empty one asks the kernel. True when there is a way. */
static __always_inline int find_way(struct xdp_md *ctx, const struct backend *b, __u32 source4, struct way *w)
{
	__u32 slot, first = 0;
	struct device *dev;

	w->nexthop = *(volatile __u64 *)&b->nexthop;
	if (!(w->nexthop >> NEXTHOP_VALID_SHIFT)) {
		/* A way of its own: the usual one need not be in memory then. */
		struct way asked = {};
		int known = ask_kernel(ctx, b, source4, &asked);

		*w = asked;
		return known;
	}
	slot = w->nexthop >> NEXTHOP_DEVICE_SHIFT & (LIMIT_DEVICES - 1);
	/* A branch, not an index: the usual device is then known before the next hop word has come. */
	dev = slot ? bpf_map_lookup_elem(&devices, &slot) : bpf_map_lookup_elem(&devices, &first);
	if (!dev)
		return 0;
	w->mac = dev->mac;
	w->ifindex = dev->ifindex;
	return 1;
}

/* trim takes what is behind the IP packet off a frame: Ethernet padding would otherwise travel on as bytes behind the
 * inner packet. False when the kernel refuses. */
__attribute__((noinline)) int trim(struct xdp_md *ctx, __u32 l3_len)
{
	__s64 rest = (__s64)bpf_xdp_get_buff_len(ctx) - (ETH_HLEN + (__s64)l3_len);

	return rest <= 0 || !bpf_xdp_adjust_tail(ctx, -(int)rest);
}

/* leave_tagged sends a frame out by a device with a tag. */
static __noinline int leave_tagged(struct xdp_md *ctx, __u64 nexthop)
{
	__u32 slot = nexthop >> NEXTHOP_DEVICE_SHIFT & (LIMIT_DEVICES - 1), ifindex;
	struct device *dev = bpf_map_lookup_elem(&devices, &slot);

	if (!dev)
		return drop(MUX_REASON_INTERNAL);
	ifindex = dev->ifindex & ~(1u << DEVICE_TAGGED_SHIFT);
	if (!vlan_push(ctx, dev->vlan))
		return drop(MUX_REASON_NO_HEADROOM);
	note(MUX_REASON_FORWARDED);
	return ifindex == ctx->ingress_ifindex ? bounce(ctx) : bpf_redirect(ifindex, 0);
}

/* leave sends an encapsulated frame out by its way. */
static __always_inline int leave(struct xdp_md *ctx, const struct way *w)
{
	if (w->ifindex == ctx->ingress_ifindex) {
		note(MUX_REASON_FORWARDED);
		return bounce(ctx);
	}
	if (w->ifindex >> DEVICE_TAGGED_SHIFT)
		return leave_tagged(ctx, w->nexthop);
	note(MUX_REASON_FORWARDED);
	return bpf_redirect(w->ifindex, 0);
}

/* wrap_gue writes the outer headers of GUE into the room made for them; false when the record is broken. */
static __always_inline int wrap_gue(void *data, const void *end, const struct packet *p, const struct backend *b,
				    const struct mux_config *c, const struct way *w, __u64 hash, __u32 source4, __u16 id)
{
	void *ip = data + ETH_HLEN;

	if (b->overhead == OVERHEAD_GUE4) {
		if (ip + OVERHEAD_GUE4 > end)
			return 0;
		encap_ethernet(data, w->nexthop, w->mac, ETH_P_IP);
		encap_ip4(ip, b, p, p->l3_len + GUE_OVERHEAD, PROTOCOL_UDP, source4);
		gue_write(ip + OVERHEAD_IP4, p->l3_len, encap_inner(p), id, hash);
		return 1;
	}
	if (b->overhead != OVERHEAD_GUE6 || ip + OVERHEAD_GUE6 > end)
		return 0;
	encap_ethernet(data, w->nexthop, w->mac, ETH_P_IPV6);
	encap_ip6(ip, b, p, p->l3_len + GUE_OVERHEAD, PROTOCOL_UDP, c, hash);
	gue_write(ip + OVERHEAD_IP6, p->l3_len, encap_inner(p), id, hash);
	return 1;
}

/* slot_value is the value word of a slot. */
static __always_inline __u64 slot_value(const struct endpoint_slot *slot)
{
	return *(const volatile __u64 *)&slot->value;
}

/* member_id is the id of the member with index `member` in the endpoint of a slot, whose block of members was `range`;
 * they may have moved since that was read. */
static __always_inline __u16 member_id(const struct endpoint_slot *slot, __u64 range, __u32 member)
{
	if (member - (__u32)range >= range >> 32)
		range = *(const volatile __u64 *)&slot->members;
	return member - (__u32)range;
}

/* send_member encapsulates a packet towards the member with index `member` in the table, whose word is `word`, and
 * transmits it. It is one of `range` in the endpoint of `slot`. `hash` varies the outer source. */
static __always_inline int send_member(struct xdp_md *ctx, const struct mux_config *c, const struct packet *p, const struct endpoint_slot *slot,
				       __u64 range, __u32 member, __u64 word, __u64 hash, const struct aside *aside)
{
	__u32 backend = word, outer, source4;
	struct backend *b = bpf_map_lookup_elem(&backends, &backend);
	void *data, *end;
	struct way way;

	if (!b)
		return refuse(slot_value(slot), p->l3_len, MUX_REASON_INTERNAL);
	outer = b->overhead;
	if (p->l3_len + outer > b->mtu)
		return aside ? too_big(ctx, p, slot_value(slot), b->mtu - outer, aside) :
			       too_big_usual(ctx, slot_value(slot), b->mtu - outer);
	source4 = encap_source4(c, hash);
	if (!find_way(ctx, b, source4, &way))
		return refuse(slot_value(slot), p->l3_len, MUX_REASON_NO_NEXTHOP);
	count_packet_in(&member_counts, member_region, member, p->l3_len);
	/* Members of VIPs with SNAT come and go with leases; the VIP's counter stays. */
	if (aside_how(aside) & ASIDE_SNAT)
		count_packet_in(&endpoint_counts, endpoint_region, (__u32)slot_value(slot) - ENDPOINT_SLOT_FIRST, p->l3_len);
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (data + ETH_HLEN + sizeof(struct iphdr) > end)
		return drop(MUX_REASON_INTERNAL);
	decrement_ttl(data, p->family);
	/* More: padding. Less: the rest is in fragments of a jumbo frame, and perhaps padding too. */
	if (frame_room(data, end) != ETH_HLEN + p->l3_len && !trim(ctx, p->l3_len))
		return drop(MUX_REASON_INTERNAL);
	if (bpf_xdp_adjust_head(ctx, -(int)outer))
		return drop(MUX_REASON_NO_HEADROOM);
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (outer == OVERHEAD_IP4) {
		if (data + ETH_HLEN + sizeof(struct iphdr) > end)
			return drop(MUX_REASON_INTERNAL);
		encap_ethernet(data, way.nexthop, way.mac, ETH_P_IP);
		encap_ip4(data + ETH_HLEN, b, p, p->l3_len, encap_inner(p), source4);
	} else if (outer == OVERHEAD_IP6) {
		if (data + ETH_HLEN + sizeof(struct ipv6hdr) > end)
			return drop(MUX_REASON_INTERNAL);
		encap_ethernet(data, way.nexthop, way.mac, ETH_P_IPV6);
		encap_ip6(data + ETH_HLEN, b, p, p->l3_len, encap_inner(p), c, hash);
	} else if (!wrap_gue(data, end, p, b, c, &way, hash, source4,
			     aside_how(aside) & ASIDE_SNAT ? GUE_NO_MEMBER : member_id(slot, range, member))) {
		return drop(MUX_REASON_INTERNAL);
	}
	return leave(ctx, &way);
}

#endif
