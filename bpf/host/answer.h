/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of host.bpf.c: answers of servers. */

/* Finds the flow that a packet of a server belongs to. */
static __always_inline int find_flow(const struct ip_view *v, const struct transport_view *t, struct flow_name *n, struct flow_found *f)
{
	view_copy16(n->dip, v->src);
	view_copy16(n->client, v->dst);
	n->dip_port_be = t->sport_be;
	n->peer_port_be = t->dport_be;
	n->scope = flow_scope(0, v->protocol);
	n->kind = FLOW_INBOUND;
	return flow_find(n, f);
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
static __always_inline int note_out(const struct ip_view *v, const __u8 *vip, const struct flow_record *r, int serving)
{
	struct datagram d = { .rewrite = 1, .hairpin = r->kind == FLOW_HAIRPIN, .beside = serving, .index = r->dip };

	view_copy16(d.addr, d.hairpin ? r->client : vip);
	return datagram_note(v, 0, 1, &d);
}

/* Answers of the flow a->flow leave from the VIP, to the port that the client knows. Those to a client on this machine are turned back when they leave, or
 * sent on to it when they come by the device of their server (serving). */
static __always_inline int answer(struct __sk_buff *skb, const struct ip_view *v, const struct transport_view *t,
				  struct arrival *a, int serving)
{
	const struct flow_found *f = &a->flow;
	const __u8 *vip = bpf_map_lookup_elem(&flow_addrs, &f->record.vip);
	struct nat n = {};

	if (!vip)
		return not_ours();
	if (t->syn && v->protocol == IPPROTO_TCP && flow_replaced(f, t))
		return serving ? VERDICT_NEXT : not_ours();
	if (t->syn) {
		int r = mss_clamp(skb, t, f->record.mss);

		if (r == MSS_FAILED)
			return drop(HOST_REASON_OUT_REWRITE_FAILED);
		if (r == MSS_CLAMPED)
			count(HOST_REASON_MSS_CLAMPED);
	}
	if (v->fragment && note_out(v, vip, &f->record, serving))
		return drop(HOST_REASON_OUT_FRAGMENT);
	if (v->protocol == IPPROTO_UDP)
		count_echoed(f->record.binding, f->tag);
	stamp_out(skb, v, t, a);
	flow_left(f, v, t);
	meter_out(skb, v, t, f->record.dip);
	view_copy16(n.addr, vip);
	n.sport_be = f->record.vip_port_be;
	n.dport_be = f->record.client_port_be;
	n.more = a->stamp.sum;
	if (nat_apply(skb, v, t, &n, host_ipv6_csum_flag) || stamp_write(skb, t, &a->stamp))
		return drop(HOST_REASON_OUT_REWRITE_FAILED);
	if (f->record.kind == FLOW_HAIRPIN && hairpin_to_client(skb, v, t, f->record.client))
		return drop(HOST_REASON_OUT_REWRITE_FAILED);
	count_answered(f->record.binding, t);
	if (f->record.kind == FLOW_HAIRPIN)
		return hairpin_turn(skb, HOST_REASON_OUT_RETURNED);
	count(HOST_REASON_OUT_RETURNED);
	return serving ? beside_send(skb, vip, v->dst) : VERDICT_NEXT;
}
