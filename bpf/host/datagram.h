/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of host.bpf.c: datagrams in fragments. The first fragment goes the way of its ports and is noted; the others
 * have no ports and follow it. One that overtakes the first is lost to it. */

static __always_inline void datagram_name(struct datagram_key *key, const struct ip_view *v, __u32 vni)
{
	view_copy16(key->src, v->src);
	view_copy16(key->dst, v->dst);
	key->vni = vni;
	key->id = v->id;
	key->protocol = v->is6 ? 0 : v->protocol;
}

/* Notes what becomes of the datagram of a first fragment. Global, so that the verifier looks at it once. */
__noinline int datagram_note(const struct ip_view *v, __u32 vni, struct datagram *d)
{
	struct datagram_key key = {};

	if (!v || !d)
		return -1;
	datagram_name(&key, v, vni);
	d->born = host_now();
	return bpf_map_update_elem(&datagrams, &key, d, BPF_ANY);
}

/* Finds what became of the first fragment of a datagram; 0 if it was not seen lately. */
static __always_inline const struct datagram *datagram_find(const struct ip_view *v, __u32 vni)
{
	struct datagram_key key = {};
	const struct datagram *d;

	datagram_name(&key, v, vni);
	d = bpf_map_lookup_elem(&datagrams, &key);
	if (d && host_now() - d->born > LIMIT_DATAGRAM_SECONDS * 1000000000ull)
		return 0;
	return d;
}

/* A later fragment out of the tunnel goes where the first one went. */
static __noinline int follow(struct __sk_buff *skb, const struct arrival *a)
{
	struct destination to = {};
	struct transport_view none = {};
	struct nat n = { .dst = 1 };
	const struct datagram *d = datagram_find(&a->inner, a->vni);

	if (!d)
		return refuse(a, HOST_REASON_IN_FRAGMENT);
	view_copy16(to.dip, d->addr);
	to.rewrite = d->rewrite;
	to.reason = d->rewrite ? HOST_REASON_IN_DELIVERED : HOST_REASON_IN_UNTOUCHED;
	count_packet(&binding_counts, d->index, a->inner.end - a->outer.payload);
	count(HOST_REASON_FRAGMENT_FOLLOWED);
	if (tunnel_ecn_lost(&a->outer, &a->inner))
		return drop(HOST_REASON_IN_MALFORMED);
	if (tunnel_strip(skb, a->kind, &a->outer, &a->inner) || tunnel_mark(skb, &a->outer, &a->inner))
		return drop(HOST_REASON_IN_ADJUST_FAILED);
	view_copy16(n.addr, to.dip);
	if (to.rewrite && nat_apply(skb, &a->inner, &none, &n, host_ipv6_csum_flag))
		return drop(HOST_REASON_IN_ADJUST_FAILED);
	return deliver(skb, &a->inner, &to);
}

/* A later fragment of an answer leaves from the VIP, as the first one did. */
static __noinline int follow_out(struct __sk_buff *skb, const struct ip_view *v)
{
	struct transport_view none = {};
	struct nat n = {};
	const struct datagram *d = datagram_find(v, 0);

	if (!d)
		return not_ours();
	view_copy16(n.addr, d->addr);
	if (nat_apply(skb, v, &none, &n, host_ipv6_csum_flag))
		return drop(HOST_REASON_OUT_REWRITE_FAILED);
	count(HOST_REASON_FRAGMENT_FOLLOWED);
	count(HOST_REASON_OUT_RETURNED);
	return VERDICT_NEXT;
}
