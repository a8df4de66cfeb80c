/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of host.bpf.c: the flow table. */

/* What beginning a flow came to. */
enum flow_begun {
	FLOW_BEGUN = 0,
	FLOW_THERE = 1, /* one of this name is there, and found */
	FLOW_FULL = 2,
};

static __always_inline __u32 flow_scope(__u32 vni, __u8 protocol)
{
	return vni << 8 | protocol;
}

static __always_inline __u64 flow_half(const __u8 *addr)
{
	const __u32 *w = (const __u32 *)addr;

	return w[0] | (__u64)w[1] << 32;
}

static __always_inline __u64 flow_hash(const struct flow_name *n)
{
	const struct siphash_key key = { .k0 = flow_key.k0, .k1 = flow_key.k1 };
	__u64 word = flow_word(n->scope >> 8, bpf_ntohs(n->peer_port_be), bpf_ntohs(n->dip_port_be), n->scope);
	const __u32 *dip = (const __u32 *)n->dip, *client = (const __u32 *)n->client;

	if (!dip[0] && !dip[1] && dip[2] == bpf_htonl(0xffff))
		return table_hash4(&key, bpf_ntohl(client[3]), bpf_ntohl(dip[3]), word);
	return table_hash6(&key, flow_half(n->client), flow_half(n->client + 8), flow_half(n->dip), flow_half(n->dip + 8), word);
}

/* Does the record have the flow's kind and client? Global, so that the verifier looks at it once. */
__noinline int flow_client_is(const struct flow_name *n, const struct flow_record *r)
{
	const __u8 *vip;

	if (!n || !r)
		return 0;
	if (r->kind != FLOW_HAIRPIN)
		return r->kind == n->kind && view_equal16(r->client, n->client);
	vip = bpf_map_lookup_elem(&flow_addrs, &r->vip);
	return vip && n->kind == FLOW_INBOUND && view_equal16(vip, n->client);
}

/* Is the record of this place, which the tag is of, that of the flow? Copies it. */
static __always_inline int flow_is(const struct flow_name *n, const struct flow_tags *b, __u32 bucket, __u32 way, __u64 tag,
				   struct flow_found *f)
{
	__u32 place = bucket * LIMIT_FLOW_BUCKET + way;
	const struct flow_record *r = bpf_map_lookup_elem(&flow_records, &place);
	const __u8 *dip;

	if (!r)
		return 0;
	/* Both lines come at once. */
	if (host_flows_stamped) {
		const struct evc *e = bpf_map_lookup_elem(&flow_cookies, &place);

		if (e)
			(void)*(const volatile __u32 *)&e->word;
	}
	f->record = *r;
	asm volatile("" ::: "memory");
	if (!tag_same(tag_load(b, way), tag))
		return 0;
	if (f->record.peer_port_be != n->peer_port_be || f->record.dip_port_be != n->dip_port_be || f->record.scope != n->scope ||
	    !flow_client_is(n, &f->record))
		return 0;
	dip = bpf_map_lookup_elem(&flow_addrs, &f->record.dip);
	if (!dip || !view_equal16(dip, n->dip))
		return 0;
	f->tag = tag;
	f->place = place;
	return 1;
}

/* Finds a live flow: 1, else 0. Global, as what follows, so that the verifier looks at it once. */
__noinline int flow_find(const struct flow_name *n, struct flow_found *f)
{
	__u64 hash, tick = host_tick();

	if (!n || !f)
		return 0;
	f->alias_tag = 0;
	hash = flow_hash(n);
	for (__u32 second = 0; second < 2; second++) {
		__u32 bucket = tag_bucket(hash, second, flow_mask);
		const struct flow_tags *b = bpf_map_lookup_elem(&flow_tags, &bucket);

		if (!b)
			return 0;
#pragma clang loop unroll(disable)
		for (__u32 i = 0; i < LIMIT_FLOW_BUCKET; i++) {
			__u32 way = (tag_home(hash) + i) & (LIMIT_FLOW_BUCKET - 1);
			__u64 tag = tag_load(b, way);

			if ((tag ^ hash) >> FLOW_TAG_FINGERPRINT_SHIFT || tag & TAG_BUSY || !tag_live(tag, tick))
				continue;
			if (flow_is(n, b, bucket, way, tag, f))
				return 1;
		}
	}
	return 0;
}

/* The address of the tag of a place, 0 when there is no such place. */
static __always_inline __u64 *flow_tag_at(__u32 place)
{
	__u32 bucket = place / LIMIT_FLOW_BUCKET;
	struct flow_tags *b = bpf_map_lookup_elem(&flow_tags, &bucket);

	return b ? &b->tags[place & (LIMIT_FLOW_BUCKET - 1)] : 0;
}

