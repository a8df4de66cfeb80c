/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of host.bpf.c: packets from switches, which can name no more than the host (design section 9.2). This host chooses the member: that
 * of a flow that it knows, else that of the flow's slot among those that take new flows. What muxes and hosts send names its member, and
 * never comes here. */

/* Names a member by the number of its target: the packet is as if a mux had named it. Returns its binding, 0: it has none any more. */
static __always_inline const struct binding *spread_to(struct arrival *a, const struct repair *r, __u32 number, __u8 protocol, __be16 port)
{
	__u32 index = r->targets + number;
	const struct repair_target *t = bpf_map_lookup_elem(&repair_targets, &index);

	if (!t || !t->use)
		return 0;
	view_copy16(a->outer.dst, t->outer_dst);
	a->member = t->member;
	return find_binding(a, protocol, port);
}

/* The number of the target that the flow's slot has among those that take new flows, or REPAIR_NONE. */
static __always_inline __u32 spread_slot(const struct arrival *a, const struct repair *r)
{
	__u32 slot = repair_slot_of(a, r), index = slot >> 1, own;
	const __u64 *word = bpf_map_lookup_elem(&repair_slots, &index);

	if (!word)
		return REPAIR_NONE;
	own = *(const volatile __u64 *)word >> (slot & 1) * 32 & 0xffff;
	return own < r->count ? own : REPAIR_NONE;
}

/* Is the packet of a flow of the target's member? Global, as what follows, so that the verifier looks at it once. */
__noinline int spread_knows(struct __sk_buff *skb, struct arrival *a __arg_nonnull, const struct repair *r __arg_nonnull, __u32 number)
{
	const struct binding *b;

	if (!a || !r)
		return 0;
	b = spread_to(a, r, number, a->sought, a->sought_be);
	if (!b || !name_flow(&a->name, &a->want, b, a->sought, a->inner.src, a->t.sport_be, a->t.dport_be))
		return 0;
	return packet_find(skb, a, a->sought == IPPROTO_TCP || a->sought == IPPROTO_UDP);
}

/* Names the member that a packet from a switch is for, if the endpoint has any here that takes it; else it stays for the host itself, where
 * nothing is bound. Global; its frame has little, for those of packet_find come below. */
__noinline int spread(struct __sk_buff *skb, struct arrival *a __arg_nonnull, __u8 protocol, __be16 port)
{
	const struct binding *b;
	const struct repair *r;
	__u32 index, own, first, at;

	if (!a)
		return 0;
	b = find_binding(a, protocol, port);
	a->by = 0;
	if (!b || !b->spread)
		return 0; /* a switch that names a member all the same */
	index = b->repair - 1;
	r = bpf_map_lookup_elem(&repairs, &index);
	if (!r)
		return 0;
	view_copy16(a->host, a->outer.dst);
	a->sought = protocol;
	a->sought_be = port;
	own = spread_slot(a, r);
	first = own == REPAIR_NONE ? 0 : own;
	/* A remainder, so that what the verifier knows of the number is the same each time. */
	for (__u32 i = 0; b->rewrite && i < LIMIT_SPREAD && i < r->count; i++) {
		at = (first + i) % r->count;
		if (spread_knows(skb, a, r, at)) {
			own = at;
			break;
		}
	}
	if (own == REPAIR_NONE) {
		view_copy16(a->outer.dst, a->host);
		a->member = GUE_NO_MEMBER;
		count(HOST_REASON_SPREAD_NOBODY);
		return 0;
	}
	a->spread = 1;
	spread_to(a, r, own, protocol, port);
	count(HOST_REASON_SPREAD);
	return 0;
}

/* spread for an ICMP error: by the flow whose answer it quotes. */
static __always_inline void spread_quoted(struct __sk_buff *skb, struct arrival *a)
{
	view_copy16(a->router, a->inner.src);
	view_copy16(a->inner.src, a->q.dst);
	a->t.sport_be = a->q.dport_be;
	a->t.dport_be = a->q.sport_be;
	spread(skb, a, a->q.protocol, a->q.sport_be);
	view_copy16(a->inner.src, a->router);
}
