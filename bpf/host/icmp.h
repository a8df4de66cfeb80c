/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of host.bpf.c: ICMP errors, about answers of servers here and by these servers. */

/* Turns the quoted VIP:port into DIP:port, and the client's port into the one that the server sees. The flow must be
 * known: the error is about something that left by us. */
static __always_inline enum host_reason translate_error(struct __sk_buff *skb, const struct ip_view *v, const struct quote *q,
							const struct binding *b)
{
	struct flow_key key = {};
	struct flow want = {};
	struct quote_nat n = { .inbound = 1 };

	name_flow(&key, &want, b, q->protocol, q->dst, q->dport_be, q->src, q->sport_be);
	if (flow_known(&key, &want))
		return HOST_REASON_IN_ICMP_UNKNOWN;
	view_copy16(n.addr, b->dip);
	n.sport_be = key.dip_port_be;
	n.dport_be = key.client_port_be;
	return quote_apply(skb, v, q, &n, host_ipv6_csum_flag) ? HOST_REASON_IN_ADJUST_FAILED : 0;
}

/* repair for an ICMP error: it goes the way of the packets that it is about, of the flow whose answer it quotes. */
static __always_inline const struct binding *repair_error(struct __sk_buff *skb, struct arrival *a, const struct binding *b, int *verdict)
{
	view_copy16(a->router, a->inner.src);
	view_copy16(a->inner.src, a->q.dst);
	a->t.sport_be = a->q.dport_be;
	a->t.dport_be = a->q.sport_be;
	b = repair(skb, a, b, verdict);
	view_copy16(a->inner.src, a->router);
	return b;
}

/* An ICMP error to a VIP goes to the server that sent what it quotes. */
static __noinline int accept_error(struct __sk_buff *skb, struct arrival *a)
{
	struct quote *q = &a->q;
	struct destination to = { .reason = HOST_REASON_IN_UNTOUCHED };
	__u32 shift = a->outer.payload - ETH_HLEN;
	const struct binding *b;
	enum host_reason reason;
	int verdict = VERDICT_DROP;

	if (!view_equal16(q->src, a->inner.dst))
		return refuse(a, HOST_REASON_IN_MALFORMED);
	b = find_binding(a, q->protocol, q->sport_be);
	if (!b)
		return refuse(a, HOST_REASON_IN_NO_BINDING);
	if (b->repair && q->protocol == IPPROTO_TCP) {
		b = repair_error(skb, a, b, &verdict);
		if (!b)
			return verdict;
	}
	view_copy16(to.dip, b->dip);
	to.rewrite = b->rewrite;
	count_packet(&binding_counts, b->index, a->inner.end - a->outer.payload);
	reason = bare(skb, a);
	if (!reason && b->rewrite) {
		a->inner.payload -= shift;
		a->inner.end -= shift;
		q->ip -= shift;
		q->transport -= shift;
		q->end -= shift;
		to.reason = HOST_REASON_IN_ICMP_DELIVERED;
		reason = translate_error(skb, &a->inner, q, b);
	}
	if (reason)
		return drop(reason);
	return deliver(skb, &a->inner, &to);
}

/* A server's ICMP error about a packet of a client leaves from the VIP and quotes the packet as its client sent it. Who
 * on the way to the server made it does not matter: addresses behind the VIP are nobody's business. Other messages are
 * not ours, nor do endpoints for all protocols get any: muxes answer ping. */
static __noinline int answer_icmp(struct __sk_buff *skb, const struct ip_view *v)
{
	struct flow_key key = {};
	struct quote_nat n = {};
	struct quote q = {};
	struct flow *f;

	if (quote_view(skb, v, &q))
		return not_ours();
	view_copy16(key.dip, q.dst);
	view_copy16(key.client, q.src);
	key.dip_port_be = q.dport_be;
	key.client_port_be = q.sport_be;
	key.protocol = q.protocol;
	f = bpf_map_lookup_elem(&flows, &key);
	if (!f || !view_equal16(q.src, v->dst))
		return not_ours();
	view_copy16(n.addr, f->vip);
	n.sport_be = f->client_port_be;
	n.dport_be = f->vip_port_be;
	if (quote_apply(skb, v, &q, &n, host_ipv6_csum_flag))
		return drop(HOST_REASON_OUT_REWRITE_FAILED);
	count(HOST_REASON_OUT_ICMP_RETURNED);
	return VERDICT_NEXT;
}
