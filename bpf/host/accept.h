/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of host.bpf.c: a tunnel packet whose binding is known. */

/* Clamps a SYN; returns a reason to drop it, or 0. */
static __always_inline enum host_reason clamp_in(struct __sk_buff *skb, const struct transport_view *t, __u16 mss)
{
	switch (mss_clamp(skb, t, mss)) {
	case MSS_CLAMPED:
		count(HOST_REASON_MSS_CLAMPED);
		return 0;
	case MSS_MALFORMED:
		return HOST_REASON_IN_MALFORMED;
	case MSS_FAILED:
		return HOST_REASON_IN_ADJUST_FAILED;
	}
	return 0;
}

/* Turns the bare packet's VIP:port into DIP:port, the client's port into its substitute if it has one, and the address of a client on this
 * machine into the VIP. Returns a reason to drop it, or 0. Global, so that the verifier looks at it once. */
__noinline int translate_in(struct __sk_buff *skb, const struct arrival *a, const struct binding *b)
{
	const struct transport_view *t;
	struct nat n = { .dst = 1 };

	if (!a || !b)
		return HOST_REASON_IN_ADJUST_FAILED;
	t = &a->t;
	if (a->name.peer_port_be != t->sport_be)
		count(HOST_REASON_CLIENT_PORT_MAPPED);
	if (t->syn)
		count_asked(b->index);
	view_copy16(n.addr, b->dip);
	n.sport_be = a->name.peer_port_be;
	n.dport_be = a->name.dip_port_be;
	n.more = a->stamp.sum;
	if (nat_apply(skb, &a->inner, t, &n, host_ipv6_csum_flag) || stamp_write(skb, t, &a->stamp))
		return HOST_REASON_IN_ADJUST_FAILED;
	if (a->want.kind != FLOW_HAIRPIN)
		return 0;
	count(HOST_REASON_CLIENT_HERE);
	return hairpin_from_vip(skb, &a->inner, t) ? HOST_REASON_IN_ADJUST_FAILED : 0;
}

/* Remembers where the other fragments of this datagram go. */
static __always_inline int note_in(const struct arrival *a, const struct binding *b)
{
	struct datagram d = { .index = b->index, .rewrite = b->rewrite, .hairpin = b->rewrite && a->want.kind == FLOW_HAIRPIN };

	view_copy16(d.addr, b->dip);
	return datagram_note(&a->inner, a->vni, 0, &d);
}

/* Takes the packet out of the tunnel; returns a reason to drop it, or 0. */
static __always_inline enum host_reason bare(struct __sk_buff *skb, const struct arrival *a)
{
	/* A mark that the sender would not understand: the mux makes no such outer header (RFC 6040 section 4.2). */
	if (tunnel_ecn_lost(&a->outer, &a->inner))
		return HOST_REASON_IN_MALFORMED;
	if (tunnel_strip(skb, a->kind, &a->outer, &a->inner) || tunnel_mark(skb, &a->outer, &a->inner))
		return HOST_REASON_IN_ADJUST_FAILED;
	return 0;
}

/* Out of the tunnel, translated, delivered. */
static __always_inline int accept_packet(struct __sk_buff *skb, struct arrival *a, const struct binding *b)
{
	struct transport_view *t = &a->t;
	struct destination to = {};
	__u32 shift = a->outer.payload - ETH_HLEN;
	enum host_reason reason = 0;
	int verdict = VERDICT_DROP, known = 0;

	if (b->repair && !a->spread && a->inner.protocol == IPPROTO_TCP && !t->syn && !a->inner.fragment) {
		b = repair(skb, a, b, &verdict, &known);
		if (!b)
			return verdict;
	}
	to.rewrite = b->rewrite;
	if (!known || !b->rewrite)
		known = packet_known(skb, a, b);

	view_copy16(to.dip, b->dip);
	count_arrival(skb, a, b->index);
	if (t->syn)
		reason = clamp_in(skb, t, b->mss);
	if (!reason && a->inner.fragment && note_in(a, b))
		reason = HOST_REASON_IN_STATE_FULL;
	if (!reason && b->rewrite && !known)
		reason = packet_begin(a);
	if (reason)
		return drop(reason);
	if (b->rewrite && !known && a->inner.protocol == IPPROTO_UDP && asks_datagrams())
		count_asked(b->index);
	if (b->rewrite) {
		stamp_in(skb, a, b->index);
		flow_came(&a->flow, &a->inner, t, b->index);
	}
	reason = bare(skb, a);
	if (reason)
		return drop(reason);
	to.reason = HOST_REASON_IN_UNTOUCHED;
	if (b->rewrite) {
		t->offset -= shift;
		t->csum_offset -= t->csum_offset ? shift : 0;
		reason = translate_in(skb, a, b);
		if (reason)
			return drop(reason);
		to.reason = HOST_REASON_IN_DELIVERED;
	}
	return deliver(skb, &a->inner, &to);
}
