/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of host.bpf.c: flows as their clients know them, and the client ports of those that collide.
 *
 * Two VIPs may lead to one DIP and port: a client that speaks to both by one port has two flows that the server cannot tell apart. The
 * second one gets another client port, and an alias leads from the client's own words to it.
 *
 * A client on the server's own machine, the server itself included, gets answers that would not leave by the uplink, where they are
 * translated. Those that pass another device of servers are translated there (host/beside.h); else its server knows the VIP as the client, so
 * that answers do leave (host/hairpin.h). All such clients share the ports of the VIP. */

/* The flow of a packet from client:cport to VIP:vport, as its server and as its client know it; 0 when the binding's part in it is not
 * known. */
static __always_inline int name_flow(struct flow_name *n, struct flow_record *want, const struct binding *b, __u8 protocol,
				     const __u8 *client, __be16 cport, __be16 vport)
{
	__u32 index = b->index;
	const struct binding_flow *own = bpf_map_lookup_elem(&binding_flows, &index);

	if (!own)
		return 0;
	view_copy16(n->dip, b->dip);
	view_copy16(n->client, client);
	n->dip_port_be = b->port_be ? b->port_be : vport;
	n->peer_port_be = cport;
	n->scope = flow_scope(0, protocol);
	n->kind = FLOW_INBOUND;
	__builtin_memset(want, 0, sizeof(*want));
	view_copy16(want->client, client);
	want->dip = own->dip;
	want->vip = own->vip;
	want->dip_port_be = n->dip_port_be;
	want->peer_port_be = cport;
	want->vip_port_be = vport;
	want->client_port_be = cport;
	want->scope = n->scope;
	want->kind = FLOW_INBOUND;
	want->mss = b->mss;
	want->binding = index;
	return 1;
}

/* Makes the flow that name_flow named one of a client on this machine. */
static __always_inline void name_hairpin(struct flow_name *n, struct flow_record *want, const __u8 *vip)
{
	view_copy16(n->client, vip);
	want->kind = FLOW_HAIRPIN;
}

/* Makes the flow one of a client on this machine that its server knows by its own address. */
static __always_inline void name_beside(struct flow_name *n, struct flow_record *want)
{
	view_copy16(n->client, want->client);
	want->kind = FLOW_INBOUND;
	want->flags = FLOW_BESIDE;
	host_flows_beside = 1;
}

/* Would the flow's answers look like packets of its server, as a client with its server's port, to the VIP? */
static __always_inline int hairpin_alike(const struct flow_record *want)
{
	return want->kind == FLOW_HAIRPIN && want->peer_port_be == want->vip_port_be;
}

/* Is this record that of the flow that `want` describes? */
static __always_inline int flow_same(const struct flow_record *r, const struct flow_record *want)
{
	const __u32 *x = (const __u32 *)r->client, *y = (const __u32 *)want->client;

	/* One branch: the verifier takes every one again for each port that is tried. */
	return !((r->vip ^ want->vip) | (r->vip_port_be ^ want->vip_port_be) | (r->client_port_be ^ want->client_port_be) |
		 (r->kind ^ want->kind) | (x[0] ^ y[0]) | (x[1] ^ y[1]) | (x[2] ^ y[2]) | (x[3] ^ y[3]));
}

/* May there be aliases at all? */
static __always_inline int aliases_possible(void)
{
	__u32 zero = 0;
	const struct flow_setup *s = bpf_map_lookup_elem(&flow_setups, &zero);

	return s && *(volatile __u64 *)&s->aliases;
}

/* The name of the alias of a flow. */
static __always_inline int alias_name(struct flow_name *n, const struct flow_record *want)
{
	const __u8 *vip = bpf_map_lookup_elem(&flow_addrs, &want->vip);

	if (!vip)
		return 0;
	view_copy16(n->dip, vip);
	view_copy16(n->client, want->client);
	n->scope = want->scope;
	n->dip_port_be = want->vip_port_be;
	n->peer_port_be = want->client_port_be;
	n->kind = FLOW_ALIAS;
	return 1;
}

/* Follows a flow's alias: n->peer_port_be becomes the port that the server sees. */
__noinline int client_follow(struct flow_name *n, const struct flow_record *want, struct flow_found *f)
{
	struct flow_name alias = {};
	__be16 own;
	__u64 tag;
	__u32 place;

	if (!n || !want || !f || !alias_name(&alias, want) || !flow_find(&alias, f))
		return 0;
	if (f->record.vip != want->dip || f->record.vip_port_be != want->dip_port_be)
		return 0;
	tag = f->tag;
	place = f->place;
	own = n->peer_port_be;
	n->peer_port_be = f->record.client_port_be;
	if (flow_find(n, f) && flow_same(&f->record, want)) {
		f->alias_tag = tag;
		f->alias_place = place;
		return 1;
	}
	n->peer_port_be = own;
	return 0;
}

