/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of host.bpf.c: cookies in timestamps (protocol section 1.3).
 *
 * What a server says of the time becomes a stamp that names it to the muxes; what its client echoes becomes the server's own again. A SYN-ACK is stamped
 * whoever asked for it: what is noted of it lies beside its flow's record, and the flow has a clock once the client has echoed the stamp. A flow that
 * has one is stamped as long as it lives, whatever becomes of its binding: its client would take anything else for old. */

/* What is noted of what a segment's options become. */
static __always_inline void stamp_value(struct stamp *s, __u32 at, __u32 from, __u32 to)
{
	if (from == to)
		return;
	s->at = at;
	s->value = bpf_htonl(to);
	s->sum = timestamp_diff(bpf_htonl(from), s->value, at);
}

/* Writes it; the sum is for the one who writes the checksum. 0, or a negative number when the kernel refuses. */
static __always_inline int stamp_write(struct __sk_buff *skb, const struct transport_view *t, const struct stamp *s)
{
	if (s->at && bpf_skb_store_bytes(skb, t->offset + s->at, &s->value, sizeof(s->value), 0))
		return -1;
	if (s->mptcp)
		return bpf_skb_store_bytes(skb, t->offset + s->mptcp, &s->flags, sizeof(s->flags), 0);
	return 0;
}

/* What the binding of this index says of cookies: enum binding_cookie. */
static __always_inline __u32 binding_cookie(__u32 binding)
{
	const struct binding_flow *b = bpf_map_lookup_elem(&binding_flows, &binding);

	return b ? *(volatile __u32 *)&b->cookie : 0;
}

/* The keys of a binding that says this, if that of an id is live; 0: it is not. */
static __always_inline const struct host_cookie_keys *keys_of(__u32 own, __u32 kid)
{
	__u32 index = (own >> BINDING_COOKIE_MEMBER_BITS & ((1 << BINDING_COOKIE_KEYS_BITS) - 1)) - 1;
	const struct host_cookie_keys *k = own ? bpf_map_lookup_elem(&cookie_keys, &index) : 0;

	return k && *(volatile __u32 *)&k->use & (kid ? HOST_COOKIE_LIVE1 : HOST_COOKIE_LIVE0) ? k : 0;
}

/* The id of the key that stamps. */
static __always_inline __u32 cookie_mint(__u32 own)
{
	return own >> BINDING_COOKIE_MINT_SHIFT;
}

static __always_inline __u32 own_member(__u32 own)
{
	return (own & ((1 << BINDING_COOKIE_MEMBER_BITS) - 1)) |
	       (own >> BINDING_COOKIE_UPPER_SHIFT & ((1 << BINDING_COOKIE_UPPER_BITS) - 1)) << BINDING_COOKIE_MEMBER_BITS;
}

/* The cookie_secret of a key of a VIP, 0 where member ids are in order. */
static __always_inline __u64 keys_secret(const struct host_cookie_keys *k, __u32 kid)
{
	struct siphash_key key = { k->keys[kid & 1][0], k->keys[kid & 1][1] };

	return *(volatile __u32 *)&k->use & (kid ? HOST_COOKIE_SHUFFLED1 : HOST_COOKIE_SHUFFLED0) ? cookie_secret(&key) : 0;
}

/* The hash of a flow that its cookies are made with: of the client and the VIP as `n` has it in the place of the DIP. Global, so that the verifier looks
 * at it once. */
__noinline __u64 cookie_hash(const struct flow_name *n, const struct host_cookie_keys *k, __u32 kid)
{
	const __u32 *vip;
	struct siphash_key key;

	if (!n || !k)
		return 0;
	key.k0 = k->keys[kid & 1][0];
	key.k1 = k->keys[kid & 1][1];
	vip = (const __u32 *)n->dip;
	if (!vip[0] && !vip[1] && vip[2] == bpf_htonl(0xffff))
		return cookie_prf4(&key, bpf_ntohl(((const __u32 *)n->client)[3]), bpf_ntohs(n->peer_port_be), bpf_ntohs(n->dip_port_be));
	return cookie_prf6(&key, flow_half(n->client), flow_half(n->client + 8), bpf_ntohs(n->peer_port_be), bpf_ntohs(n->dip_port_be));
}

