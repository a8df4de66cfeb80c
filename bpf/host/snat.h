/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of host.bpf.c: connections that servers here open leave with a VIP and one of its ports, and what comes back for it finds them
 * (design section 9.9): TCP, UDP and ICMP echo over IPv4, whose identifier takes the place of the port (RFC 5508 section 3.1).
 *
 * Left as they are: what goes to the inside, answers of clients' flows, and TCP that did not begin with a SYN here: connections past the VIP. */

/* What of a packet is looked at besides ports (RFC 792). */
struct snat_echo {
	__u8 type, code;
	__be16 check;
	__be16 id;
};

enum snat_echo_type {
	SNAT_ECHO_REPLY = 0,
	SNAT_ECHO_REQUEST = 8,
};

/* What became of the search for a packet's connection. */
enum snat_found {
	SNAT_OTHER = 0,   /* the packet is none of SNAT */
	SNAT_KNOWN = 1,
	SNAT_NEW = 2,     /* it is to begin */
};

/* Reads the identifier of an ICMP echo at `at`; 0: it is none of this type. */
static __always_inline int snat_echo_id(struct __sk_buff *skb, __u32 at, __u32 end, __u8 type, __be16 *id)
{
	struct snat_echo e;

	if (at + 8 > end || bpf_skb_load_bytes(skb, at, &e, sizeof(e)) || e.type != type || e.code)
		return 0;
	*id = e.id;
	return 1;
}

/* Gives an ICMP echo another identifier. */
static __always_inline int snat_echo_set(struct __sk_buff *skb, __u32 at, __be16 from, __be16 to)
{
	if (bpf_l4_csum_replace(skb, at + __builtin_offsetof(struct snat_echo, check), from, to, sizeof(to)))
		return -1;
	return bpf_skb_store_bytes(skb, at + __builtin_offsetof(struct snat_echo, id), &to, sizeof(to), 0);
}

/* ---- out */

/* The connection of a packet of a server, as the server names it, in a->name; 0: it has none. */
static __always_inline int snat_name(struct __sk_buff *skb, const struct ip_view *v, const struct transport_view *t, struct arrival *a)
{
	view_copy16(a->name.dip, v->src);
	view_copy16(a->name.client, v->dst);
	a->name.scope = flow_scope(0, v->protocol);
	a->name.kind = FLOW_SNAT;
	a->name.dip_port_be = t->sport_be;
	a->name.peer_port_be = t->dport_be;
	return t->ports || (v->protocol == IPPROTO_ICMP && snat_echo_id(skb, v->payload, v->end, SNAT_ECHO_REQUEST, &a->name.dip_port_be));
}

/* Finds the connection of a packet of a server: enum snat_found; its name is in the scratch then, and the connection itself if it is known.
 * Global, as what follows, so that the verifier looks at it once. */
__noinline int snat_flow(struct __sk_buff *skb, const struct ip_view *v, const struct transport_view *t)
{
	struct arrival *a;
	__u32 zero = 0;
	int of;

	if (!v || !t)
		return SNAT_OTHER;
	of = snat_addr(v->src);
	a = bpf_map_lookup_elem(&arrivals, &zero);
	if (!a || of < 0 || of & SNAT_VIP || !snat_name(skb, v, t, a))
		return SNAT_OTHER;
	if (flow_find(&a->name, &a->flow))
		return SNAT_KNOWN;
	if (v->protocol == IPPROTO_TCP && (t->bits & (TCP_BIT_SYN | TCP_BIT_ACK | TCP_BIT_RST)) != TCP_BIT_SYN)
		return SNAT_OTHER;
	return snat_inside(v->dst) ? SNAT_OTHER : SNAT_NEW;
}

/* Sends a packet of the connection a->flow from its VIP. */
__noinline int snat_send(struct __sk_buff *skb, const struct ip_view *v, const struct transport_view *t)
{
	struct flow_record *r;
	struct nat n = {};
	struct arrival *a;
	const __u8 *vip;
	__u32 zero = 0;

	a = bpf_map_lookup_elem(&arrivals, &zero);
	if (!v || !t || !a)
		return VERDICT_DROP;
	r = &a->flow.record;
	vip = bpf_map_lookup_elem(&flow_addrs, &r->vip);
	if (!vip)
		return drop(HOST_REASON_OUT_REWRITE_FAILED);
	if (t->syn) {
		int got = mss_clamp(skb, t, r->mss);

		if (got == MSS_FAILED)
			return drop(HOST_REASON_OUT_REWRITE_FAILED);
		if (got == MSS_CLAMPED)
			count(HOST_REASON_MSS_CLAMPED);
	}
	if (v->fragment && note_out(v, vip, r, 0))
		return drop(HOST_REASON_OUT_FRAGMENT);
	meter_out(skb, v, t, r->dip);
	view_copy16(n.addr, vip);
	n.sport_be = r->vip_port_be;
	n.dport_be = t->dport_be;
	if (nat_apply(skb, v, t, &n, host_ipv6_csum_flag))
		return drop(HOST_REASON_OUT_REWRITE_FAILED);
	if (!t->ports && snat_echo_set(skb, v->payload, r->dip_port_be, r->vip_port_be))
		return drop(HOST_REASON_OUT_REWRITE_FAILED);
	count(HOST_REASON_OUT_SNAT);
	return VERDICT_NEXT;
}

/* Gives a packet to the agent, which sends it again when there is a port. */
static __always_inline int snat_wait(const struct ip_view *v)
{
	const struct host_snat_setup *setup = snat_setup();
	__u32 index = snat_addr(v->src);
	struct host_snat_holder *h = bpf_map_lookup_elem(&snat_holders, &index);

	if (!h || !setup || !setup->device || *(volatile __u64 *)&h->handed - *(volatile __u64 *)&h->dealt >= LIMIT_HOST_SNAT_WAITING)
		return drop(HOST_REASON_OUT_SNAT_NO_PORT);
	__sync_fetch_and_add(&h->handed, 1);
	count(HOST_REASON_OUT_SNAT_WAITS);
	return bpf_redirect(setup->device, 0);
}

/* A packet that answers no client's flow leaves. */
static __always_inline int leave(struct __sk_buff *skb, const struct ip_view *v, const struct transport_view *t)
{
	int found = snat_possible(v) ? snat_flow(skb, v, t) : SNAT_OTHER, begun = FLOW_BEGUN;

	if (found == SNAT_OTHER)
		return t->syn ? clamp_owned(skb, v, t) : not_ours();
	if (found == SNAT_NEW)
		begun = snat_begin(((const __u32 *)v->src)[3]);
	if (begun == FLOW_THERE)
		return snat_wait(v);
	if (begun == FLOW_FULL)
		return drop(HOST_REASON_OUT_SNAT_FULL);
	snat_left(v, t);
	return snat_send(skb, v, t);
}
