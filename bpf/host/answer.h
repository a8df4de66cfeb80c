/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of host.bpf.c: answers of servers. */

static __always_inline struct flow *find_flow(const struct ip_view *v, const struct transport_view *t)
{
	struct flow_key key = {};

	view_copy16(key.dip, v->src);
	view_copy16(key.client, v->dst);
	key.dip_port_be = t->sport_be;
	key.client_port_be = t->dport_be;
	key.protocol = v->protocol;
	return bpf_map_lookup_elem(&flows, &key);
}

/* A SYN-ACK of a VIP that its server owns is clamped; everything else of it is right already. */
static __always_inline int clamp_owned(struct __sk_buff *skb, const struct ip_view *v, const struct transport_view *t)
{
	struct owned_key key = {};
	struct owned *o;

	view_copy16(key.vip, v->src);
	key.port_be = t->sport_be;
	key.protocol = v->protocol;
	o = bpf_map_lookup_elem(&owned_vips, &key);
	if (!o) {
		key.port_be = 0;
		o = bpf_map_lookup_elem(&owned_vips, &key);
	}
	if (o && mss_clamp(skb, t, o->mss) == MSS_CLAMPED)
		count(HOST_REASON_MSS_CLAMPED);
	return not_ours();
}

/* Lets the other fragments of an answer follow the first one. */
static __always_inline int note_out(const struct ip_view *v, const struct flow *f)
{
	struct datagram d = { .rewrite = 1 };

	view_copy16(d.addr, f->vip);
	return datagram_note(v, 0, &d);
}

/* Answers leave from the VIP, to the port that the client knows. */
static __always_inline int answer(struct __sk_buff *skb, const struct ip_view *v, const struct transport_view *t,
				  const struct flow *f)
{
	struct nat n = {};

	if (t->syn) {
		int r = mss_clamp(skb, t, f->mss);

		if (r == MSS_FAILED)
			return drop(HOST_REASON_OUT_REWRITE_FAILED);
		if (r == MSS_CLAMPED)
			count(HOST_REASON_MSS_CLAMPED);
	}
	if (v->fragment && note_out(v, f))
		return drop(HOST_REASON_OUT_FRAGMENT);
	view_copy16(n.addr, f->vip);
	n.sport_be = f->vip_port_be;
	n.dport_be = f->client_port_be;
	if (nat_apply(skb, v, t, &n, host_ipv6_csum_flag))
		return drop(HOST_REASON_OUT_REWRITE_FAILED);
	count_answered(f, t);
	count(HOST_REASON_OUT_RETURNED);
	return VERDICT_NEXT;
}
