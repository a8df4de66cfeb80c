/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of host.bpf.c: repair (design section 9.4). A TCP packet of a flow that this host does not know, not a SYN, is sent on once,
 * in the tunnel that it came by, to the owner that its slot had before, or to the present one where a mux is behind. */

/* The flow's slot. Global, so that the verifier looks at it once. */
__noinline int repair_slot_of(const struct arrival *a __arg_nonnull, const struct repair *r __arg_nonnull)
{
	struct siphash_key key;
	__u64 src[2], dst[2], word, hash;

	if (!a || !r)
		return 0;
	key.k0 = r->key[0];
	key.k1 = r->key[1];
	__builtin_memcpy(src, a->inner.src, sizeof(src));
	__builtin_memcpy(dst, a->inner.dst, sizeof(dst));
	word = flow_word(a->vni, bpf_ntohs(a->t.sport_be), bpf_ntohs(a->t.dport_be), IPPROTO_TCP);
	if (r->flow == REPAIR_CLIENT) {
		src[0] &= r->mask[0];
		src[1] &= r->mask[1];
		word = flow_word(0, 0, r->port, IPPROTO_TCP);
	} else if (r->flow == REPAIR_3TUPLE) {
		word = flow_word(0, 0, 0, IPPROTO_TCP);
	}
	if (a->inner.is6)
		hash = flow_hash6(&key, src[0], src[1], dst[0], dst[1], word);
	else
		hash = flow_hash4(&key, bpf_ntohl(src[1] >> 32), bpf_ntohl(dst[1] >> 32), word);
	return r->slots + ring_slot(hash, r->code & 31);
}

/* Who should have the packet that came to member `own` instead: a member id, or REPAIR_NONE. */
static __always_inline __u32 repair_owner(__u32 turns, __u32 own)
{
	__u32 current = turns & 0xffff, former = turns >> REPAIR_FORMER_SHIFT;

	if (former == REPAIR_NONE)
		return REPAIR_NONE; /* nothing was displaced */
	return former == own ? current : former;
}

/* The member of this id, 0 when nothing is to be sent on to it. */
static __always_inline const struct repair_target *repair_target_at(const struct repair *r, __u32 id)
{
	const struct repair_target *t;
	__u32 index = r->targets + id;

	if (id >= r->count)
		return 0;
	t = bpf_map_lookup_elem(&repair_targets, &index);
	return t && t->use ? t : 0;
}

/* The target of a packet that came by binding `b`, or 0. */
static __always_inline const struct repair_target *repair_target_of(const struct arrival *a, const struct binding *b,
								    const struct repair *r, __u32 *id)
{
	__u32 slot = repair_slot_of(a, r), index = slot >> 1;
	const __u64 *word = bpf_map_lookup_elem(&repair_slots, &index);

	if (!word)
		return 0;
	*id = repair_owner(*(const volatile __u64 *)word >> (slot & 1) * 32, b->member);
	return repair_target_at(r, *id);
}

/* Does a socket of this machine have the packet's connection? For VIPs that servers here own. No socket at all: who listens is not
 * here, and nobody knows. A SYN cookie that is out makes no socket before its ACK comes (RFC 4987 section 3.6). Global, so that the
 * verifier looks at it once. */
