/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Fragments: the first one decides by its ports, the others follow it. A later one that comes before it, or long after,
 * goes to the endpoint of its VIP and protocol that takes fragments by their addresses, if there is one. */
#ifndef SHUNT_MUX_FOLLOW_H
#define SHUNT_MUX_FOLLOW_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "lib/fragment.h"
#include "lib/parse.h"
#include "mux/aside.h"
#include "mux/find.h"
#include "mux/fragments.h"
#include "mux/outbound.h"
#include "mux/tables.h"
#include "mux/wildcard.h"

/* taker_of_fragments is the index + 1 of the slot of the endpoint that takes a fragment without ports by its addresses, or
 * 0; `vip` is the index of its VIP's slot. */
static __always_inline __u32 taker_of_fragments(const struct packet *p, __u32 vip)
{
	struct endpoint_slot *slot = slot_at(vip);
	const struct endpoint_extra *extra;
	__u32 index;

	if (!has_ports(p))
		return find_wildcard(p->dst_hi, p->dst_lo, p->protocol, 0);
	if (!slot)
		return 0;
	index = (__u32)*(volatile __u64 *)&slot->extra - 1;
	extra = bpf_map_lookup_elem(&endpoint_extras, &index);
	if (!extra)
		return 0;
	index = p->protocol == PROTOCOL_TCP ? extra->fragments_tcp : extra->fragments_udp;
	return index && slot_of(p, index - 1) ? index : 0;
}

/* follow finds the endpoint of a fragment that is not the first, or its VIP's own slot: index of the slot + 1, or 0. */
static __always_inline __u32 follow(__u32 vip, struct aside *aside)
{
	const struct fragment *f = bpf_map_lookup_elem(&fragments, &aside->fragment);

	aside->how = ASIDE_LATER;
	if (f) {
		/* A copy: the kernel may give the element to another packet at any time. */
		aside->first = *f;
		if (fragment_recall(&aside->packet, &aside->first, &aside->word)) {
			aside->how = ASIDE_LATER | ASIDE_KNOWN | (aside->first.slot == vip ? ASIDE_SNAT : 0);
			return aside->first.slot + 1;
		}
	}
	return aside->packet.protocol == PROTOCOL_ICMP ? 0 : taker_of_fragments(&aside->packet, vip);
}

/* fragment_first finds the endpoint of a first fragment, or the server that has its port: as fragment answers, 0 for neither. */
static __always_inline __u64 fragment_first(struct xdp_md *ctx, __u32 vip, struct aside *aside)
{
	struct packet *p = &aside->packet;
	__u64 found;

	if (p->protocol == PROTOCOL_ICMP)
		return outbound_echo(ctx, vip, aside);
	found = find_taker(p);
	return found || !has_ports(p) ? found : outbound(p, vip, p->dport, aside);
}

/* fragment finds the endpoint of the fragment aside->packet to the VIP whose slot has index `vip`, or the server that has its
 * port: index of the slot + 1, or the reason for refusal, shifted by 32 bits. */
static __noinline __u64 fragment(struct xdp_md *ctx, __u32 vip, struct aside *aside)
{
	struct packet *p = &aside->packet;
	struct fragment_view view = {};
	__u64 reason = fragment_read(ctx, p, &view), found;

	if (reason)
		return reason << 32;
	/* For the mux itself, which assembles nothing; but an echo reply may be a server's. */
	if (p->protocol == PROTOCOL_ICMPV6 || (p->protocol == PROTOCOL_ICMP && p->family != 4))
		return (__u64)MUX_REASON_FRAGMENT << 32;
	fragment_key_of(&aside->fragment, p, view.id);
	if (!view.offset && view.more)
		aside->how = ASIDE_FIRST;
	reason = view.offset || !has_ports(p) ? MUX_REASON_FRAGMENT : MUX_REASON_NO_ENDPOINT;
	found = view.offset ? follow(vip, aside) : fragment_first(ctx, vip, aside);
	return found ? found : reason << 32;
}

#endif
