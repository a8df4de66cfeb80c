/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of host.bpf.c: datagrams in fragments. The first fragment goes the way of its ports and is noted; the others
 * have no ports and follow it. One that overtakes the first is lost to it. */

static __always_inline void datagram_name(struct datagram_key *key, const struct ip_view *v, __u32 vni, __u8 out)
{
	view_copy16(key->src, v->src);
	view_copy16(key->dst, v->dst);
	key->vni = vni;
	key->id = v->id;
	key->out = out;
	key->protocol = v->is6 ? 0 : v->protocol;
}

/* Notes what becomes of the datagram of a first fragment. Global, so that the verifier looks at it once. */
__noinline int datagram_note(const struct ip_view *v, __u32 vni, __u8 out, struct datagram *d)
{
	struct datagram_key key = {};

	if (!v || !d)
		return -1;
	datagram_name(&key, v, vni, out);
	d->born = host_now();
	return bpf_map_update_elem(&datagrams, &key, d, BPF_ANY);
}

/* Finds what became of the first fragment of a datagram; 0 if it was not seen lately. */
static __always_inline const struct datagram *datagram_find(const struct ip_view *v, __u32 vni, __u8 out)
{
	struct datagram_key key = {};
	const struct datagram *d;

	datagram_name(&key, v, vni, out);
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
	const struct datagram *d = datagram_find(&a->inner, a->vni, 0);
	__u8 hairpin;

	if (!d)
		return refuse(a, HOST_REASON_IN_FRAGMENT);
	view_copy16(to.dip, d->addr);
	to.rewrite = d->rewrite;
	hairpin = d->hairpin;
	to.reason = d->rewrite ? HOST_REASON_IN_DELIVERED : HOST_REASON_IN_UNTOUCHED;
	count_arrival(skb, a, d->index);
	count(HOST_REASON_FRAGMENT_FOLLOWED);
	if (tunnel_ecn_lost(&a->outer, &a->inner))
		return drop(HOST_REASON_IN_MALFORMED);
	if (tunnel_strip(skb, a->kind, &a->outer, &a->inner) || tunnel_mark(skb, &a->outer, &a->inner))
		return drop(HOST_REASON_IN_ADJUST_FAILED);
	view_copy16(n.addr, to.dip);
	if (to.rewrite && nat_apply(skb, &a->inner, &none, &n, host_ipv6_csum_flag))
		return drop(HOST_REASON_IN_ADJUST_FAILED);
	if (hairpin)
		count(HOST_REASON_CLIENT_HERE);
	if (hairpin && hairpin_from_vip(skb, &a->inner, &none))
		return drop(HOST_REASON_IN_ADJUST_FAILED);
	return deliver(skb, &a->inner, &to);
}

/* follow_out for an answer to a client on this machine, which came from the VIP and went to it. */
static __always_inline int follow_home(struct __sk_buff *skb, const struct ip_view *v, const __u8 *client)
{
	struct transport_view none = {};

	if (hairpin_from_vip(skb, v, &none) || hairpin_to_client(skb, v, &none, client))
		return drop(HOST_REASON_OUT_REWRITE_FAILED);
	count(HOST_REASON_FRAGMENT_FOLLOWED);
	return hairpin_turn(skb, HOST_REASON_OUT_RETURNED);
}

/* A later fragment of an answer leaves from the VIP, as the first one did, or is sent on from it. */
static __noinline int follow_out(struct __sk_buff *skb, const struct ip_view *v, int serving)
{
	struct transport_view none = {};
	struct nat n = {};
	const struct datagram *d = datagram_find(v, 0, 1);

	if (!d || d->beside != serving)
		return serving ? VERDICT_NEXT : not_ours();
	meter_out(skb, v, &none, d->index);
	view_copy16(n.addr, d->addr);
	if (d->hairpin)
		return follow_home(skb, v, n.addr);
	if (nat_apply(skb, v, &none, &n, host_ipv6_csum_flag))
		return drop(HOST_REASON_OUT_REWRITE_FAILED);
	count(HOST_REASON_FRAGMENT_FOLLOWED);
	count(HOST_REASON_OUT_RETURNED);
	return serving ? beside_send(skb, n.addr, v->dst) : VERDICT_NEXT;
}