/* The cookie that a flow of this name should have, COOKIE_NONE without a key. */
static __always_inline __u32 cookie_make(const struct flow_name *n, __u32 own)
{
	__u32 kid = cookie_mint(own);
	const struct host_cookie_keys *k = keys_of(own, kid);

	return k ? cookie_encode(cookie_hash(n, k, kid), kid, own_member(own), keys_secret(k, kid)) : COOKIE_NONE;
}

/* The member that a flow's cookie names, COOKIE_NONE when it is none by a key that is live. */
static __always_inline __u32 cookie_member(const struct flow_name *n, __u32 own, __u32 cookie)
{
	__u32 kid = cookie_kid(cookie);
	const struct host_cookie_keys *k = cookie >> 16 ? 0 : keys_of(own, kid);

	return k ? cookie_decode(cookie_hash(n, k, kid), cookie, keys_secret(k, kid)) : COOKIE_NONE;
}

/* The member that a timestamp from the clock of a server that owns the VIP names (form CO), COOKIE_NONE as above. */
static __always_inline __u32 cookie_owned(const struct flow_name *n, __u32 own, __u32 stamp)
{
	__u32 cookie = co_cookie(stamp, (host_now() + host_ahead) / 1000000), kid = short_cookie_kid(cookie);
	const struct host_cookie_keys *k = keys_of(own, kid);

	return k ? short_cookie_decode(cookie_hash(n, k, kid), cookie, keys_secret(k, kid)) : COOKIE_NONE;
}

/* ---- the clock */

static __always_inline __u32 flow_generation(__u64 tag)
{
	return tag >> FLOW_TAG_GENERATION_SHIFT & 0xff;
}

/* Copies the clock of a flow, an empty one if it is another's. 0: another CPU changes it. */
static __always_inline int clock_load(const struct evc *at, __u32 generation, struct evc *e)
{
	e->lock = *(const volatile __u32 *)&at->lock;
	asm volatile("" ::: "memory");
	e->word = at->word;
	e->off = at->off;
	e->off_prev = at->off_prev;
	e->v_sw = at->v_sw;
	e->v_sw_prev = at->v_sw_prev;
	e->v_echo = *(const volatile __u32 *)&at->v_echo;
	e->v_last = *(const volatile __u32 *)&at->v_last;
	asm volatile("" ::: "memory");
	if ((e->word >> EVC_GENERATION_SHIFT & 0xff) != generation)
		e->word = 0;
	return !(e->lock & 1) && *(const volatile __u32 *)&at->lock == e->lock;
}

/* Moves v_last forward. */
static __always_inline void clock_raise(struct evc *at, __u32 v)
{
#pragma unroll
	for (int i = 0; i < 4; i++) {
		__u32 was = *(volatile __u32 *)&at->v_last;

		if (!evc_after(v, was) || __sync_val_compare_and_swap(&at->v_last, was, v) == was)
			return;
	}
}

/* Makes the clock that `e` was copied of what e is now. 0: another CPU changed it. */
static __always_inline int clock_store(struct evc *at, const struct evc *e)
{
	__u32 before = (e->lock & 0xffff) | (*(volatile __u32 *)&at->lock & 0xffff0000);

	if (e->lock & 1 || __sync_val_compare_and_swap(&at->lock, before, before | 1) != before) {
		count(HOST_REASON_COOKIE_CONTENDED);
		return 0;
	}
	at->off = e->off;
	at->off_prev = e->off_prev;
	at->v_sw = e->v_sw;
	at->v_sw_prev = e->v_sw_prev;
	at->v_echo = e->v_echo;
	if (evc_kind(e) == EVC_LIVE && evc_kind(at) == EVC_LIVE)
		clock_raise(at, e->v_last);
	else
		at->v_last = e->v_last;
	at->word = e->word;
	asm volatile("" ::: "memory");
	*(volatile __u32 *)&at->lock = (e->lock & 0xffff0000) | ((before + 2) & 0xffff);
	return 1;
}