/* Forgets what is no connection of a client, unless its tag changed. */
static __always_inline void flow_untag(__u32 place, __u64 tag)
{
	__u64 *at = flow_tag_at(place);

	if (at)
		__sync_val_compare_and_swap(at, tag, 0);
}

/* Forgets a flow, unless its tag changed. */
static __always_inline void flow_drop(__u32 place, __u64 tag)
{
	__u64 *at = flow_tag_at(place);
	const struct flow_record *r = bpf_map_lookup_elem(&flow_records, &place);

	if (at && __sync_val_compare_and_swap(at, tag, 0) == tag && r)
		flow_turned(r, tag_class(tag), FLOW_CLASS_EMPTY);
}

/* What flow_room returns when there is no place. */
enum flow_no_room {
	FLOW_NO_ROOM = -1,
	FLOW_OVER_SHARE = -2, /* for a VIP over its share */
};

/* The place that a newcomer of the VIP with number `vip` takes, or enum flow_no_room: a free one, which a VIP over its share is not given, else one of
 * share_take. */
__noinline __s64 flow_room(__u64 hash, __u64 tick, __u32 vip)
{
	__u32 first = tag_bucket(hash, 0, flow_mask), second = tag_bucket(hash, 1, flow_mask), way = TAG_NO_ROOM;
	const struct flow_tags *x = bpf_map_lookup_elem(&flow_tags, &first), *y = bpf_map_lookup_elem(&flow_tags, &second);
	int over = over_share(vip);

	if (!x || !y)
		return FLOW_NO_ROOM;
	if (!over)
		way = tag_choose(tag_room(x, tag_home(hash), tick), tag_room(y, tag_home(hash), tick));
	if (way == TAG_NO_ROOM)
		way = share_take(first, second, hash, tick, vip, over);
	if (way == TAG_NO_ROOM)
		return over ? FLOW_OVER_SHARE : FLOW_NO_ROOM;
	return (__u64)(way & LIMIT_FLOW_BUCKET ? second : first) * LIMIT_FLOW_BUCKET + (way & (LIMIT_FLOW_BUCKET - 1));
}

/* Does another CPU begin a flow of this hash elsewhere than in the place `own`? */
__noinline int flow_rival(__u64 hash, __u32 own, __u64 tick)
{
	for (__u32 second = 0; second < 2; second++) {
		__u32 bucket = tag_bucket(hash, second, flow_mask);
		const struct flow_tags *b = bpf_map_lookup_elem(&flow_tags, &bucket);

		if (!b)
			return 0;
#pragma clang loop unroll(disable)
		for (__u32 way = 0; way < LIMIT_FLOW_BUCKET; way++) {
			__u64 tag = tag_load(b, way);

			if (!((tag ^ hash) >> FLOW_TAG_FINGERPRINT_SHIFT) && tag & TAG_BUSY && tag_live(tag, tick) &&
			    bucket * LIMIT_FLOW_BUCKET + way != own)
				return 1;
		}
	}
	return 0;
}

/* One attempt to begin a flow: as flow_begin, or a negative number when another CPU was in the way. */
__noinline int flow_try(const struct flow_name *n, const struct flow_record *fresh, __u32 idle, struct flow_found *f)
{
	__u64 hash, before, claim, tick = host_tick(), *at;
	struct flow_record *r;
	__u32 place;
	__s64 room;

	if (!n || !fresh || !f)
		return FLOW_FULL;
	if (flow_find(n, f))
		return FLOW_THERE;
	hash = flow_hash(n);
	room = flow_room(hash, tick, flow_vip(fresh));
	if (room == FLOW_OVER_SHARE)
		count(HOST_REASON_FLOW_OVER_SHARE);
	if (room < 0)
		return FLOW_FULL;
	place = room;
	at = flow_tag_at(place);
	r = bpf_map_lookup_elem(&flow_records, &place);
	if (!at || !r)
		return FLOW_FULL;
	before = *(volatile __u64 *)at;
	/* Another CPU may have begun a flow here since the place was chosen: this one even, whose home it is. */
	if (tag_live(before, tick) &&
	    (tag_class(before) == FLOW_CLASS_TRUSTED || !((before ^ hash) >> FLOW_TAG_FINGERPRINT_SHIFT) ||
	     flow_room(hash, tick, flow_vip(fresh)) != room))
		return -1;
	claim = tag_claim(hash, before, tick);
	if (__sync_val_compare_and_swap(at, before, claim) != before)
		return -1;
	/* Its record is as it was: of a flow whose time is over, or of one that is not trusted. */
	flow_turned(r, tag_class(before), FLOW_CLASS_EMPTY);
	/* Of two that claim at the same time at least one sees the other, and whoever does gives way. A rival that has begun
	 * between the two looks is found by the second. */
	if (flow_rival(hash, place, tick) || flow_find(n, f)) {
		__sync_lock_test_and_set(at, 0);
		return -1;
	}
	*r = *fresh;
	r->seen = tick;
	f->record = *fresh;
	f->place = place;
	f->alias_tag = 0;
	f->tag = tag_state(claim, FLOW_CLASS_UNTRUSTED, tick + idle);
	__sync_lock_test_and_set(at, f->tag);
	meter_begun(fresh);
	if (tag_live(before, tick))
		count(HOST_REASON_FLOW_EVICTED);
	return FLOW_BEGUN;
}

