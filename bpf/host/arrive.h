/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of host.bpf.c: from the frame of the uplink to what it is for. */

/* Can a packet be one that another host sends on (host/repair.h)? Those are whole TCP segments that are no SYNs, and ICMP errors about TCP: a connection
 * begins through a mux alone, whose source lists and limits apply. */
static __always_inline int repairable(const struct arrival *a, __u8 protocol)
{
	return protocol == IPPROTO_TCP && !a->t.syn && !a->inner.fragment;
}

/* A packet out of a tunnel finds its binding. `peer`: its outer source is another host's, and no tunnel source. */
static __always_inline int arrive(struct __sk_buff *skb, struct arrival *a, int peer)
{
	const struct binding *b;
	int r = PARSE_OTHER;

	if (a->inner.fragment == 2)
		return peer ? refuse(a, HOST_REASON_IN_BAD_SOURCE) : follow(skb, a);
	if (quote_possible(&a->inner))
		r = quote_view(skb, &a->inner, &a->q);
	if (r == PARSE_OK) {
		if (peer && !repairable(a, a->q.protocol))
			return refuse(a, HOST_REASON_IN_BAD_SOURCE);
		if (a->by)
			spread_quoted(skb, a);
		return accept_error(skb, a);
	}
	if (r == PARSE_OTHER)
		r = transport_view(skb, &a->inner, &a->t);
	if (r == PARSE_MALFORMED)
		return refuse(a, HOST_REASON_IN_MALFORMED);
	if (peer && !repairable(a, a->inner.protocol))
		return refuse(a, HOST_REASON_IN_BAD_SOURCE);
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

/* A frame without a tunnel is not ours, but a SYN among them may open a connection in place of a flow. */
static __always_inline int pass_by(struct __sk_buff *skb, struct arrival *a)
{
	if (a->outer.protocol == IPPROTO_TCP && !transport_view(skb, &a->outer, &a->t) &&
	    (a->t.bits & (TCP_BIT_SYN | TCP_BIT_ACK | TCP_BIT_RST)) == TCP_BIT_SYN)
		flow_direct(&a->outer, &a->t);
	return not_ours();
}

/* May a packet come from its source? Not if that is 0.0.0.0/8, 127.0.0.0/8, multicast, reserved or broadcast, ::, ::1, an IPv4-mapped IPv6 address (RFC 1122
 * section 3.2.1.3, RFC 4291 section 2.5, RFC 6890), or a tunnel source of the plan. The kernel's own check is passed by (host/deliver.h). */
static __always_inline int source_possible(const struct ip_view *v)
{
	const __u32 *src = (const __u32 *)v->src;
	__u8 first = v->is6 ? v->src[0] : v->src[12];

	if (!v->is6 && (first == 0 || first == 127 || first >= 224))
		return 0;
	if (v->is6 && (first == 0xff || (!src[0] && !src[1] && (src[2] == bpf_htonl(0xffff) || (!src[2] && bpf_ntohl(src[3]) < 2)))))
		return 0;
	return source_ok(v) != HOST_SOURCE_MUX;
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
	if (!source_possible(&a->inner))
		return refuse(a, HOST_REASON_IN_BAD_SOURCE);
	return arrive(skb, a, !source);
}