/* Did anything change but the newest times? */
static __always_inline int clock_same(const struct evc *a, const struct evc *b)
{
	return !((a->word ^ b->word) | (a->off ^ b->off) | (a->v_sw ^ b->v_sw) | (a->off_prev ^ b->off_prev) | (a->v_sw_prev ^ b->v_sw_prev));
}

/* ---- out */

/* The name that a flow's cookies are made with, out of its record. */
static __always_inline int cookie_name_of(struct flow_name *n, const struct flow_record *r)
{
	const __u8 *vip = bpf_map_lookup_elem(&flow_addrs, &r->vip);

	if (!vip)
		return 0;
	view_copy16(n->dip, vip);
	view_copy16(n->client, r->client);
	n->dip_port_be = r->vip_port_be;
	n->peer_port_be = r->client_port_be;
	n->scope = r->scope;
	return 1;
}

/* Notes that a flow has a clock. */
static __always_inline void flow_stamped(__u32 place)
{
	struct flow_record *r = bpf_map_lookup_elem(&flow_records, &place);

	if (r)
		r->stamped = 1;
	if (!host_flows_stamped)
		host_flows_stamped = 1;
}

/* Stamps a SYN-ACK, and forbids its client to open more connections of MPTCP to the VIP: they would come to other servers (protocol section 1.5).
 * Global, so that the verifier looks at it once. */
__noinline int cookie_answer(struct __sk_buff *skb, const struct transport_view *t, struct arrival *a)
{
	const struct flow_record *r;
	__u32 own, cookie, place, to, generation;
	struct evc e, *at;

	if (!t || !a)
		return 0;
	r = &a->flow.record;
	own = binding_cookie(r->binding);
	if (!own || !timestamp_find(skb, t, &a->stamp.ts) || !cookie_name_of(&a->spare.name, r))
		return 0;
	cookie = cookie_make(&a->spare.name, own);
	place = a->flow.place;
	at = bpf_map_lookup_elem(&flow_cookies, &place);
	if (!at || cookie == COOKIE_NONE)
		return 0;
	generation = flow_generation(a->flow.tag);
	clock_load(at, generation, &e);
	to = evc_answer(&e, host_time_bits, a->stamp.ts.value, cookie, generation, r->flags & FLOW_SEQ_OUT && r->seq_out == t->seq + 1);
	clock_store(at, &e);
	flow_stamped(place);
	stamp_value(&a->stamp, a->stamp.ts.at, a->stamp.ts.value, to);
	if (a->stamp.ts.mptcp) {
		if (bpf_skb_load_bytes(skb, t->offset + a->stamp.ts.mptcp, &a->stamp.flags, 1) || a->stamp.flags & MPTCP_NO_JOIN)
			return 0;
		a->stamp.mptcp = a->stamp.ts.mptcp;
		a->stamp.flags |= MPTCP_NO_JOIN;
		a->stamp.sum = nat_sum(0, MPTCP_NO_JOIN << (a->stamp.mptcp & 1) * 8, a->stamp.sum);
	}
	return 0;
}

/* The stamp of a segment of a server whose clock, `at`, may not only go on. Global, so that the verifier looks at it once. */
__noinline int cookie_turn(struct arrival *a, __u32 own)
{
	__u32 place, want, made, to;
	struct evc *at, *was, *e;
	int whole;

	if (!a)
		return 0;
	place = a->flow.place;
	at = bpf_map_lookup_elem(&flow_cookies, &place);
	if (!at)
		return 0;
	was = &a->clock;
	e = &a->after;
	whole = clock_load(at, flow_generation(a->flow.tag), was);
	if (evc_kind(was) == EVC_EMPTY)
		return 0;
	*e = *was;
	want = evc_cookie(e);
	if (own && cookie_kid(want) != cookie_mint(own) && cookie_name_of(&a->spare.name, &a->flow.record)) {
		made = cookie_make(&a->spare.name, own);
		want = made == COOKIE_NONE ? want : made;
	}
	to = evc_stamp(e, host_time_bits, a->stamp.ts.value, want);
	if (whole && clock_same(was, e)) {
		clock_raise(at, e->v_last);
	} else if (!clock_store(at, e)) {
		/* The last time again is never too old nor too new. */
		to = evc_place(host_time_bits, *(volatile __u32 *)&at->v_last, evc_cookie(at));
	} else if (evc_cookie(was) != evc_cookie(e)) {
		count(HOST_REASON_COOKIE_REMINTED);
	}
	stamp_value(&a->stamp, a->stamp.ts.at, a->stamp.ts.value, to);
	return 0;
}