__noinline int socket_known(struct __sk_buff *skb, const struct arrival *a __arg_nonnull)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *sk;
	struct ipv6hdr ip6;
	struct iphdr ip4;
	struct tcphdr tcp;
	int known = 1;

	if (!a)
		return 1;
	if (a->inner.is6) {
		view_copy16(tuple.ipv6.saddr, a->inner.src);
		view_copy16(tuple.ipv6.daddr, a->inner.dst);
		tuple.ipv6.sport = a->t.sport_be;
		tuple.ipv6.dport = a->t.dport_be;
		sk = bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
	} else {
		tuple.ipv4.saddr = ((const __u32 *)a->inner.src)[3];
		tuple.ipv4.daddr = ((const __u32 *)a->inner.dst)[3];
		tuple.ipv4.sport = a->t.sport_be;
		tuple.ipv4.dport = a->t.dport_be;
		sk = bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	}
	if (!sk)
		return 1;
	if (sk->state == BPF_TCP_LISTEN && !bpf_skb_load_bytes(skb, a->t.offset, &tcp, sizeof(tcp))) {
		if (a->inner.is6)
			known = !bpf_skb_load_bytes(skb, a->outer.payload, &ip6, sizeof(ip6)) &&
				!bpf_tcp_check_syncookie(sk, &ip6, sizeof(ip6), &tcp, sizeof(tcp));
		else
			known = !bpf_skb_load_bytes(skb, a->outer.payload, &ip4, sizeof(ip4)) &&
				!bpf_tcp_check_syncookie(sk, &ip4, sizeof(ip4), &tcp, sizeof(tcp));
	}
	bpf_sk_release(sk);
	return known;
}

/* Makes the outer header one from this host to the target: the packet stays in its tunnel, and a GSO packet whole. Returns 0, or a
 * negative number when the kernel refuses. */
static __always_inline int repair_readdress4(struct __sk_buff *skb, const struct repair *r, const struct repair_target *t)
{
	const __u32 check = ETH_HLEN + __builtin_offsetof(struct iphdr, check);
	struct iphdr ip;
	__u32 src = ((const __u32 *)r->source)[3], dst = ((const __u32 *)t->outer_dst)[3];
	__u16 ttl, less;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) || ip.ttl <= 1)
		return -1;
	ttl = ip.ttl | ip.protocol << 8;
	less = (ip.ttl - 1) | ip.protocol << 8;
	ip.ttl--;
	if (bpf_l3_csum_replace(skb, check, ip.saddr, src, sizeof(src)) || bpf_l3_csum_replace(skb, check, ip.daddr, dst, sizeof(dst)) ||
	    bpf_l3_csum_replace(skb, check, ttl, less, sizeof(less)))
		return -1;
	if (bpf_skb_store_bytes(skb, ETH_HLEN + __builtin_offsetof(struct iphdr, ttl), &ip.ttl, sizeof(ip.ttl), 0) ||
	    bpf_skb_store_bytes(skb, ETH_HLEN + __builtin_offsetof(struct iphdr, saddr), &src, sizeof(src), 0))
		return -1;
	return bpf_skb_store_bytes(skb, ETH_HLEN + __builtin_offsetof(struct iphdr, daddr), &dst, sizeof(dst), 0);
}

static __always_inline int repair_readdress6(struct __sk_buff *skb, const struct repair *r, const struct repair_target *t)
{
	const __u32 at = ETH_HLEN + __builtin_offsetof(struct ipv6hdr, hop_limit);
	__u8 hops;

	if (bpf_skb_load_bytes(skb, at, &hops, sizeof(hops)) || hops <= 1)
		return -1;
	hops--;
	if (bpf_skb_store_bytes(skb, at, &hops, sizeof(hops), BPF_F_RECOMPUTE_CSUM) ||
	    bpf_skb_store_bytes(skb, ETH_HLEN + __builtin_offsetof(struct ipv6hdr, saddr), r->source, 16, BPF_F_RECOMPUTE_CSUM))
		return -1;
	return bpf_skb_store_bytes(skb, ETH_HLEN + __builtin_offsetof(struct ipv6hdr, daddr), t->outer_dst, 16, BPF_F_RECOMPUTE_CSUM);
}

/* Names the target's member in GUE's metadata, and one hop; the UDP checksum is 0, as muxes write it. */
static __always_inline int repair_rename(struct __sk_buff *skb, const struct arrival *a, __u16 member)
{
	const __u32 at = a->outer.payload - sizeof(struct gue_header);
	const __u8 hop = 1 << 4;
	__be16 member_be = bpf_htons(member), none = 0;

	if (bpf_skb_store_bytes(skb, at + __builtin_offsetof(struct gue_header, hop), &hop, sizeof(hop), BPF_F_RECOMPUTE_CSUM) ||
	    bpf_skb_store_bytes(skb, at - 2, &none, sizeof(none), BPF_F_RECOMPUTE_CSUM))
		return -1;
	return bpf_skb_store_bytes(skb, at + __builtin_offsetof(struct gue_header, member_be), &member_be, sizeof(member_be), BPF_F_RECOMPUTE_CSUM);
}

