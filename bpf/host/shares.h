/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of host.bpf.c: shares of VIPs in the flow table.
 *
 * Trusted flows are never displaced. A VIP whose trusted flows are more than its share, which the agent's sweep marks, therefore begins a flow only in the place
 * of an untrusted or closing one of its own. Places of untrusted and closing flows are shared where they are scarce, in the two buckets of a new flow: it takes
 * one of the VIP that has most of them there. */

/* flow_vip returns the number of the VIP that a flow counts for. */
static __always_inline __u32 flow_vip(const struct flow_record *r)
{
	/* Of FLOW_ALIAS and FLOW_BACK, the kinds with bit 1, `dip` is the VIP. */
	return r->vip ^ ((r->vip ^ r->dip) & -(__u32)(r->kind >> 1 & 1));
}

/* over_share returns 1 if the trusted flows of the VIP with this number are more than its share of the table, else 0. */
static __always_inline int over_share(__u32 vip)
{
	__u32 index = vip / 64;
	const __u64 *marks = bpf_map_lookup_elem(&flow_shares, &index);

	return marks ? *(const volatile __u64 *)marks >> (vip & 63) & 1 : 0;
}

/* An entry of two buckets as a newcomer looks at it: the VIP, and a mask that is all ones if the newcomer may take the place, else 0. */
struct share_entry {
	__u64 may;
	__u64 age;
	__u64 vip;
};

/* share_look returns entry `way` of a bucket. Only entries that are live and not trusted may be taken. Without branches, as tag_room. */
static __always_inline struct share_entry share_look(const struct flow_tags *b, __u32 bucket, __u32 way, __u64 tick)
{
	__u64 tag = tag_load(b, way), class = tag >> FLOW_TAG_CLASS_SHIFT & 3, left = (tag - tick) & TAG_UNTIL_MASK;
	struct share_entry e = { .age = FLOW_TAG_IDLE_MAX - left };
	const struct flow_record *r;
	__u32 place;

	/* Trusted is the class 2: the others have bit 0, but for empty. */
	e.may = -(class & 1) & ~flow_negative(FLOW_TAG_IDLE_MAX - left);
	/* Records of the others are not read: they would be a cache miss each. */
	place = (bucket * LIMIT_FLOW_BUCKET + way) & (__u32)e.may;
	r = bpf_map_lookup_elem(&flow_records, &place);
	if (r)
		e.vip = flow_vip(r);
	return e;
}

/* share_group returns which of 16 groups a VIP is counted in, as a shift. Which VIPs are counted as one is another thing for each flow. */
static __always_inline __u32 share_group(__u32 vip, __u64 hash)
{
	return ((vip ^ (__u32)(hash >> 32)) * 0x9e3779b1U) >> 28 << 2;
}

/* share_take returns the place that a newcomer with a hash and the VIP `vip` takes of a live flow that is not trusted: way | 8 for the second bucket,
 * TAG_NO_ROOM if there is none. It is of the VIP that has most such flows in the two buckets, of the newcomer's own if others have as many, and the one
 * that has least time left. With `over` 1 only those of the newcomer's VIP are considered. */
static __always_inline __u32 share_take(__u32 first, __u32 second, __u64 hash, __u64 tick, __u32 vip, __u64 over)
{
	const struct flow_tags *x = bpf_map_lookup_elem(&flow_tags, &first), *y = bpf_map_lookup_elem(&flow_tags, &second);
	__u64 counts = 0, best = 0;

	if (!x || !y)
		return TAG_NO_ROOM;
	/* Sixteen entries of one VIP overflow its four bits into those of a group without entries. */
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < 2 * LIMIT_FLOW_BUCKET; i++) {
		struct share_entry e = share_look(i < LIMIT_FLOW_BUCKET ? x : y, i < LIMIT_FLOW_BUCKET ? first : second, i % LIMIT_FLOW_BUCKET, tick);

		counts += (e.may & 1) << share_group(e.vip, hash);
	}
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < 2 * LIMIT_FLOW_BUCKET; i++) {
		struct share_entry e = share_look(i < LIMIT_FLOW_BUCKET ? x : y, i < LIMIT_FLOW_BUCKET ? first : second, i % LIMIT_FLOW_BUCKET, tick);
		__u64 own = flow_negative((e.vip ^ vip) - 1), score;

		/* From bit 0 up: 16 - i:5, not 0 | age:18 | own:1 | count:4. */
		score = (2 * LIMIT_FLOW_BUCKET - i) | e.age << 5 | (own & 1) << 23 | (counts >> share_group(e.vip, hash) & 15) << 24;
		best = flow_larger(best, score & e.may & (own | (over - 1)));
	}
	return best ? 2 * LIMIT_FLOW_BUCKET - (best & 31) : TAG_NO_ROOM;
}