/* Stamps another segment of a server. Global, so that the verifier looks at it once. */
__noinline int cookie_out(struct __sk_buff *skb, const struct transport_view *t, struct arrival *a)
{
	__u32 place, own, lock, word, to, v;
	struct evc *at;

	if (!t || !a || !timestamp_read(skb, t, &a->stamp.ts))
		return 0;
	place = a->flow.place;
	own = binding_cookie(a->flow.record.binding);
	at = bpf_map_lookup_elem(&flow_cookies, &place);
	if (!at)
		return 0;
	lock = *(volatile __u32 *)&at->lock;
	asm volatile("" ::: "memory");
	word = at->word;
	if (lock & 1 || !evc_steady(word, flow_generation(a->flow.tag), EVC_MINTING) ||
	    (own && cookie_kid(word >> EVC_COOKIE_SHIFT) != cookie_mint(own)))
		return cookie_turn(a, own);
	to = evc_stamp_steady(at, word, host_time_bits, a->stamp.ts.value, &v);
	asm volatile("" ::: "memory");
	if (!to || *(volatile __u32 *)&at->lock != lock)
		return cookie_turn(a, own);
	clock_raise(at, v);
	stamp_value(&a->stamp, a->stamp.ts.at, a->stamp.ts.value, to);
	return 0;
}

/* What becomes of the timestamps of a packet of a server, into a->stamp. */
static __always_inline void stamp_out(struct __sk_buff *skb, const struct ip_view *v, const struct transport_view *t, struct arrival *a)
{
	a->stamp.at = a->stamp.sum = a->stamp.mptcp = 0;
	if (v->protocol != IPPROTO_TCP || v->fragment || !(t->bits & TCP_BIT_ACK))
		return;
	if (t->syn)
		cookie_answer(skb, t, a);
	else if (a->flow.record.stamped)
		cookie_out(skb, t, a);
}

/* ---- in */

/* The name that cookies of an arrival's flow are made with. */
static __always_inline void cookie_name_in(struct arrival *a)
{
	struct flow_name *n = &a->spare.name;

	view_copy16(n->dip, a->inner.dst);
	view_copy16(n->client, a->inner.src);
	n->dip_port_be = a->t.dport_be;
	n->peer_port_be = a->t.sport_be;
	n->scope = IPPROTO_TCP;
}

/* The member that a packet of an unknown flow echoes the cookie of, or COOKIE_NONE. `rewrite` is the binding's. Global, so that the verifier looks at it once. */
__noinline __u32 cookie_named(struct __sk_buff *skb, struct arrival *a, __u32 own, __u32 rewrite)
{
	if (!own || !a || !(a->t.bits & TCP_BIT_ACK) || !timestamp_read(skb, &a->t, &a->stamp.ts) || !a->stamp.ts.echo)
		return COOKIE_NONE;
	cookie_name_in(a);
	if (!rewrite)
		return cookie_owned(&a->spare.name, own, a->stamp.ts.echo);
	return cookie_member(&a->spare.name, own, evc_cookie_of(host_time_bits, a->stamp.ts.echo));
}

/* Begins the clock of a flow anew, of an echo that has its member's cookie: 1. */
static __always_inline int cookie_rebuild(struct arrival *a, struct evc *at, struct evc *e, __u32 own, __u32 w)
{
	cookie_name_in(a);
	if (cookie_member(&a->spare.name, own, evc_cookie_of(host_time_bits, w)) != own_member(own))
		return 0;
	evc_rebuild(e, host_time_bits, w, flow_generation(a->flow.tag));
	clock_store(at, e);
	flow_stamped(a->flow.place);
	count(HOST_REASON_COOKIE_REBUILT);
	return 1;
}

