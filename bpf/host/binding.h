/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of host.bpf.c: what came through a tunnel, and whose it is. */

/* A tunnel packet that cannot be delivered: ours to drop, or another's to pass. */
static __always_inline int refuse(const struct arrival *a, enum host_reason reason)
{
	const __u32 *kinds = bpf_map_lookup_elem(&outers, a->outer.dst);

	if (!kinds || !(*kinds & a->kind))
		return not_ours();
	return drop(reason);
}

static __always_inline const struct host_config *config(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&host_configs, &zero);
}

/* Does the outer source lie in a tunnel source of another Network, or of switches: enum host_source, or 0. */
static __noinline __u32 other_source(const struct ip_view *outer)
{
	struct tunnel_source k = { .bits = 128 };
	const __u32 *of;

	view_copy16(k.addr, outer->src);
	of = bpf_map_lookup_elem(&tunnel_sources, &k);
	return of ? *of : 0;
}

/* Does the outer source lie in a tunnel source of the plan: enum host_source, or 0. */
static __always_inline __u32 source_ok(const struct ip_view *outer)
{
	const __u32 *src = (const __u32 *)outer->src;
	const struct host_config *c = config();
	int ok;

	if (!c)
		return 0;
	if (!outer->is6)
		ok = (src[3] & c->source4_mask_be) == c->source4_be;
	else
		ok = ((src[0] | (__u64)src[1] << 32) & c->source6_mask_be[0]) == c->source6_be[0] &&
		     ((src[2] | (__u64)src[3] << 32) & c->source6_mask_be[1]) == c->source6_be[1];
	if (ok)
		return HOST_SOURCE_MUX;
	return c->flags & HOST_SOURCES ? other_source(outer) : 0;
}

/* Did the packet come from another host? Then it was sent on once already. */
static __always_inline int from_peer(const struct ip_view *outer)
{
	return bpf_map_lookup_elem(&peers, outer->src) != 0;
}

/* Finds the binding of a VIP's port: the port's own, else that of a range, else of all ports of the protocol, else of
 * all protocols. */
static __noinline const struct binding *find_binding(const struct arrival *a, __u8 protocol, __be16 port)
{
	const struct host_config *c = config();
	struct binding_prefix k = { .bits = PREFIX_BITS + PREFIX_PORT_BITS };
	const struct binding *b;

	/* What comes back for servers' own connections names no member; neither do bindings of IP in IP. */
	if (a->kind == HOST_TUNNEL_GUE && a->member == GUE_NO_MEMBER)
		return 0;
	view_copy16(k.key.outer_dst, a->outer.dst);
	view_copy16(k.key.vip, a->inner.dst);
	k.key.vni = a->vni;
	k.key.member = a->member;
	k.key.protocol = protocol;
	k.key.by = a->by;
	k.key.port_be = port;
	b = bpf_map_lookup_elem(&bound_members, &k.key);
	if (!b && c && c->flags & HOST_RANGES)
		b = bpf_map_lookup_elem(&bound_ranges, &k);
	if (!b && c && c->flags & HOST_ANY) {
		k.key.protocol = BINDING_ANY;
		k.key.port_be = 0;
		b = bpf_map_lookup_elem(&bound_members, &k.key);
	}
	return b;
}
