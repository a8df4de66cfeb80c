/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of host.bpf.c: clients on the machine of their server.
 *
 * What they send to a VIP goes to a mux by the uplink and comes back by a tunnel, as that of any client. Answers to them would not leave by
 * the uplink: the machine, or a bridge on it, knows a shorter way, and a server that is its own client would not even take the packet, whose source is
 * its own address. When they pass a server's device that the client is not behind, host_serve translates them (host/beside.h). Else their server knows
 * the VIP as the client. Its answers go to the VIP by the uplink, where host_out makes them VIP to client and turns them back. */

/* Where a client is. */
enum client_place {
	CLIENT_AWAY = 0,   /* where the uplink leads, or nobody can tell */
	CLIENT_BESIDE = 1, /* on this machine; answers pass host_serve on their way to it */
	CLIENT_HERE = 2,   /* on this machine, elsewhere */
};

/* The device that the way to an address leads out of; 0: it leads nowhere, the address is this machine's own; a negative number: nobody can
 * tell, as the machine forwards nothing. */
static __always_inline long way_to(struct __sk_buff *skb, const __u8 *from, const __u8 *to)
{
	struct bpf_fib_lookup fib;

	switch (route(skb, &fib, from, to)) {
	case BPF_FIB_LKUP_RET_SUCCESS:
	case BPF_FIB_LKUP_RET_FRAG_NEEDED: /* the packet has its tunnel still */
		return fib.ifindex;
	case BPF_FIB_LKUP_RET_NOT_FWDED:
		return 0;
	}
	return -1;
}

/* Does what a server sends pass host_serve before it gets to a client behind the device `client`? */
static __always_inline int served(struct __sk_buff *skb, const struct flow_name *n, long client)
{
	long server = way_to(skb, n->client, n->dip);
	struct sender_key k = { .ifindex = server };

	if (server <= 0 || client <= 0 || server == client || server == skb->ifindex)
		return 0;
	view_copy16(k.addr, n->dip);
	return bpf_map_lookup_elem(&senders, &k) != 0;
}

/* Where is the client of the arrival's flow? On this machine only if the VIP is where the uplink leads; where nobody can tell only if it is the
 * server itself. Global, so that the verifier looks at it once. */
__noinline int client_place(struct __sk_buff *skb, const struct arrival *a)
{
	const struct flow_name *n;
	long client;

	if (!a)
		return CLIENT_AWAY;
	n = &a->name;
	client = way_to(skb, n->dip, n->client);
	if (client < 0 || client == skb->ifindex)
		return view_equal16(n->client, n->dip) ? CLIENT_HERE : CLIENT_AWAY;
	if (way_to(skb, n->dip, a->inner.dst) != skb->ifindex)
		return CLIENT_AWAY;
	return served(skb, n, client) ? CLIENT_BESIDE : CLIENT_HERE;
}

/* Replaces one address of a packet whose ports are as they should be. Returns 0, or a negative number when the kernel refuses. Global, so that
 * the verifier looks at it once. */
__noinline int hairpin_replace(struct __sk_buff *skb, const struct ip_view *v, const struct transport_view *t, const struct nat *n)
{
	struct transport_view done = {};

	if (!v || !t || !n)
		return -1;
	done.offset = t->offset;
	done.csum_offset = t->csum_offset;
	return nat_apply(skb, v, &done, n, host_ipv6_csum_flag);
}

/* Makes the VIP that a packet was for its source. */
static __always_inline int hairpin_from_vip(struct __sk_buff *skb, const struct ip_view *v, const struct transport_view *t)
{
	struct nat n = {};

	view_copy16(n.addr, v->dst);
	return hairpin_replace(skb, v, t, &n);
}

/* Makes the client the destination of an answer that went to the VIP. */
static __always_inline int hairpin_to_client(struct __sk_buff *skb, const struct ip_view *v, const struct transport_view *t, const __u8 *client)
{
	struct nat n = { .dst = 1 };

	view_copy16(n.addr, client);
	return hairpin_replace(skb, v, t, &n);
}

/* Hands a frame that leaves by the uplink to this machine, as if it had come in there: the machine knows the way to the client, and expects packets
 * of the VIP by the uplink (rp_filter). Its source is the uplink's Ethernet address, which becomes its destination. */
static __always_inline int hairpin_turn(struct __sk_buff *skb, enum host_reason reason)
{
	__u8 own[ETH_ALEN];

	if (bpf_skb_load_bytes(skb, __builtin_offsetof(struct ethhdr, h_source), own, sizeof(own)) || bpf_skb_store_bytes(skb, 0, own, sizeof(own), 0))
		return drop(HOST_REASON_OUT_REWRITE_FAILED);
	count(HOST_REASON_CLIENT_HERE);
	count(reason);
	return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}