/* Sends a packet on to the target by the uplink. */
static __noinline int send_on(struct __sk_buff *skb, const struct arrival *a, const struct repair *r, const struct repair_target *t,
			      __u32 member)
{
	if (tunnel_ecn_lost(&a->outer, &a->inner))
		return drop(HOST_REASON_IN_MALFORMED);
	if (dip_is4(t->outer_dst) == a->outer.is6)
		return drop(HOST_REASON_REPAIR_FAILED);
	if (a->kind == HOST_TUNNEL_GUE && repair_rename(skb, a, member))
		return drop(HOST_REASON_REPAIR_FAILED);
	if (a->outer.is6 ? repair_readdress6(skb, r, t) : repair_readdress4(skb, r, t))
		return drop(HOST_REASON_REPAIR_FAILED);
	count(HOST_REASON_REPAIRED_AWAY);
	return bpf_redirect_neigh(skb->ifindex, 0, 0, 0);
}

/* flow_doubtful returns 1 if a flow's record may be of a connection that its server gave up, whose client now uses its ports for a connection to another
 * member: the flow is closing, or it has cookies and its client is not known to be there. */
static __always_inline int flow_doubtful(const struct flow_found *f)
{
	__u32 class = tag_class(f->tag);

	return class == FLOW_CLASS_CLOSING || (class == FLOW_CLASS_UNTRUSTED && f->record.stamped);
}

/* What is to be done with a packet that came by binding `b` for which this host may not be the right one: a target, and its member id, or 0 for none. Sets *known
 * when that is because the host knows the packet's flow. */
static __always_inline const struct repair_target *repair_find(struct __sk_buff *skb, struct arrival *a, const struct binding *b,
							       const struct repair **r, __u32 *member, int *known)
{
	const struct repair_target *t;
	__u32 index = b->repair - 1, named;

	if (from_peer(&a->outer)) {
		count(HOST_REASON_REPAIR_ARRIVED);
		return 0;
	}
	*known = b->rewrite ? packet_known(skb, a, b) : socket_known(skb, a);
	if (*known && !(b->rewrite && flow_doubtful(&a->flow)))
		return 0;
	/* A cookie says more than the ring, and than a record that may be out of date. */
	named = cookie_named(skb, a, binding_cookie(b->index), b->rewrite);
	if (named == b->member)
		return 0;
	*r = bpf_map_lookup_elem(&repairs, &index);
	if (!*r)
		return 0;
	t = repair_target_at(*r, named);
	if (t) {
		*known = 0;
		*member = named;
		return t;
	}
	if (*known)
		return 0;
	t = repair_target_of(a, b, *r, member);
	if (!t)
		count(HOST_REASON_REPAIR_NOBODY);
	return t;
}

/* The binding by which a packet is delivered: its own, or that of another member of this host. 0: *verdict is the packet's. *known, 0 before: the host knows its flow. */
static __always_inline const struct binding *repair(struct __sk_buff *skb, struct arrival *a, const struct binding *b, int *verdict, int *known)
{
	const struct repair *r = 0;
	const struct repair_target *t;
	const struct binding *other;
	__u32 member = 0;

	t = repair_find(skb, a, b, &r, &member, known);
	if (!t || !r)
		return b;
	if (t->use == REPAIR_AWAY) {
		*verdict = send_on(skb, a, r, t, member);
		return 0;
	}
	view_copy16(a->outer.dst, t->outer_dst);
	if (a->kind == HOST_TUNNEL_GUE)
		a->member = member;
	other = find_binding(a, IPPROTO_TCP, a->t.dport_be);
	if (!other)
		return b;
	count(HOST_REASON_REPAIRED_HERE);
	return other;
}
