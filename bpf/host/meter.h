/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of host.bpf.c: what servers get and send, and how many connections they have. */

/* Counts a packet of `length` bytes, of which headers are these, for the server of this number. The kernel gives us several segments of a
 * flow as one (GRO, GSO), whose headers are there once. */
static __always_inline void meter(const struct __sk_buff *skb, __u32 server, enum meter_direction way, __u32 length, __u32 headers)
{
	struct server_meter *m = bpf_map_lookup_elem(&server_meters, &server);
	__u32 size = skb->gso_size, more = 0;

	if (!m)
		return;
	if (size && length > headers + size)
		more = (length - headers - 1) / size;
	m->of[way].packets += 1 + more;
	m->of[way].bytes += length + more * headers;
}

/* Counts the packet of an arrival before it is taken out of its tunnel, for a binding and a server. Not inlined, as what follows: those
 * who call it have no stack to spare. */
static __noinline void count_arrival_of(const struct __sk_buff *skb, const struct arrival *a, __u32 binding, __u32 server)
{
	__u32 length = a->inner.end - a->outer.payload;

	count_packet(&binding_counts, binding, length);
	meter(skb, server, METER_IN, length, a->inner.payload - a->outer.payload + a->t.header_len);
}

/* As count_arrival_of, for the server of the binding. */
static __noinline void count_arrival(const struct __sk_buff *skb, const struct arrival *a, __u32 binding)
{
	const struct binding_flow *b = bpf_map_lookup_elem(&binding_flows, &binding);

	count_arrival_of(skb, a, binding, b ? b->dip : 0);
}

/* Counts a packet that a server sent to a client. */
static __always_inline void meter_out(const struct __sk_buff *skb, const struct ip_view *v, const struct transport_view *t, __u32 server)
{
	meter(skb, server, METER_OUT, v->end - ETH_HLEN, v->payload - ETH_HLEN + t->header_len);
}

/* Counts a flow that began. */
static __always_inline void meter_begun(const struct flow_record *r)
{
	__u32 server = r->dip;
	struct server_meter *m = bpf_map_lookup_elem(&server_meters, &server);

	if (!m)
		return;
	/* Others lead to a flow that is counted. */
	if (r->kind == FLOW_INBOUND || r->kind == FLOW_HAIRPIN)
		m->of[METER_IN].flows++;
	else if (r->kind == FLOW_SNAT)
		m->of[METER_OUT].flows++;
}

/* What the binding of a record counts of established flows, 0 when it is another server's by now, or the flow is none of a client's. */
static __always_inline struct flow_count *flow_count_of(const struct flow_record *r)
{
	__u32 binding = r->binding;
	const struct binding_flow *b;

	if (r->kind != FLOW_INBOUND && r->kind != FLOW_HAIRPIN)
		return 0;
	b = bpf_map_lookup_elem(&binding_flows, &binding);
	if (!b || b->dip != r->dip)
		return 0;
	return bpf_map_lookup_elem(&flow_counts, &binding);
}

/* Notes that a flow's class is another now: whoever changed its tag says it, once. Not a function: its frame would be one too many. */
static __always_inline void flow_turned(const struct flow_record *r, __u32 was, __u32 is)
{
	struct flow_count *c;

	if ((was == FLOW_CLASS_TRUSTED) == (is == FLOW_CLASS_TRUSTED))
		return;
	c = flow_count_of(r);
	if (c)
		__sync_fetch_and_add(is == FLOW_CLASS_TRUSTED ? &c->opened : &c->closed, 1);
}
