/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of host.bpf.c: ports of a VIP for connections that servers here open (design section 9.9).
 *
 * A connection is a flow of kind FLOW_SNAT under the server's own words, and a record of kind FLOW_BACK under those of its far end, which
 * leads to it. A port serves many connections, as long as their far ends differ: who gets that second record into the table has the port
 * towards that far end, whatever other CPUs do. */

/* Beside what snat_port returns. */
enum snat_port {
	SNAT_SCARCE = 256,
};

static __always_inline const struct host_snat_setup *snat_setup(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&snat_setups, &zero);
}

/* May a packet be one of SNAT at all? */
static __always_inline int snat_possible(const struct ip_view *v)
{
	const struct host_snat_setup *s;

	if (v->is6)
		return 0;
	s = snat_setup();
	return s && *(const volatile __u32 *)&s->holders;
}

/* What of SNAT an IPv4 address is: enum host_snat_addr, -1: nothing. */
static __always_inline int snat_addr_of(__u32 addr_be)
{
	const __u32 *of = bpf_map_lookup_elem(&snat_addrs, &addr_be);

	return of ? (int)*of : -1;
}

static __always_inline int snat_addr(const __u8 *addr)
{
	return snat_addr_of(((const __u32 *)addr)[3]);
}

/* Do connections to this address leave as they are? */
static __always_inline int snat_inside(const __u8 *addr)
{
	struct host_snat_prefix k = { .bits = 32 };

	k.addr_be = ((const __u32 *)addr)[3];
	return bpf_map_lookup_elem(&snat_inside_of, &k) != 0;
}

/* The name of what leads back to a connection, in a->spare; 0: its VIP is nobody's any more. */
static __always_inline int snat_back_name(struct arrival *a, const struct flow_record *r)
{
	const __u8 *vip = bpf_map_lookup_elem(&flow_addrs, &r->vip);
	struct flow_name *n = &a->spare.name;

	if (!vip)
		return 0;
	view_copy16(n->dip, vip);
	view_copy16(n->client, r->client);
	n->scope = r->scope;
	n->dip_port_be = r->vip_port_be;
	n->peer_port_be = r->peer_port_be;
	n->kind = FLOW_BACK;
	return 1;
}

/* What leads back to a connection: VIP and DIP change places. */
static __always_inline void snat_back_record(struct flow_record *back, const struct flow_record *r)
{
	*back = *r;
	back->kind = FLOW_BACK;
	back->flags = 0;
	back->dip = r->vip;
	back->dip_port_be = r->vip_port_be;
	back->vip = r->dip;
	back->vip_port_be = r->dip_port_be;
}

/* Does the record lead back to this connection? Its name is right. */
static __always_inline int snat_leads(const struct flow_record *back, const struct flow_record *r)
{
	return back->vip == r->dip && back->vip_port_be == r->dip_port_be;
}

/* Tells the agent once that a DIP's ports get scarce. */
static __always_inline void snat_low(__u32 index)
{
	struct host_snat_holder *h = bpf_map_lookup_elem(&snat_holders, &index);

	if (!h || *(volatile __u32 *)&h->low || __sync_lock_test_and_set(&h->low, 1))
		return;
	if (bpf_ringbuf_output(&snat_lows, &index, sizeof(index), 0))
		*(volatile __u32 *)&h->low = 0;
}

/* Takes port number `at` of the table's ports for the connection a->want: enum flow_begun, FLOW_THERE when it is in use towards this far
 * end. Global, as what follows, so that the verifier looks at it once. */
__noinline int snat_try(struct arrival *a, __u32 at)
{
	__u32 word = at / 8;
	struct host_snat_range *r = bpf_map_lookup_elem(&snat_ranges, &word);
	struct flow_spare *s;
	int got;

	if (!a || !r)
		return FLOW_FULL;
	s = &a->spare;
	a->want.vip_port_be = bpf_htons(r->range << 3 | (at & 7));
	if (!snat_back_name(a, &a->want))
		return FLOW_FULL;
	snat_back_record(&s->record, &a->want);
	got = flow_begin(&s->name, &s->record, flow_idle(HOST_SNAT_BINDING, a->want.scope, FLOW_CLASS_UNTRUSTED), &s->found);
	/* It led to this very connection, which lost its own place, or another CPU begins it. */
	if (got == FLOW_THERE && snat_leads(&s->found.record, &a->want))
		got = FLOW_BEGUN;
	if (got == FLOW_BEGUN)
		r->used = host_tick();
	return got;
}

/* The i-th of `count` ports to try. Of few all are tried, one after the other. Of many those that were leased first are in use one beside the
 * other: the walk leaps (Weyl's sequence of the golden ratio, which spreads evenly). */
static __always_inline __u32 snat_probe(__u32 hash, __u32 i, __u32 count)
{
	if (count <= LIMIT_HOST_SNAT_PROBES)
		return (hash + i) % count;
	return (__u64)(hash + i * 0x9e3779b1U) * count >> 32;
}