/* Begins a flow, untrusted, unless there is one of this name: enum flow_begun. */
__noinline int flow_begin(const struct flow_name *n, const struct flow_record *fresh, __u32 idle, struct flow_found *f)
{
	for (__u32 i = 0; i < LIMIT_FLOW_CLAIMS; i++) {
		int r = flow_try(n, fresh, idle, f);

		if (r >= 0)
			return r;
		count(HOST_REASON_FLOW_CONTENDED);
	}
	return FLOW_FULL;
}

/* How long, in ticks, a flow of this class lives without a packet. */
static __always_inline __u32 flow_idle(__u32 binding, __u32 scope, __u32 class)
{
	const struct binding_flow *b = bpf_map_lookup_elem(&binding_flows, &binding);
	__u8 protocol = scope;

	if (!b)
		return 0;
	if (protocol == IPPROTO_UDP)
		return b->idle[IDLE_UDP];
	if (protocol != IPPROTO_TCP)
		return b->idle[IDLE_OTHER];
	return class == FLOW_CLASS_TRUSTED ? b->idle[IDLE_ESTABLISHED] : class == FLOW_CLASS_UNTRUSTED ? b->idle[IDLE_OPENING] : b->idle[IDLE_CLOSING];
}

/* Notes that a flow with this tag had a packet that leaves it in a class. Most packets write nothing: 0. */
static __always_inline int flow_touch(__u32 place, __u64 tag, struct flow_record *r, __u32 class)
{
	__u64 tick = host_tick(), left = tag_left(tag, tick), *at;
	__u32 idle = flow_idle(r->binding, r->scope, class);

	if (class == tag_class(tag) && left <= idle && left + (idle >> 6) >= idle)
		return 0;
	at = flow_tag_at(place);
	if (!at)
		return 0;
	r->seen = tick;
	if (__sync_val_compare_and_swap(at, tag, tag_state(tag, class, tick + idle)) == tag)
		flow_turned(r, tag_class(tag), class);
	return 1;
}

/* The notes of the flow at a place. */
static __always_inline struct flow_note *flow_note_at(__u32 place)
{
	__u32 index = place & (LIMIT_FLOW_NOTES - 1);

	return bpf_map_lookup_elem(&flow_notes, &index);
}

/* The number of the byte after a segment. */
static __always_inline __u32 track_end(const struct ip_view *v, const struct transport_view *t)
{
	return t->seq + (v->end - v->payload - t->header_len) + !!(t->bits & TCP_BIT_SYN) + !!(t->bits & TCP_BIT_FIN);
}

/* Notes a SYN that came for a server without a tunnel, if its tuple is that of a flow: its client opens a connection to the server's own address.
 * The flow goes on until the server accepts that connection (flow_replaced): anybody can send such a SYN, and a server that has the
 * flow's connection answers with a challenge ACK, which must reach the flow's client (RFC 5961 section 4). */
__noinline int flow_direct(const struct ip_view *v, const struct transport_view *t)
{
	struct flow_found f;
	struct flow_name n = {};
	struct flow_note *note;

	if (!v || !t)
		return 0;
	view_copy16(n.dip, v->dst);
	view_copy16(n.client, v->src);
	n.dip_port_be = t->dport_be;
	n.peer_port_be = t->sport_be;
	n.scope = flow_scope(0, v->protocol);
	if (!flow_find(&n, &f))
		return 0;
	note = flow_note_at(f.place);
	if (!note)
		return 0;
	note->direct_first = t->seq + 1;
	note->direct_last = track_end(v, t);
	*(volatile __u32 *)&note->direct_of = f.place + 1;
	return 1;
}

/* Drops a flow whose server accepts, with the SYN-ACK `t`, a connection to its own address in place of the flow's: 1. Global, so that the verifier
 * looks at it once. */
__noinline int flow_replaced(const struct flow_found *f, const struct transport_view *t)
{
	const struct flow_note *note;

	if (!f || !t)
		return 0;
	note = flow_note_at(f->place);
	if (!note || *(const volatile __u32 *)&note->direct_of != f->place + 1 || (t->ack != note->direct_first && t->ack != note->direct_last))
		return 0;
	flow_drop(f->place, f->tag);
	return 1;
}
