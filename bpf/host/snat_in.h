/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of host.bpf.c: what comes back, through any mux, for connections that servers here opened. */

/* Finds the connection that goes from port `port_be` of the VIP a->inner.dst to a->name.client: it is in a->flow then, and what led to it in
 * a->spare.found. */
__noinline int snat_back(struct arrival *a, __u32 protocol, __be16 port_be, __be16 far_be)
{
	const struct flow_record *back;
	struct flow_name *n;
	const __u8 *dip;

	if (!a)
		return 0;
	n = &a->spare.name;
	view_copy16(n->dip, a->inner.dst);
	view_copy16(n->client, a->name.client);
	n->scope = flow_scope(a->vni, protocol);
	n->dip_port_be = port_be;
	n->peer_port_be = far_be;
	n->kind = FLOW_BACK;
	if (!flow_find(n, &a->spare.found))
		return 0;
	back = &a->spare.found.record;
	dip = bpf_map_lookup_elem(&flow_addrs, &back->vip);
	if (!dip)
		return 0;
	view_copy16(a->name.dip, dip);
	a->name.scope = n->scope;
	a->name.dip_port_be = back->vip_port_be;
	a->name.peer_port_be = far_be;
	a->name.kind = FLOW_SNAT;
	return flow_find(&a->name, &a->flow) && a->flow.record.vip == back->dip && a->flow.record.vip_port_be == port_be;
}

/* A packet to a VIP's port that no binding has and no connection of here. */
static __always_inline int snat_refuse(const struct arrival *a)
{
	if (!a->inner.is6 && snat_addr(a->inner.dst) == SNAT_VIP)
		return refuse(a, HOST_REASON_IN_SNAT_UNKNOWN);
	return refuse(a, HOST_REASON_IN_NO_BINDING);
}

/* Turns the bare packet's VIP:port into DIP:port; `shift` is how much was in front of it. Returns a reason to drop it, or 0. */
static __always_inline enum host_reason snat_translate(struct __sk_buff *skb, struct arrival *a, const __u8 *dip, __u32 shift)
{
	struct transport_view *t = &a->t;
	struct nat n = { .dst = 1 };

	t->offset -= shift;
	t->csum_offset -= t->csum_offset ? shift : 0;
	view_copy16(n.addr, dip);
	n.sport_be = t->sport_be;
	n.dport_be = a->flow.record.dip_port_be;
	if (nat_apply(skb, &a->inner, t, &n, host_ipv6_csum_flag))
		return HOST_REASON_IN_ADJUST_FAILED;
	if (!t->ports && snat_echo_set(skb, a->inner.payload - shift, a->flow.record.vip_port_be, a->flow.record.dip_port_be))
		return HOST_REASON_IN_ADJUST_FAILED;
	return 0;
}

/* A packet out of a tunnel that no binding has: of a connection that a server here opened, or nobody's. */
__noinline int snat_arrive(struct __sk_buff *skb, struct arrival *a)
{
	struct destination to = { .reason = HOST_REASON_IN_SNAT, .rewrite = 1 };
	enum host_reason reason = 0;
	__be16 port;
	__u32 shift;

	if (!a)
		return VERDICT_DROP;
	port = a->t.dport_be;
	shift = a->outer.payload - ETH_HLEN;
	if (!snat_possible(&a->inner))
		return refuse(a, HOST_REASON_IN_NO_BINDING);
	if (!a->t.ports && (a->inner.protocol != IPPROTO_ICMP || !snat_echo_id(skb, a->inner.payload, a->inner.end, SNAT_ECHO_REPLY, &port)))
		return refuse(a, HOST_REASON_IN_NO_BINDING);
	view_copy16(a->name.client, a->inner.src);
	if (!snat_back(a, a->inner.protocol, port, a->t.sport_be))
		return snat_refuse(a);
	view_copy16(to.dip, a->name.dip);
	count_arrival_of(skb, a, HOST_SNAT_BINDING, a->flow.record.dip);
	if (a->t.syn)
		reason = clamp_in(skb, &a->t, a->flow.record.mss);
	if (!reason && a->inner.fragment) {
		struct datagram d = { .index = HOST_SNAT_BINDING, .rewrite = 1 };

		view_copy16(d.addr, to.dip);
		if (datagram_note(&a->inner, a->vni, 0, &d))
			reason = HOST_REASON_IN_STATE_FULL;
	}
	if (reason)
		return drop(reason);
	snat_came(a);
	reason = bare(skb, a);
	if (!reason)
		reason = snat_translate(skb, a, to.dip, shift);
	if (reason)
		return drop(reason);
	return deliver(skb, &a->inner, &to);
}

/* Turns the quoted VIP:port of a bare ICMP error into DIP:port. */
static __always_inline enum host_reason snat_translate_error(struct __sk_buff *skb, struct arrival *a)
{
	const struct flow_record *r = &a->flow.record;
	struct quote_nat n = { .inbound = 1 };
	const struct quote *q = &a->q;

	view_copy16(n.addr, a->name.dip);
	if (q->protocol != IPPROTO_ICMP) {
		n.sport_be = r->dip_port_be;
		n.dport_be = r->peer_port_be;
	}
	if (quote_apply(skb, &a->inner, q, &n, host_ipv6_csum_flag))
		return HOST_REASON_IN_ADJUST_FAILED;
	/* The quoted checksum makes up for it in the sum over the quote. */
	if (q->protocol == IPPROTO_ICMP && snat_echo_set(skb, q->transport, r->vip_port_be, r->dip_port_be))
		return HOST_REASON_IN_ADJUST_FAILED;
	return 0;
}

/* An ICMP error to a VIP that quotes what no binding sent: what a server here sent on a connection that it opened, or nobody. */
__noinline int snat_error(struct __sk_buff *skb, struct arrival *a)
{
	struct destination to = { .reason = HOST_REASON_IN_ICMP_DELIVERED, .rewrite = 1 };
	enum host_reason reason;
	struct quote *q;
	__be16 port;
	__be32 seq;
	__u32 shift;

	if (!a)
		return VERDICT_DROP;
	q = &a->q;
	port = q->sport_be;
	shift = a->outer.payload - ETH_HLEN;
	if (!snat_possible(&a->inner))
		return refuse(a, HOST_REASON_IN_NO_BINDING);
	if (q->protocol == IPPROTO_ICMP && !snat_echo_id(skb, q->transport, q->end, SNAT_ECHO_REQUEST, &port))
		return refuse(a, HOST_REASON_IN_NO_BINDING);
	view_copy16(a->name.client, q->dst);
	if (!snat_back(a, q->protocol, port, q->dport_be))
		return snat_refuse(a);
	if (q->protocol == IPPROTO_TCP && (bpf_skb_load_bytes(skb, q->transport + __builtin_offsetof(struct tcphdr, seq), &seq, sizeof(seq)) ||
					   !seq_under_way(&a->flow.record, bpf_ntohl(seq))))
		return drop(HOST_REASON_IN_ICMP_WINDOW);
	view_copy16(to.dip, a->name.dip);
	count_arrival_of(skb, a, HOST_SNAT_BINDING, a->flow.record.dip);
	reason = bare(skb, a);
	if (reason)
		return drop(reason);
	a->inner.payload -= shift;
	a->inner.end -= shift;
	q->ip -= shift;
	q->transport -= shift;
	q->end -= shift;
	reason = snat_translate_error(skb, a);
	if (reason)
		return drop(reason);
	return deliver(skb, &a->inner, &to);
}
