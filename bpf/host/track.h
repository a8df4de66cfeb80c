/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of host.bpf.c: what a flow's packets say of it.
 *
 * A flow is trusted once both ends are known to be there. TCP that began with a SYN: the client acknowledges what the server sent, which
 * who spoofs its address can guess with a chance of 2^-28. TCP that was met half way: the server answers with something other than a RST. All else:
 * the server answers. A RST, or a FIN each way, makes it a closing one.
 *
 * Anybody can send segments in a client's name. They change a record only as far as the server's kernel would accept them (RFC 9293 section
 * 3.10.7.4, RFC 5961 sections 3 to 5): a RST with exactly the next number, a FIN or an acknowledgement within the windows, and a SYN never, as the
 * server's SYN-ACK shows whether it begins a connection. */

enum track_limit {
	/* Bytes that an acknowledgement may lag for its flow to become trusted. */
	TRACK_LAG = 1 << 16,
	/* Bytes past what the receiver acknowledged that a segment may begin at, and that an acknowledgement may be old. */
	TRACK_WINDOW = 1 << 20,
	/* Bytes that may be under way in a connection that was met half way. */
	TRACK_UNDER_WAY = 1 << 26,
};

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

/* Would the server's kernel accept a segment of the far end, one that is neither a SYN nor a RST and ends before `end`? As long as nothing is known of the
 * server's numbers it may. */
static __always_inline int track_accepts(const struct flow_record *r, const struct transport_view *t, __u32 end)
{
	__u16 flags = r->flags;
	__u32 from;

	if (!(t->bits & TCP_BIT_ACK))
		return 0;
	if (flags & FLOW_ACK_OUT && (seq_after(r->ack_out, end) || seq_after(t->seq, r->ack_out + TRACK_WINDOW)))
		return 0;
	if (!(flags & FLOW_SEQ_OUT))
		return 1;
	if (flags & FLOW_ACK_IN)
		from = r->ack_in - TRACK_WINDOW;
	else
		from = r->seq_out - (flags & FLOW_OPENED ? TRACK_LAG : TRACK_UNDER_WAY);
	return seq_within(t->ack, from, r->seq_out);
}

/* track_resets returns 1 if a RST of the far end has the sequence number that the server's kernel expects next (RFC 5961 section 3): the server's last
 * acknowledgement, or the end of the data sent to it since. While the server has acknowledged nothing, it is the end of the far end's known data. */
static __always_inline int track_resets(const struct flow_record *r, const struct transport_view *t)
{
	if (r->flags & FLOW_ACK_OUT && t->seq == r->ack_out)
		return 1;
	return r->flags & FLOW_SEQ_IN ? t->seq == r->seq_in : !(r->flags & FLOW_ACK_OUT);
}

/* Notes the number after a FIN that the server cannot take yet. Returns the flag. */
static __always_inline __u16 track_late(__u32 place, __u32 end)
{
	struct flow_note *note = flow_note_at(place);

	if (!note)
		return 0;
	note->fin = end;
	*(volatile __u32 *)&note->fin_of = place + 1;
	return FLOW_FIN_LATE;
}

/* Did the server acknowledge the FIN of the flow at a place that was noted? */
static __always_inline int track_late_acked(__u32 place, __u32 ack)
{
	const struct flow_note *note = flow_note_at(place);

	return note && *(const volatile __u32 *)&note->fin_of == place + 1 && note->fin == ack;
}

/* The class of the TCP flow at a place after a segment of its far end that is not a SYN and ends before `end`. */
static __always_inline __u32 track_far(struct flow_record *r, const struct transport_view *t, __u32 end, __u32 place, __u32 class)
{
	__u16 flags = r->flags;

	if (t->bits & TCP_BIT_RST) {
		if (!track_resets(r, t))
			return class;
		if (!(flags & FLOW_SEQ_IN)) {
			r->seq_in = t->seq;
			r->flags = flags | FLOW_SEQ_IN;
		}
		return FLOW_CLASS_CLOSING;
	}
	if (!track_accepts(r, t, end))
		return class;
	if (t->bits & TCP_BIT_FIN && (!(flags & FLOW_ACK_OUT) || seq_after(end, r->ack_out))) {
		if (flags & FLOW_ACK_OUT && !seq_after(t->seq, r->seq_in))
			flags |= FLOW_FIN_IN;
		else
			flags |= track_late(place, end);
		class = track_fin(flags, class);
	}
	if (!(flags & FLOW_SEQ_IN) || !seq_after(t->seq, r->seq_in))
		flags |= seq_move(&r->seq_in, end, flags, FLOW_SEQ_IN);
	if (flags & FLOW_SEQ_OUT) {
		if (class == FLOW_CLASS_UNTRUSTED && r->seq_out - t->ack < TRACK_LAG)
			class = FLOW_CLASS_TRUSTED;
		flags |= seq_move(&r->ack_in, t->ack, flags, FLOW_ACK_IN);
	}
	if (flags != r->flags)
		r->flags = flags;
	return class;
}

/* The class of the TCP flow at a place after a segment of its client that ends before `end`. */
static __always_inline __u32 track_in(struct flow_record *r, const struct transport_view *t, __u32 end, __u32 place, __u32 class)
{
	if (!t->syn)
		return track_far(r, t, end, place, class);
	/* Once the server has answered, its SYN-ACK decides. */
	if (!(r->flags & FLOW_SEQ_OUT) && !(t->bits & TCP_BIT_RST)) {
		r->seq_in = end;
		r->flags = (r->flags & FLOW_BESIDE) | FLOW_OPENED | FLOW_SEQ_IN;
	}
	return class;
}

