/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of host.bpf.c: what packets say of a connection that a server here opened.
 *
 * It is trusted once its far end answers: of TCP once that acknowledges what the server sent, which who spoofs an address can guess with a
 * chance of 2^-16. A RST, or a FIN each way, makes it a closing one. In a record seq_out and ack_out are of the server, seq_in and ack_in
 * of the far end, as in flows of clients, and segments of the far end change it under the same conditions (host/track.h). */

/* Does a segment of the far end answer the server's SYN? */
static __always_inline int snat_answers(const struct flow_record *r, const struct transport_view *t)
{
	return t->bits & TCP_BIT_ACK && r->flags & FLOW_SEQ_OUT && r->seq_out - t->ack < TRACK_LAG;
}

/* The class of the TCP connection at a place after a segment of its server that ends before `end`. */
static __always_inline __u32 snat_track_out(struct flow_record *r, const struct transport_view *t, __u32 end, __u32 place, __u32 class)
{
	__u16 flags;

	/* In SYN-SENT the server answers a forged acknowledgement with a RST of its number, and goes on (RFC 9293 section 3.10.7.3). */
	if (t->bits & TCP_BIT_RST)
		return t->bits & TCP_BIT_ACK || r->flags & FLOW_ACK_OUT || r->seq_out == end ? FLOW_CLASS_CLOSING : class;
	if (t->syn && !(t->bits & TCP_BIT_ACK)) {
		/* The server's own word, whose kernel knows that the connection before is over. */
		if (r->flags & FLOW_SEQ_OUT && (r->flags & FLOW_ACK_OUT ? r->seq_out - end < TRACK_LAG : r->seq_out == end) && class != FLOW_CLASS_CLOSING)
			return class;
		r->seq_out = end;
		r->flags = FLOW_OPENED | FLOW_SEQ_OUT;
		return FLOW_CLASS_UNTRUSTED;
	}
	if (t->bits & TCP_BIT_ACK)
		class = track_acked(r, t->ack, place, class);
	flags = r->flags;
	flags |= seq_move(&r->seq_out, end, flags, FLOW_SEQ_OUT);
	if (t->bits & TCP_BIT_FIN) {
		flags |= FLOW_FIN_OUT;
		class = track_fin(flags, class);
	}
	if (flags != r->flags)
		r->flags = flags;
	return class;
}

/* The class of the TCP connection at a place after a segment of its far end that ends before `end`. Before the server has acknowledged anything only
 * an answer to its SYN counts (RFC 9293 section 3.10.7.3). */
static __always_inline __u32 snat_track_in(struct flow_record *r, const struct transport_view *t, __u32 end, __u32 place, __u32 class)
{
	if (r->flags & FLOW_ACK_OUT)
		return t->syn ? class : track_far(r, t, end, place, class);
	if (t->bits & TCP_BIT_RST)
		return t->bits & TCP_BIT_ACK && t->ack == r->seq_out ? FLOW_CLASS_CLOSING : class;
	if (!t->syn || !snat_answers(r, t))
		return class;
	r->seq_in = end;
	r->ack_in = t->ack;
	r->flags |= FLOW_SEQ_IN | FLOW_ACK_IN;
	return class == FLOW_CLASS_UNTRUSTED ? FLOW_CLASS_TRUSTED : class;
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
		class = snat_track_out(r, t, track_end(v, t), place, class);
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
		class = snat_track_in(r, &a->t, track_end(&a->inner, &a->t), place, class);
	else
		class = FLOW_CLASS_TRUSTED;
	flow_touch(place, a->flow.tag, r, class);
	place = a->spare.found.place;
	back = bpf_map_lookup_elem(&flow_records, &place);
	if (back)
		flow_touch(place, a->spare.found.tag, back, class);
	return 0;
}