/* snat_far returns a keyed hash, never 0, of a connection's DIP with its ranges, far end and protocol, and of the tick. `changes` is as in struct host_snat_holder. Flows end with ticks, so while it stays the
 * same no port towards that far end becomes free but by chance: its flow lost its place to a newcomer. */
__noinline __u64 snat_far(const struct flow_name *n, __u64 ranges, __u64 changes)
{
	const struct siphash_key key = { .k0 = flow_key.k0, .k1 = flow_key.k1 };
	__u64 words[5] = {};

	if (!n)
		return 0;
	words[0] = (__u64)((const __u32 *)n->client)[3] << 32 | ((const __u32 *)n->dip)[3];
	words[1] = flow_word(0, bpf_ntohs(n->peer_port_be), 0, n->scope);
	words[2] = ranges;
	words[3] = host_tick();
	words[4] = changes;
	return siphash13(&key, words, 5) | 1;
}

/* The entry of snat_spent for a far end. */
static __always_inline __u64 *snat_spent_at(__u64 far)
{
	__u32 index = far >> 1 & (LIMIT_HOST_SNAT_SPENT - 1);

	return bpf_map_lookup_elem(&snat_spent, &index);
}

/* How many of the ports of these ranges are tried for a connection whose far end `spent` has, or has not: all or LIMIT_HOST_SNAT_PROBES; if it has, none of few
 * and LIMIT_HOST_SNAT_AGAIN of many, which were not all tried. */
static __always_inline __u32 snat_tries(__u64 ranges, int spent)
{
	__u32 count = ranges >> 32 << 3;

	if (spent)
		return count <= LIMIT_HOST_SNAT_PROBES ? 0 : LIMIT_HOST_SNAT_AGAIN;
	return count;
}

/* Finds a port for the connection a->want among the ranges that the DIP's record has, in so many tries: enum flow_begun, FLOW_THERE when none is free; SNAT_SCARCE
 * beside it: ports get scarce. The walk begins at a port that its name decides, so that a connection that lost its place finds the port it had. */
__noinline int snat_port(struct arrival *a, __u64 ranges, __u32 tries)
{
	__u32 first = (__u32)ranges * 8, count = ranges >> 32 << 3, hash, i;
	int got = FLOW_THERE;

	if (!a)
		return FLOW_FULL;
	hash = flow_hash(&a->name) >> 32;
	for (i = 0; i < LIMIT_HOST_SNAT_PROBES && i < tries; i++) {
		got = snat_try(a, first + snat_probe(hash, i, count));
		if (got == FLOW_BEGUN)
			break;
	}
	return got != FLOW_BEGUN || i >= LIMIT_HOST_SNAT_SCARCE ? got | SNAT_SCARCE : got;
}

/* Begins the connection whose name the scratch has, of the DIP with this address: enum flow_begun, FLOW_THERE when no port is free. */
__noinline int snat_begin(__u32 dip_be)
{
	const struct host_snat_holder *h;
	struct flow_record *want;
	struct arrival *a;
	__u64 ranges, far, *spent;
	__u32 index = 0;
	int got;

	a = bpf_map_lookup_elem(&arrivals, &index);
	index = snat_addr_of(dip_be);
	h = bpf_map_lookup_elem(&snat_holders, &index);
	if (!a || !h)
		return FLOW_FULL;
	if (over_share(h->vip)) {
		count(HOST_REASON_FLOW_OVER_SHARE);
		return FLOW_FULL;
	}
	want = &a->want;
	__builtin_memset(want, 0, sizeof(*want));
	view_copy16(want->client, a->name.client);
	want->dip = h->dip;
	want->vip = h->vip;
	want->dip_port_be = a->name.dip_port_be;
	want->peer_port_be = a->name.peer_port_be;
	want->client_port_be = a->name.peer_port_be;
	want->scope = a->name.scope;
	want->kind = FLOW_SNAT;
	want->mss = h->mss;
	want->binding = HOST_SNAT_BINDING;
	ranges = *(volatile __u64 *)&h->ranges;
	far = snat_far(&a->name, ranges, *(volatile __u64 *)&h->changes);
	spent = snat_spent_at(far);
	if (!spent)
		return FLOW_FULL;
	got = snat_port(a, ranges, snat_tries(ranges, *(volatile __u64 *)spent == far));
	if (got & SNAT_SCARCE)
		snat_low(index);
	got &= ~SNAT_SCARCE;
	if (got == FLOW_THERE)
		*(volatile __u64 *)spent = far;
	if (got != FLOW_BEGUN)
		return got;
	got = flow_begin(&a->name, want, flow_idle(HOST_SNAT_BINDING, want->scope, FLOW_CLASS_UNTRUSTED), &a->flow);
	/* Another CPU was faster, with another port. What leads to a connection for which there was no room stays: another CPU that begins the same
	 * may count on it, and the connection's next packet finds its port by it. */
	if (got == FLOW_THERE && a->flow.record.vip_port_be != want->vip_port_be)
		flow_untag(a->spare.found.place, a->spare.found.tag);
	return got == FLOW_FULL ? FLOW_FULL : FLOW_BEGUN;
}
