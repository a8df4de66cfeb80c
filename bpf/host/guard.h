/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of host.bpf.c: what servers may not send. */

/* What of the plan's Networks holds an address; 0: none does. */
static __noinline int network_of(const __u8 *addr)
{
	struct network_prefix k = { .bits = 128 };
	const enum network_kind *kind;

	view_copy16(k.addr, addr);
	kind = bpf_map_lookup_elem(&networks, &k);
	return kind ? *kind : 0;
}

/* Is an endpoint one that the sender of this key owns? */
static __always_inline int owns_key(struct sender_key *k, __u8 protocol, __be16 port)
{
	k->protocol = protocol;
	k->port_be = port;
	return bpf_map_lookup_elem(&senders, k) != 0;
}

/* Does a packet from a VIP belong to an endpoint that its sender owns? What has no ports of its own goes with those of the VIP. */
static __noinline int owns(struct __sk_buff *skb, const struct sent *s, const struct sender_key *sender)
{
	struct sender_key k = *sender;
	__be16 port = 0;

	if (s->result)
		return 0;
	if (s->v.fragment == 2 || quote_protocol(&s->v))
		return 1;
	if (owns_key(&k, BINDING_ANY, 0))
		return 1;
	if (s->v.protocol != IPPROTO_TCP && s->v.protocol != IPPROTO_UDP)
		return 0;
	if (view_load(skb, s->v.payload, &port, sizeof(port)))
		return 0;
	return owns_key(&k, s->v.protocol, port) || owns_key(&k, s->v.protocol, 0);
}

/* Is an IPv6 address one of a link alone (RFC 4291 section 2.5.6)? */
static __always_inline int link_local6(const __u8 *addr)
{
	return addr[0] == 0xfe && (addr[1] & 0xc0) == 0x80;
}

/* Is it the address of one that has none yet (RFC 1122 section 3.2.1.3, RFC 4291 section 2.5.2), or one of its link alone? */
static __always_inline int source_free(const struct ip_view *v)
{
	const __u32 *w = (const __u32 *)v->src;

	if (!v->is6)
		return !w[3];
	return !(w[0] | w[1] | w[2] | w[3]) || link_local6(v->src);
}

/* Does the machine reach the source of a packet by the device that it came in by (RFC 3704 section 2.2)? */
static __noinline int source_reached(struct __sk_buff *skb, const struct ip_view *v)
{
	/* The kernel looks up nothing that is from a link or a group: what is sent to these is asked for by nobody. */
	const __u8 nobody[16] = {}, *from = v->is6 && (link_local6(v->dst) || v->dst[0] == 0xff) ? nobody : v->dst;
	struct bpf_fib_lookup fib;
	long r = route(skb, &fib, from, v->src);

	/* What is too big for the device is reached by it. */
	return (r == BPF_FIB_LKUP_RET_SUCCESS || r == BPF_FIB_LKUP_RET_FRAG_NEEDED) && fib.ifindex == skb->ifindex;
}

/* A reason to drop a packet for its source, or 0. */
static __noinline enum host_reason guard_source(struct __sk_buff *skb, const struct sent *s, __u32 flags)
{
	struct sender_key k = { .ifindex = skb->ifindex };
	const enum sender_use *use;
	int kind;

	view_copy16(k.addr, s->v.src);
	use = bpf_map_lookup_elem(&senders, &k);
	if (use && (*use & SENDER_ALL))
		return 0;
	if (use && owns(skb, s, &k))
		return 0;
	kind = network_of(s->v.src);
	if (kind == NETWORK_VIP)
		return HOST_REASON_SENT_VIP_SOURCE;
	if (kind == NETWORK_SOURCE)
		return HOST_REASON_SENT_BAD_SOURCE;
	if (!kind && (!(flags & HOST_STRICT) || source_free(&s->v)))
		return 0;
	return source_reached(skb, &s->v) ? 0 : HOST_REASON_SENT_BAD_SOURCE;
}

/* A reason to drop an ICMP error for what it quotes, or 0: it would leave with the VIP of that packet's flow, and who is not on the way to
 * its server has nothing to say of it. */
static __noinline enum host_reason guard_quote(struct __sk_buff *skb, const struct sent *s)
{
	struct sender_key k = { .ifindex = skb->ifindex };
	struct ip_view v = s->v;
	struct quote q = {};

	if (s->result || quote_view(skb, &v, &q) != PARSE_OK)
		return 0;
	view_copy16(k.addr, q.dst);
	if (bpf_map_lookup_elem(&senders, &k))
		return 0;
	view_copy16(v.src, q.dst);
	return source_reached(skb, &v) ? 0 : HOST_REASON_SENT_BAD_SOURCE;
}

/* Is a packet one that somebody may take out of a tunnel? Fragments but the first one of a datagram cannot be put together without
 * that one. */
static __always_inline int sent_tunnel(struct __sk_buff *skb, const struct sent *s)
{
	if (s->v.protocol == IPPROTO_GRE || tunnel_is(s->v.protocol))
		return 1;
	return tunnel_kind(skb, &s->v) != 0;
}

/* A reason to drop a packet for where it leads, or 0. With IPv4 options it may lead elsewhere than it says. Joined segments that are
 * longer than their header can say are of TCP. */
static __always_inline enum host_reason guard_tunnel(struct __sk_buff *skb, const struct sent *s)
{
	int hidden = s->result == PARSE_MALFORMED && s->v.is6 && !skb->gso_size, kind;

	if (!hidden && !sent_tunnel(skb, s))
		return 0;
	if (!s->v.is6 && s->v.payload != s->at + sizeof(struct iphdr))
		return HOST_REASON_SENT_TUNNEL;
	kind = network_of(s->v.dst);
	if (kind != NETWORK_UNDERLAY && kind != NETWORK_SOURCE)
		return 0;
	return hidden ? HOST_REASON_SENT_MALFORMED : HOST_REASON_SENT_TUNNEL;
}

/* A reason to drop what a server sent, or 0. Who sends into a VLAN is behind another device. */
static __always_inline enum host_reason guard(struct __sk_buff *skb, const struct sent *s)
{
	const struct host_config *c = config();
	enum host_reason reason = 0;

	if (!c || !(c->flags & HOST_GUARD))
		return 0;
	if (!s->away)
		reason = guard_source(skb, s, c->flags);
	if (!reason && !s->away && quote_possible(&s->v))
		reason = guard_quote(skb, s);
	return reason ? reason : guard_tunnel(skb, s);
}
