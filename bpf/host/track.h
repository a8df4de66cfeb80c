/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of host.bpf.c: what a flow's packets say of it.
 *
 * A flow is trusted once both ends are known to be there. TCP that began with a SYN: the client acknowledges what the server sent, which
 * who spoofs its address can guess with a chance of 2^-16; TCP that was met half way: the server answers with something other than a RST. All else:
 * the server answers. A RST, or a FIN each way, makes it a closing one. */

enum track_limit {
	/* Bytes that an acknowledgement may lag for its flow to become trusted. */
	TRACK_LAG = 1 << 16,
	/* Bytes around what the server expects in which a client's FIN and RST count. */
	TRACK_SLACK = 1 << 20,
};

/* Is a sequence number behind another (RFC 9293 section 3.4)? */
static __always_inline int seq_after(__u32 a, __u32 b)
{
	return (__s32)(a - b) > 0;
}

/* Moves a number forward, or sets it when it was not known. Returns the flag. */
static __always_inline __u16 seq_move(__u32 *known, __u32 now, __u16 flags, __u16 flag)
{
	if (!(flags & flag) || seq_after(now, *known))
		*known = now;
	return flag;
}

/* The class after a FIN that one side sent. */
static __always_inline __u32 track_fin(__u16 flags, __u32 class)
{
	return flags & FLOW_FIN_IN && flags & FLOW_FIN_OUT ? FLOW_CLASS_CLOSING : class;
}

/* The class of a TCP flow after a segment of its client that ends before `end`. */
static __always_inline __u32 track_in(struct flow_record *r, const struct transport_view *t, __u32 end, __u32 class)
{
	__u16 flags = r->flags;

	if (t->syn) {
		/* A new connection when the old one is over; else the server tells whose it is. */
		if (class == FLOW_CLASS_CLOSING)
			class = FLOW_CLASS_UNTRUSTED;
		if (class == FLOW_CLASS_UNTRUSTED) {
			flags = (flags & FLOW_BESIDE) | FLOW_OPENED | FLOW_SEQ_IN;
			r->seq_in = end;
		}
		r->flags = flags;
		return class;
	}
	if (t->bits & (TCP_BIT_FIN | TCP_BIT_RST) &&
	    (!(flags & FLOW_ACK_OUT) || t->seq - r->ack_out + TRACK_SLACK <= 2 * TRACK_SLACK)) {
		if (t->bits & TCP_BIT_RST)
			class = FLOW_CLASS_CLOSING;
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

/* The class of a TCP flow after a segment of its server. */
static __always_inline __u32 track_out(struct flow_record *r, const struct transport_view *t, __u32 end, __u32 class)
{
	__u16 flags = r->flags;

	if (t->bits & TCP_BIT_RST)
		return FLOW_CLASS_CLOSING;
	if (t->syn) {
		/* What the server had to say before was of another connection. */
		flags = (flags & ~(FLOW_ACK_IN | FLOW_FIN_IN | FLOW_FIN_OUT)) | FLOW_SEQ_OUT | FLOW_ACK_OUT | FLOW_SEQ_IN;
		r->seq_out = end;
		r->seq_in = t->ack;
		r->ack_out = t->ack;
	} else {
		flags |= seq_move(&r->seq_out, end, flags, FLOW_SEQ_OUT);
		flags |= seq_move(&r->ack_out, t->ack, flags, FLOW_ACK_OUT);
		if (class == FLOW_CLASS_UNTRUSTED && !(flags & FLOW_OPENED))
			class = FLOW_CLASS_TRUSTED;
	}
	if (t->bits & TCP_BIT_FIN) {
		flags |= FLOW_FIN_OUT;
		class = track_fin(flags, class);
	}
	if (flags != r->flags)
		r->flags = flags;
	return class;
}

/* The number of the byte after a segment. */
static __always_inline __u32 track_end(const struct ip_view *v, const struct transport_view *t)
{
	return t->seq + (v->end - v->payload - t->header_len) + !!(t->bits & TCP_BIT_SYN) + !!(t->bits & TCP_BIT_FIN);
}

/* A packet of a client came for the flow by this binding. */
__noinline int flow_came(const struct flow_found *f, const struct ip_view *v, const struct transport_view *t, __u32 binding)
{
	struct flow_record *r, *alias;
	__u32 class, place;

	if (!f || !v || !t)
		return 0;
	place = f->place;
	class = tag_class(f->tag);
	r = bpf_map_lookup_elem(&flow_records, &place);
	if (!r)
		return 0;
	if (r->binding != binding) {
		flow_turned(r, class, FLOW_CLASS_EMPTY);
		r->binding = binding;
		flow_turned(r, FLOW_CLASS_EMPTY, class);
	}
	if (v->protocol == IPPROTO_TCP)
		class = track_in(r, t, track_end(v, t), class);
	flow_touch(place, f->tag, r, class);
	if (!f->alias_tag)
		return 0;
	place = f->alias_place;
	alias = bpf_map_lookup_elem(&flow_records, &place);
	if (alias)
		flow_touch(place, f->alias_tag, alias, class);
	return 0;
}

/* A packet of a server left for the flow's client. */
__noinline int flow_left(const struct flow_found *f, const struct ip_view *v, const struct transport_view *t)
{
	struct flow_record *r;
	__u32 class, place;

	if (!f || !v || !t)
		return 0;
	place = f->place;
	class = tag_class(f->tag);
	r = bpf_map_lookup_elem(&flow_records, &place);
	if (!r)
		return 0;
	if (v->protocol == IPPROTO_TCP)
		class = track_out(r, t, track_end(v, t), class);
	else
		class = FLOW_CLASS_TRUSTED;
	flow_touch(place, f->tag, r, class);
	return 0;
}

/* Can the server have sent a segment with this number that its client has not acknowledged? RFC 5927 section 4.1, and the number after all
 * that it sent, which segments without data have. */
static __always_inline int seq_under_way(const struct flow_record *r, __u32 seq)
{
	if (!(r->flags & FLOW_SEQ_OUT) || seq_after(seq, r->seq_out))
		return 0;
	return !(r->flags & FLOW_ACK_IN) || !seq_after(r->ack_in, seq);
}
