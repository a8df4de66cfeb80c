/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of host.bpf.c: the way to a DIP. */

/* Where a packet goes, and what is counted when it does. */
struct destination {
	__u8 dip[16];
	enum host_reason reason;
	__u32 rewrite; /* 0: the packet's destination is an owned VIP */
};

static __always_inline int dip_is4(const __u8 *dip)
{
	const __u32 *w = (const __u32 *)dip;

	return !w[0] && !w[1] && w[2] == bpf_htonl(0xffff);
}

/* Address families (linux/socket.h does not have them). */
enum family {
	FAMILY_IP4 = 2,
	FAMILY_IP6 = 10,
};

/* Looks up the way to dst as if a packet from src had come in by the uplink. */
static __always_inline long route(struct __sk_buff *skb, struct bpf_fib_lookup *fib, const __u8 *src, const __u8 *dst)
{
	__builtin_memset(fib, 0, sizeof(*fib));
	fib->ifindex = skb->ifindex;
	if (dip_is4(dst)) {
		fib->family = FAMILY_IP4;
		fib->ipv4_src = ((const __u32 *)src)[3];
		fib->ipv4_dst = ((const __u32 *)dst)[3];
	} else {
		fib->family = FAMILY_IP6;
		view_copy16(fib->ipv6_src, src);
		view_copy16(fib->ipv6_dst, dst);
	}
	return bpf_fib_lookup(skb, fib, sizeof(*fib), BPF_FIB_LOOKUP_SKIP_NEIGH);
}

static __always_inline int forward(const struct bpf_fib_lookup *fib)
{
	struct bpf_redir_neigh to = {};

	to.nh_family = fib->family;
	if (fib->family == FAMILY_IP4)
		to.ipv4_nh = fib->ipv4_dst;
	else
		view_copy16(to.ipv6_nh, fib->ipv6_dst);
	return bpf_redirect_neigh(fib->ifindex, &to, sizeof(to), 0);
}

/* Up the stack with a packet for an owned VIP is right only if the VIP is local: otherwise the kernel would route it
 * back to the muxes, around and around. */
static __always_inline int owned_local(struct __sk_buff *skb, const struct ip_view *inner)
{
	struct bpf_fib_lookup fib;
	long r = route(skb, &fib, inner->src, inner->dst);

	return r == BPF_FIB_LKUP_RET_NOT_FWDED || r == BPF_FIB_LKUP_RET_FWD_DISABLED;
}

/* Would a packet for an owned VIP leave by the uplink to a router? That would send it back to the muxes, around and
 * around. */
static __always_inline int owned_lost(const struct __sk_buff *skb, const struct bpf_fib_lookup *fib, const __u8 *dip)
{
	if (fib->ifindex != skb->ifindex)
		return 0;
	if (dip_is4(dip))
		return fib->family != FAMILY_IP4 || fib->ipv4_dst != ((const __u32 *)dip)[3];
	return !view_equal16((const __u8 *)fib->ipv6_dst, dip);
}

/* Sends the bare packet to where the DIP is. What the FIB does not forward (a DIP of this machine, forwarding
 * switched off) or what does not fit the way is the stack's. Global, so that the verifier looks at it once. */
__noinline int deliver(struct __sk_buff *skb, const struct ip_view *inner, const struct destination *to)
{
	struct bpf_fib_lookup fib;
	long r;

	if (!inner || !to)
		return VERDICT_DROP;
	r = route(skb, &fib, inner->src, to->dip);
	switch (r) {
	case BPF_FIB_LKUP_RET_SUCCESS:
		if (!to->rewrite && owned_lost(skb, &fib, to->dip))
			break;
		count(to->reason);
		return forward(&fib);
	case BPF_FIB_LKUP_RET_NOT_FWDED:
	case BPF_FIB_LKUP_RET_FWD_DISABLED:
	case BPF_FIB_LKUP_RET_UNSUPP_LWT:
	case BPF_FIB_LKUP_RET_FRAG_NEEDED:
		if (!to->rewrite && !owned_local(skb, inner))
			break;
		count(to->reason);
		return to->rewrite || !host_openings ? VERDICT_PASS : VERDICT_NEXT;
	}
	return drop(HOST_REASON_IN_NO_ROUTE);
}
