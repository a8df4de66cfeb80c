/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of host.bpf.c: flows by their answers, and the client ports of those that collide. */

/* Is this the flow that `want` describes? */
static __always_inline int flow_same(const struct flow *f, const struct flow *want)
{
	return view_equal16(f->vip, want->vip) && f->vip_port_be == want->vip_port_be &&
	       f->client_port_be == want->client_port_be;
}

/* Keeps a flow with the binding that its packets come by now. */
static __always_inline void flow_follow(struct flow *f, const struct flow *want)
{
	if (f->binding != want->binding)
		f->binding = want->binding;
}

/* Makes `key` stand for `want`, or finds that it does. Returns 0, MAP_EXISTS (another's), or another negative error. */
static __always_inline int flow_take(const struct flow_key *key, const struct flow *want)
{
	struct flow *f = bpf_map_lookup_elem(&flows, key);
	int err;

	if (f && flow_same(f, want)) {
		flow_follow(f, want);
		return 0;
	}
	if (f)
		return MAP_EXISTS;
	err = bpf_map_update_elem(&flows, key, want, BPF_NOEXIST);
	if (err != MAP_EXISTS)
		return err;
	/* Another CPU was faster: with a packet of the same flow, or not. */
	f = bpf_map_lookup_elem(&flows, key);
	return f && flow_same(f, want) ? 0 : MAP_EXISTS;
}

/* Gives a flow whose tuple is another's a client port of its own, and remembers it. Sets key->client_port_be. Global, so
 * that the verifier looks at it once. */
__noinline int flow_substitute(struct flow_key *key, const struct flow *want)
{
	struct substitute_key sub = {};
	struct substitute chosen = {}, *known;

	if (!key || !want)
		return -1;
	sub.flow = *key;
	view_copy16(sub.vip, want->vip);
	sub.vip_port_be = want->vip_port_be;
	known = bpf_map_lookup_elem(&substitutes, &sub);
	if (known) {
		key->client_port_be = known->client_port_be;
		if (!flow_take(key, want))
			return 0;
	}
	for (__u32 i = 0; i < LIMIT_PORT_PROBES; i++) {
		key->client_port_be = chosen.client_port_be = nat_port(&sub, i);
		if (!flow_take(key, want))
			return bpf_map_update_elem(&substitutes, &sub, &chosen, BPF_ANY);
	}
	return MAP_EXISTS;
}

/* Finds or makes the state of the flow a packet belongs to; key->client_port_be becomes the port the server sees.
 * A flow that has a substitute port keeps it, also when its own tuple became free. Without ports there is no
 * substitute: then MAP_EXISTS says that the client speaks this protocol to the DIP by another VIP. */
static __always_inline int flow_enter(struct flow_key *key, const struct flow *want, int ports)
{
	struct flow *f = bpf_map_lookup_elem(&flows, key);
	struct substitute_key sub = {};
	int err;

	if (f && flow_same(f, want)) {
		flow_follow(f, want);
		return 0;
	}
	if (!ports)
		return flow_take(key, want);
	if (f)
		return flow_substitute(key, want);
	sub.flow = *key;
	view_copy16(sub.vip, want->vip);
	sub.vip_port_be = want->vip_port_be;
	if (bpf_map_lookup_elem(&substitutes, &sub))
		return flow_substitute(key, want);
	err = flow_take(key, want);
	return err == MAP_EXISTS ? flow_substitute(key, want) : err;
}

/* Finds the port that the server sees of a flow's client, without making one: key->client_port_be becomes it. Global, so
 * that the verifier looks at it once. */
__noinline int flow_known(struct flow_key *key, const struct flow *want)
{
	struct substitute_key sub = {};
	struct substitute *known;
	struct flow *f;

	if (!key || !want)
		return -1;
	f = bpf_map_lookup_elem(&flows, key);
	if (f && flow_same(f, want))
		return 0;
	sub.flow = *key;
	view_copy16(sub.vip, want->vip);
	sub.vip_port_be = want->vip_port_be;
	known = bpf_map_lookup_elem(&substitutes, &sub);
	if (!known)
		return -1;
	key->client_port_be = known->client_port_be;
	f = bpf_map_lookup_elem(&flows, key);
	return f && flow_same(f, want) ? 0 : -1;
}

/* The flow of a packet from client:cport to VIP:vport, as its server and as its client know it. */
static __always_inline void name_flow(struct flow_key *key, struct flow *want, const struct binding *b, __u8 protocol,
				      const __u8 *client, __be16 cport, const __u8 *vip, __be16 vport)
{
	view_copy16(key->dip, b->dip);
	view_copy16(key->client, client);
	key->dip_port_be = b->port_be ? b->port_be : vport;
	key->client_port_be = cport;
	key->protocol = protocol;
	view_copy16(want->vip, vip);
	want->vip_port_be = vport;
	want->client_port_be = cport;
	want->mss = b->mss;
	want->binding = b->index;
}

/* Does this host know the TCP flow of the packet that came by binding `b`? Makes none, and changes nothing. A binding that does
 * not rewrite has no flows here: 0. To be asked before the packet is out of its tunnel. */
static __always_inline int packet_known(struct arrival *a, const struct binding *b)
{
	if (!b->rewrite)
		return 0;
	__builtin_memset(&a->asked, 0, sizeof(a->asked));
	name_flow(&a->asked, &a->wanted, b, IPPROTO_TCP, a->inner.src, a->t.sport_be, a->inner.dst, a->t.dport_be);
	return !flow_known(&a->asked, &a->wanted);
}

/* A client that opens a connection to a DIP itself, past the VIP, gets its answers from the DIP: a flow of the same ports
 * that went by a VIP is over. Global, so that the verifier looks at it once. */
__noinline int flow_forget(const struct ip_view *v, const struct transport_view *t)
{
	struct flow_key key = {};

	if (!v || !t)
		return -1;
	view_copy16(key.dip, v->dst);
	view_copy16(key.client, v->src);
	key.dip_port_be = t->dport_be;
	key.client_port_be = t->sport_be;
	key.protocol = v->protocol;
	return bpf_map_delete_elem(&flows, &key);
}
