/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of host.bpf.c: from the frame of the uplink to what it is for. */

/* A packet out of a tunnel finds its binding. */
static __always_inline int arrive(struct __sk_buff *skb, struct arrival *a)
{
	const struct binding *b;
	int r = PARSE_OTHER;

	if (a->inner.fragment == 2)
		return follow(skb, a);
	if (quote_possible(&a->inner))
		r = quote_view(skb, &a->inner, &a->q);
	if (r == PARSE_OK) {
		if (a->by)
			spread_quoted(skb, a);
		return accept_error(skb, a);
	}
	if (r == PARSE_OTHER)
		r = transport_view(skb, &a->inner, &a->t);
	if (r == PARSE_MALFORMED)
		return refuse(a, HOST_REASON_IN_MALFORMED);
	if (a->by)
		spread(skb, a, a->inner.protocol, a->t.dport_be);
	b = find_binding(a, a->inner.protocol, a->t.dport_be);
	if (!b)
		return snat_arrive(skb, a);
	/* Other messages of ICMP are not translated: their answers quote nothing to know them by. */
	if (b->rewrite && quote_protocol(&a->inner))
		return refuse(a, HOST_REASON_IN_NO_BINDING);
	return accept_packet(skb, a, b);
}

/* Takes what GUE says of a packet into the arrival; returns a reason to refuse it, or 0. */
static __always_inline enum host_reason arrive_gue(struct __sk_buff *skb, struct arrival *a)
{
	struct gue_header g;

	switch (gue_payload(skb, &a->outer, &g)) {
	case PARSE_OK:
		a->vni = bpf_ntohl(g.vni_be) >> 8;
		a->member = bpf_ntohs(g.member_be);
		return 0;
	case PARSE_OTHER:
		return HOST_REASON_IN_GUE_UNKNOWN;
	}
	return HOST_REASON_IN_MALFORMED;
}

/* A frame without a tunnel is not ours, but a SYN among them may end a flow. */
static __always_inline int pass_by(struct __sk_buff *skb, struct arrival *a)
{
	if (a->outer.protocol == IPPROTO_TCP && !transport_view(skb, &a->outer, &a->t) && a->t.syn)
		flow_forget(&a->outer, &a->t);
	return not_ours();
}

/* A packet that may have come by a tunnel. */
static __always_inline int look(struct __sk_buff *skb, struct arrival *a)
{
	enum host_reason reason = 0;
	int r = frame_ip(skb, &a->outer);
	__u32 source;

	if (r == PARSE_OTHER)
		return not_ours();
	if (r)
		a->kind = tunnel_is(a->outer.protocol) ? HOST_TUNNEL_IPIP : 0;
	else
		a->kind = tunnel_kind(skb, &a->outer);
	if (!a->kind)
		return r ? not_ours() : pass_by(skb, a);
	if (r)
		return refuse(a, parse_reason(r));
	source = source_ok(&a->outer);
	if (!source && !from_peer(&a->outer))
		return refuse(a, HOST_REASON_IN_BAD_SOURCE);
	if (a->outer.fragment)
		return refuse(a, HOST_REASON_IN_FRAGMENT);
	a->member = GUE_NO_MEMBER;
	/* GUE names the member. */
	a->by = source == HOST_SOURCE_SWITCH && a->kind == HOST_TUNNEL_IPIP;
	if (a->kind == HOST_TUNNEL_GUE)
		reason = arrive_gue(skb, a);
	if (reason)
		return refuse(a, reason);
	r = tunnel_inner(skb, &a->outer, &a->inner);
	if (r)
		return refuse(a, parse_reason(r));
	return arrive(skb, a);
}