/* What the server reads of an echo that its clock may not only take note of. Global, so that the verifier looks at it once. */
__noinline int cookie_taken(struct arrival *a, __u32 own)
{
	__u32 place, w, to = 0;
	struct evc *at, *was, *e;
	int ours = EVC_FOREIGN;

	if (!a)
		return 0;
	w = a->stamp.ts.echo;
	place = a->flow.place;
	at = bpf_map_lookup_elem(&flow_cookies, &place);
	if (!at)
		return 0;
	was = &a->clock;
	e = &a->after;
	if (!clock_load(at, flow_generation(a->flow.tag), was))
		was->lock |= 1;
	*e = *was;
	if (a->flow.record.stamped)
		ours = evc_echo(e, host_time_bits, w, &to);
	if (ours == EVC_FOREIGN && !cookie_rebuild(a, at, e, own, w)) {
		count(HOST_REASON_COOKIE_FOREIGN);
		return 0;
	}
	if (ours == EVC_OURS && (!clock_same(was, e) || was->v_last != e->v_last)) {
		if (!clock_store(at, e))
			to = 0;
		else if (evc_kind(was) == EVC_OPENING && evc_kind(e) == EVC_LIVE)
			count(HOST_REASON_COOKIE_BEGUN);
	} else if (ours == EVC_OURS) {
		if (was->v_echo != e->v_echo)
			*(volatile __u32 *)&at->v_echo = e->v_echo;
		if (was->lock & 1) {
			count(HOST_REASON_COOKIE_CONTENDED);
			to = 0;
		}
	}
	stamp_value(&a->stamp, a->stamp.ts.at + 4, w, to);
	return 0;
}

/* Takes the echo of a client's segment. Global, so that the verifier looks at it once. */
__noinline int cookie_in(struct __sk_buff *skb, struct arrival *a, __u32 own)
{
	__u32 place, lock, word, w, to, v;
	struct evc *at;

	if (!a || !timestamp_read(skb, &a->t, &a->stamp.ts) || !a->stamp.ts.echo)
		return 0;
	w = a->stamp.ts.echo;
	place = a->flow.place;
	at = bpf_map_lookup_elem(&flow_cookies, &place);
	if (!at)
		return 0;
	lock = *(volatile __u32 *)&at->lock;
	asm volatile("" ::: "memory");
	word = at->word;
	if (!a->flow.record.stamped || lock & 1 || !evc_steady(word, flow_generation(a->flow.tag), EVC_MINTING | EVC_UNSURE) ||
	    evc_cookie_of(host_time_bits, w) != word >> EVC_COOKIE_SHIFT)
		return cookie_taken(a, own);
	to = evc_heard_steady(at, host_time_bits, w, &v);
	asm volatile("" ::: "memory");
	if (*(volatile __u32 *)&at->lock != lock)
		return cookie_taken(a, own);
	if (evc_after(v, *(volatile __u32 *)&at->v_echo))
		*(volatile __u32 *)&at->v_echo = v;
	stamp_value(&a->stamp, a->stamp.ts.at + 4, w, to);
	return 0;
}

/* What becomes of the timestamps of a packet of a client, into a->stamp. A SYN echoes nothing that its server sent: what is left of a connection before
 * must not reach a kernel. */
static __always_inline void stamp_in(struct __sk_buff *skb, struct arrival *a, __u32 binding)
{
	__u32 own;

	a->stamp.at = a->stamp.sum = a->stamp.mptcp = 0;
	if (a->inner.protocol != IPPROTO_TCP || a->inner.fragment)
		return;
	own = binding_cookie(binding);
	if (!own && !a->flow.record.stamped)
		return;
	if (a->t.bits & TCP_BIT_ACK)
		cookie_in(skb, a, own);
	else if (a->t.syn && timestamp_find(skb, &a->t, &a->stamp.ts))
		stamp_value(&a->stamp, a->stamp.ts.at + 4, a->stamp.ts.echo, 0);
}
