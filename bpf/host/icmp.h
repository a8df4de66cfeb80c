/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of host.bpf.c: ICMP errors, about answers of servers here and by these servers. */

/* Replaces the other address of a quote that quote_apply went over with *n, and of its packet: those of the client, or of who reports for it. Both
 * are written over. */
static __always_inline int quote_other(struct __sk_buff *skb, const struct ip_view *v, struct quote *q, struct quote_nat *n,
				       const __u8 *addr)
{
	q->sport_be = n->sport_be;
	q->dport_be = n->dport_be;
	n->inbound = !n->inbound;
	view_copy16(n->addr, addr);
	return quote_apply(skb, v, q, n, host_ipv6_csum_flag);
}

/* Turns the quoted VIP:port into DIP:port, and the client's port into the one that the server sees. The flow must be
 * known: the error is about something that left by us; of TCP something that its client does not have yet. */
static __always_inline enum host_reason translate_error(struct __sk_buff *skb, struct arrival *a, const struct binding *b)
{
	const struct ip_view *v = &a->inner;
	struct quote *q = &a->q;
	struct quote_nat n = { .inbound = 1 };
	__be32 seq;

	if (!name_flow(&a->name, &a->want, b, q->protocol, q->dst, q->dport_be, q->sport_be))
		return HOST_REASON_IN_ICMP_UNKNOWN;
	if (!packet_find(skb, a, q->protocol == IPPROTO_TCP || q->protocol == IPPROTO_UDP))
		return HOST_REASON_IN_ICMP_UNKNOWN;
	if (q->protocol == IPPROTO_TCP && (bpf_skb_load_bytes(skb, q->transport + __builtin_offsetof(struct tcphdr, seq), &seq, sizeof(seq)) ||
					   !seq_under_way(&a->flow.record, bpf_ntohl(seq))))
		return HOST_REASON_IN_ICMP_WINDOW;
	view_copy16(n.addr, b->dip);
	n.sport_be = a->name.dip_port_be;
	n.dport_be = a->name.peer_port_be;
	if (quote_apply(skb, v, q, &n, host_ipv6_csum_flag))
		return HOST_REASON_IN_ADJUST_FAILED;
	if (a->want.kind != FLOW_HAIRPIN)
		return 0;
	count(HOST_REASON_CLIENT_HERE);
	return quote_other(skb, v, q, &n, v->dst) ? HOST_REASON_IN_ADJUST_FAILED : 0;
}

/* repair for an ICMP error: it goes the way of the packets that it is about, of the flow whose answer it quotes. */
static __always_inline const struct binding *repair_error(struct __sk_buff *skb, struct arrival *a, const struct binding *b, int *verdict)
{
	int known = 0;

	view_copy16(a->router, a->inner.src);
	view_copy16(a->inner.src, a->q.dst);
	a->t.sport_be = a->q.dport_be;
	a->t.dport_be = a->q.sport_be;
	b = repair(skb, a, b, verdict, &known);
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
		return snat_error(skb, a);
	if (b->repair && !a->spread && q->protocol == IPPROTO_TCP) {
		b = repair_error(skb, a, b, &verdict);
		if (!b)
			return verdict;
	}
	view_copy16(to.dip, b->dip);
	to.rewrite = b->rewrite;
	count_arrival(skb, a, b->index);
	reason = bare(skb, a);
	if (!reason && b->rewrite) {
		a->inner.payload -= shift;
		a->inner.end -= shift;
		q->ip -= shift;
		q->transport -= shift;
		q->end -= shift;
		to.reason = HOST_REASON_IN_ICMP_DELIVERED;
		reason = translate_error(skb, a, b);
	}
	if (reason)
		return drop(reason);
	return deliver(skb, &a->inner, &to);
}

/* The verdict on what neither host_out nor, serving, host_serve takes: the first counts it. */
static __always_inline int nobodys(int serving)
{
	return serving ? VERDICT_NEXT : not_ours();
}

/* A server's ICMP error about a packet of a client leaves from the VIP and quotes the packet as its client sent it. Who
 * on the way to the server made it does not matter: addresses behind the VIP are nobody's business. So does one about what came back for a
 * connection that the server opened. VERDICT_OPEN: another message; endpoints for all protocols get none, muxes answer ping. */
static __noinline int answer_icmp(struct __sk_buff *skb, const struct ip_view *v, int serving)
{
	struct quote_nat n = {};
	struct quote q = {};
	struct arrival *scratch;
	const __u8 *vip;
	__u32 zero = 0;

	switch (quote_view(skb, v, &q)) {
	case PARSE_OK:
		break;
	case PARSE_OTHER:
		return serving ? VERDICT_NEXT : VERDICT_OPEN;
	default:
		return nobodys(serving);
	}
	scratch = bpf_map_lookup_elem(&arrivals, &zero);
	if (!scratch || !view_equal16(q.src, v->dst))
		return nobodys(serving);
	view_copy16(scratch->name.dip, q.dst);
	view_copy16(scratch->name.client, q.src);
	scratch->name.dip_port_be = q.dport_be;
	scratch->name.peer_port_be = q.sport_be;
	scratch->name.scope = flow_scope(0, q.protocol);
	scratch->name.kind = FLOW_INBOUND;
	if (!flow_find(&scratch->name, &scratch->flow)) {
		scratch->name.kind = FLOW_SNAT;
		if (!snat_possible(v) || (q.protocol == IPPROTO_ICMP && !snat_echo_id(skb, q.transport, q.end, SNAT_ECHO_REPLY, &scratch->name.dip_port_be)) ||
		    !flow_find(&scratch->name, &scratch->flow))
			return nobodys(serving);
	}
	if (serving && !(scratch->flow.record.flags & FLOW_BESIDE))
		return VERDICT_NEXT;
	vip = bpf_map_lookup_elem(&flow_addrs, &scratch->flow.record.vip);
	if (!vip)
		return nobodys(serving);
	view_copy16(n.addr, vip);
	if (q.protocol != IPPROTO_ICMP) {
		n.sport_be = scratch->flow.record.client_port_be;
		n.dport_be = scratch->flow.record.vip_port_be;
	}
	meter(skb, scratch->flow.record.dip, METER_OUT, v->end - ETH_HLEN, 0);
	if (quote_apply(skb, v, &q, &n, host_ipv6_csum_flag))
		return drop(HOST_REASON_OUT_REWRITE_FAILED);
	/* The quoted checksum makes up for it in the sum over the quote. */
	if (scratch->flow.record.kind == FLOW_SNAT && q.protocol == IPPROTO_ICMP &&
	    snat_echo_set(skb, q.transport, scratch->flow.record.dip_port_be, scratch->flow.record.vip_port_be))
		return drop(HOST_REASON_OUT_REWRITE_FAILED);
	if (scratch->flow.record.kind == FLOW_HAIRPIN && quote_other(skb, v, &q, &n, scratch->flow.record.client))
		return drop(HOST_REASON_OUT_REWRITE_FAILED);
	if (scratch->flow.record.kind == FLOW_HAIRPIN)
		return hairpin_turn(skb, HOST_REASON_OUT_ICMP_RETURNED);
	count(HOST_REASON_OUT_ICMP_RETURNED);
	return serving ? beside_send(skb, vip, v->dst) : VERDICT_NEXT;
}