/* Is a RST of the server one that ends the flow? In answer to a segment that has no connection here it takes its number from that segment, whoever sent it
 * (RFC 9293 section 3.10.7): a number that its client expects shows that the flow's own connection is meant. */
static __always_inline int track_server_resets(const struct flow_record *r, const struct transport_view *t)
{
	__u32 from = r->flags & FLOW_ACK_IN ? r->ack_in : r->flags & FLOW_OPENED ? r->seq_out : r->seq_out - TRACK_WINDOW;

	return t->refusal || !(r->flags & FLOW_SEQ_OUT) || seq_within(t->seq, from, r->seq_out);
}

/* Notes what the server acknowledged, in a segment of the flow at a place. Returns the class. */
static __always_inline __u32 track_acked(struct flow_record *r, __u32 ack, __u32 place, __u32 class)
{
	__u16 flags = r->flags;

	/* The RST that the flow began with was not one that this server accepted. */
	if (class == FLOW_CLASS_CLOSING && (flags & (FLOW_ACK_OUT | FLOW_SEQ_IN)) == FLOW_SEQ_IN && ack != r->seq_in)
		class = FLOW_CLASS_UNTRUSTED;
	flags |= seq_move(&r->ack_out, ack, flags, FLOW_ACK_OUT);
	/* Also when a gap was closed, and when what the client sent was never accepted. */
	if (!(flags & FLOW_SEQ_IN) || r->seq_in - r->ack_out > TRACK_WINDOW)
		r->seq_in = r->ack_out;
	flags |= FLOW_SEQ_IN;
	if (flags & FLOW_FIN_LATE && track_late_acked(place, ack)) {
		flags = (flags & ~FLOW_FIN_LATE) | FLOW_FIN_IN;
		class = track_fin(flags, class);
	}
	if (flags != r->flags)
		r->flags = flags;
	return class;
}

/* The class of a flow after a SYN of its server: a connection begins, unless it is sent again. */
static __always_inline __u32 track_begins(struct flow_record *r, const struct transport_view *t, __u32 end, __u32 class)
{
	__u16 known = FLOW_SEQ_OUT | FLOW_ACK_OUT;

	if ((r->flags & known) == known && r->seq_out == end && r->ack_out == t->ack)
		return class;
	r->seq_out = end;
	if (t->bits & TCP_BIT_ACK) {
		r->seq_in = t->ack;
		r->ack_out = t->ack;
		r->flags = (r->flags & FLOW_BESIDE) | FLOW_OPENED | FLOW_SEQ_OUT | FLOW_ACK_OUT | FLOW_SEQ_IN;
	} else {
		r->flags = (r->flags & FLOW_BESIDE) | FLOW_OPENED | FLOW_SEQ_OUT;
	}
	return FLOW_CLASS_UNTRUSTED;
}

/* The class of the TCP flow at a place after a segment of its server that ends before `end`. */
static __always_inline __u32 track_out(struct flow_record *r, const struct transport_view *t, __u32 end, __u32 place, __u32 class)
{
	__u16 flags;

	if (t->bits & TCP_BIT_RST)
		return track_server_resets(r, t) ? FLOW_CLASS_CLOSING : class;
	if (t->syn)
		return track_begins(r, t, end, class);
	/* With SYN cookies the client may have accepted an earlier SYN-ACK than the last one: the server shows which. */
	if (class == FLOW_CLASS_UNTRUSTED && r->flags & FLOW_SEQ_OUT && t->seq - r->seq_out + TRACK_WINDOW > 2 * TRACK_WINDOW)
		r->flags &= ~(FLOW_SEQ_OUT | FLOW_ACK_OUT | FLOW_ACK_IN | FLOW_SEQ_IN);
	if (t->bits & TCP_BIT_ACK)
		class = track_acked(r, t->ack, place, class);
	flags = r->flags;
	flags |= seq_move(&r->seq_out, end, flags, FLOW_SEQ_OUT);
	if (class == FLOW_CLASS_UNTRUSTED && !(flags & FLOW_OPENED))
		class = FLOW_CLASS_TRUSTED;
	if (t->bits & TCP_BIT_FIN) {
		flags |= FLOW_FIN_OUT;
		class = track_fin(flags, class);
	}
	if (flags != r->flags)
		r->flags = flags;
	return class;
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
		class = track_in(r, t, track_end(v, t), place, class);
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
		class = track_out(r, t, track_end(v, t), place, class);
	else
		class = FLOW_CLASS_TRUSTED;
	flow_touch(place, f->tag, r, class);
	return 0;
}

/* Can the server have sent a segment with this number that its client has not acknowledged? RFC 5927 section 4.1, and the number after all
 * that it sent, which segments without data have. */
static __always_inline int seq_under_way(const struct flow_record *r, __u32 seq)
{
	if (!(r->flags & FLOW_SEQ_OUT))
		return 0;
	return seq_within(seq, r->flags & FLOW_ACK_IN ? r->ack_in : r->seq_out - TRACK_WINDOW, r->seq_out);
}
