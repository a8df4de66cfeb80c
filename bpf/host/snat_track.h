/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of host.bpf.c: what packets say of a connection that a server here opened.
 *
 * It is trusted once its far end answers: of TCP once that acknowledges what the server sent, which who spoofs an address can guess with a
 * chance of 2^-16. A RST, or a FIN each way, makes it a closing one. In a record seq_out and ack_out are of the server, seq_in and ack_in
 * of the far end, as in flows of clients. */

/* Does a segment of the far end lie where the server expects the next one? Before the first one it has to answer what the server sent. */
static __always_inline int snat_expected(const struct flow_record *r, const struct transport_view *t)
{
	if (r->flags & FLOW_ACK_OUT)
		return t->seq - r->ack_out + TRACK_SLACK <= 2 * TRACK_SLACK;
	return t->bits & TCP_BIT_ACK && t->ack == r->seq_out;
}

/* The class of a TCP connection after a segment of its server that ends before `end`. */
static __always_inline __u32 snat_track_out(struct flow_record *r, const struct transport_view *t, __u32 end, __u32 class)
{
	__u16 flags = r->flags;

	if (t->bits & TCP_BIT_RST)
		return FLOW_CLASS_CLOSING;
	if (t->syn && !(t->bits & TCP_BIT_ACK)) {
		/* A new connection when the old one is over; else the far end tells whose it is. */
		if (class == FLOW_CLASS_TRUSTED)
			return class;
		r->seq_out = end;
		r->flags = FLOW_OPENED | FLOW_SEQ_OUT;
		return FLOW_CLASS_UNTRUSTED;
	}
	flags |= seq_move(&r->seq_out, end, flags, FLOW_SEQ_OUT);
	if (t->bits & TCP_BIT_ACK)
		flags |= seq_move(&r->ack_out, t->ack, flags, FLOW_ACK_OUT);
	if (t->bits & TCP_BIT_FIN) {
		flags |= FLOW_FIN_OUT;
		class = track_fin(flags, class);
	}
	if (flags != r->flags)
		r->flags = flags;
	return class;
}

/* The class of a TCP connection after a segment of its far end. */
static __always_inline __u32 snat_track_in(struct flow_record *r, const struct transport_view *t, __u32 end, __u32 class)
{
	__u16 flags = r->flags;

	if (t->bits & (TCP_BIT_FIN | TCP_BIT_RST) && snat_expected(r, t)) {
		if (t->bits & TCP_BIT_RST)
			return FLOW_CLASS_CLOSING;
		flags |= FLOW_FIN_IN;
		class = track_fin(flags, class);
	}
	if (!(t->bits & TCP_BIT_RST))
		flags |= seq_move(&r->seq_in, end, flags, FLOW_SEQ_IN);
	if (t->bits & TCP_BIT_ACK && flags & FLOW_SEQ_OUT && !seq_after(t->ack, r->seq_out)) {
		if (class == FLOW_CLASS_UNTRUSTED && r->seq_out - t->ack < TRACK_LAG)
			class = FLOW_CLASS_TRUSTED;
		flags |= seq_move(&r->ack_in, t->ack, flags, FLOW_ACK_IN);
	}
	if (flags != r->flags)
		r->flags = flags;
	return class;
}

/* Keeps what leads back to a connection as long as the connection: a->flow had a packet that leaves it in a class. One that lost its place is
 * made again; where another connection has it, this one is over. */
__noinline int snat_keep(struct arrival *a, __u32 class)
{
	struct flow_spare *s;
	struct flow_record *back;
	__u32 place;

	if (!a || !snat_back_name(a, &a->flow.record))
		return 0;
	s = &a->spare;
	snat_back_record(&s->record, &a->flow.record);
	if (!flow_find(&s->name, &s->found)) {
		if (flow_begin(&s->name, &s->record, flow_idle(HOST_SNAT_BINDING, a->flow.record.scope, class), &s->found) == FLOW_FULL)
			return 0;
	}
	if (!snat_leads(&s->found.record, &a->flow.record)) {
		flow_untag(a->flow.place, a->flow.tag);
		return 0;
	}
	place = s->found.place;
	back = bpf_map_lookup_elem(&flow_records, &place);
	if (back)
		flow_touch(place, s->found.tag, back, class);
	return 0;
}

/* A packet of the server leaves on the connection that the scratch has. */
__noinline int snat_left(const struct ip_view *v, const struct transport_view *t)
{
	struct flow_record *r;
	struct arrival *a;
	__u32 class, place = 0;

	a = bpf_map_lookup_elem(&arrivals, &place);
	if (!a || !v || !t)
		return 0;
	place = a->flow.place;
	class = tag_class(a->flow.tag);
	r = bpf_map_lookup_elem(&flow_records, &place);
	if (!r)
		return 0;
	if (v->protocol == IPPROTO_TCP)
		class = snat_track_out(r, t, track_end(v, t), class);
	if (flow_touch(place, a->flow.tag, r, class))
		snat_keep(a, class);
	return 0;
}

/* A packet of the far end came for the connection a->flow, to which a->spare.found led. */
__noinline int snat_came(struct arrival *a)
{
	struct flow_record *r, *back;
	__u32 class, place;

	if (!a)
		return 0;
	place = a->flow.place;
	class = tag_class(a->flow.tag);
	r = bpf_map_lookup_elem(&flow_records, &place);
	if (!r)
		return 0;
	if (a->inner.protocol == IPPROTO_TCP)
		class = snat_track_in(r, &a->t, track_end(&a->inner, &a->t), class);
	else
		class = FLOW_CLASS_TRUSTED;
	flow_touch(place, a->flow.tag, r, class);
	place = a->spare.found.place;
	back = bpf_map_lookup_elem(&flow_records, &place);
	if (back)
		flow_touch(place, a->spare.found.tag, back, class);
	return 0;
}