/* Finds the flow of a client, without making one: 1, else 0. n->peer_port_be becomes the port that the server sees. */
static __always_inline int client_find(struct flow_name *n, const struct flow_record *want, struct flow_found *f, int ports)
{
	if (flow_find(n, f) && flow_same(&f->record, want))
		return 1;
	return ports && aliases_possible() && client_follow(n, want, f);
}

/* Makes the alias of a flow that got another port. Without room for it there is none: then the ports are tried anew. */
__noinline int client_alias(const struct flow_record *want, __u32 idle, struct flow_spare *s)
{
	__u32 zero = 0;
	struct flow_setup *setup = bpf_map_lookup_elem(&flow_setups, &zero);

	if (!want || !s || !setup || !alias_name(&s->name, want))
		return 0;
	*(volatile __u64 *)&setup->aliases = 1;
	s->record = *want;
	s->record.kind = FLOW_ALIAS;
	s->record.dip = want->vip;
	s->record.dip_port_be = want->vip_port_be;
	s->record.peer_port_be = want->client_port_be;
	s->record.vip = want->dip;
	s->record.vip_port_be = want->dip_port_be;
	s->record.client_port_be = want->peer_port_be;
	if (flow_begin(&s->name, &s->record, idle, &s->found) != FLOW_THERE || flow_same(&s->found.record, &s->record))
		return 0;
	/* It led to a flow that is over. */
	flow_untag(s->found.place, s->found.tag);
	flow_begin(&s->name, &s->record, idle, &s->found);
	return 0;
}

/* Gives a flow whose tuple is another's a client port of its own. */
__noinline int client_substitute(struct flow_name *n, struct flow_record *want, __u32 idle, struct flow_found *f)
{
	struct substitute_key sub = {};

	if (!n || !want || !f)
		return FLOW_FULL;
	view_copy16(sub.client, want->client);
	view_copy16(sub.dip, n->dip);
	sub.scope = n->scope;
	sub.vip_port_be = want->vip_port_be;
	sub.dip_port_be = want->dip_port_be;
	sub.client_port_be = want->client_port_be;
	/* The number of the VIP's address stands for it. */
	*(__u32 *)sub.vip = want->vip;
	for (__u32 i = 0; i < LIMIT_PORT_PROBES; i++) {
		int r;

		n->peer_port_be = want->peer_port_be = nat_port(&sub, i);
		r = flow_begin(n, want, idle, f);
		if (r != FLOW_THERE || flow_same(&f->record, want))
			return r == FLOW_FULL ? FLOW_FULL : FLOW_BEGUN;
	}
	return FLOW_THERE;
}

/* Begins the flow of a client to a VIP that is not known. n->peer_port_be becomes the port that the server sees. FLOW_THERE: it is
 * another's, and no substitute was free; without ports there is none. `spare` is written over. */
static __always_inline int client_begin(struct flow_name *n, struct flow_record *want, const __u8 *vip, struct flow_found *f,
					struct flow_spare *spare, int ports)
{
	const __u8 *addr = bpf_map_lookup_elem(&flow_addrs, &want->vip);
	__u32 idle = flow_idle(want->binding, want->scope, FLOW_CLASS_UNTRUSTED);
	int r;

	/* The agent gave the binding's number to another one while this packet was under way. */
	if (!addr || !view_equal16(addr, vip))
		return FLOW_FULL;
	if (!hairpin_alike(want)) {
		r = flow_begin(n, want, idle, f);
		if (r != FLOW_THERE || flow_same(&f->record, want))
			return r == FLOW_FULL ? FLOW_FULL : FLOW_BEGUN;
	}
	if (!ports)
		return FLOW_THERE;
	r = client_substitute(n, want, idle, f);
	if (r == FLOW_BEGUN)
		client_alias(want, idle, spare);
	return r;
}

/* Keeps the alias of a flow that goes by a substitute as long as the flow, also when only its server sends. */
__noinline int client_keep(const struct flow_found *f, struct flow_spare *s)
{
	struct flow_record *alias;
	__u32 place;

	if (!f || !s || !alias_name(&s->name, &f->record) || !flow_find(&s->name, &s->found))
		return 0;
	if (s->found.record.vip != f->record.dip || s->found.record.vip_port_be != f->record.dip_port_be)
		return 0;
	place = s->found.place;
	alias = bpf_map_lookup_elem(&flow_records, &place);
	if (alias)
		flow_touch(place, s->found.tag, alias, tag_class(f->tag));
	return 0;
}
