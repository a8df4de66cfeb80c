/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The host's data plane: two tcx programs on the uplink.
 *
 * host_in takes tunnel packets of the muxes out of their outer header, turns VIP:port into DIP:port and hands them to
 * the server; host_out turns the server's answers back, and they leave by the host's own route (direct return).
 * A packet that is none of ours is TCX_NEXT: the next program, then the kernel, untouched.
 *
 * Not here: ICMP errors about flows, fragments, and answers that do not leave by the uplink (a client on this machine).
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "lib/count.h"
#include "lib/tunnel.h"
#include "lib/nat.h"
#include "lib/mss.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Verdicts of tcx programs (Linux 6.6): the next program decides, or the packet goes its way at once. */
enum verdict {
	VERDICT_NEXT = -1,
	VERDICT_PASS = 0,
	VERDICT_DROP = 2,
};

/* BPF_F_IPV6 where the kernel knows it: without it a device's sum over an IPv6 packet (CHECKSUM_COMPLETE) goes wrong
 * when an address is replaced, and the kernel has to sum up again. */
const volatile __u64 host_ipv6_csum_flag = 0;

/* The version of abi.h that this object was built with. */
const volatile enum limit host_abi_version = LIMIT_ABI_VERSION;

/* What bpf_map_update_elem says of a key that is there (errno.h does not go with BPF). */
enum map_error {
	MAP_EXISTS = -17,
};

/* ---- maps */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct host_config);
	__uint(max_entries, 1);
} host_configs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct binding_key);
	__type(value, struct binding);
	__uint(max_entries, LIMIT_BINDINGS);
} bindings SEC(".maps");

/* Outer destinations that some binding has. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(key_size, 16);
	__uint(value_size, 4);
	__uint(max_entries, LIMIT_BINDINGS);
} outers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct owned_key);
	__type(value, struct owned);
	__uint(max_entries, LIMIT_BINDINGS);
} owned_vips SEC(".maps");

/* Flows by their answers. Least recently used ones make room: the next packet of the client brings such a flow back,
 * but an answer that comes before it leaves with the DIP as its source. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, struct flow_key);
	__type(value, struct flow);
	__uint(max_entries, LIMIT_FLOWS);
} flows SEC(".maps");

/* Flows whose client port was another's. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, struct substitute_key);
	__type(value, struct substitute);
	__uint(max_entries, LIMIT_SUBSTITUTES);
} substitutes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct counter);
	__uint(max_entries, LIMIT_BINDINGS);
} binding_counts SEC(".maps");

/* Keyed by an enum so that the enum reaches BTF and thereby Go. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, enum host_reason);
	__type(value, __u64);
	__uint(max_entries, LIMIT_REASONS);
} host_reasons SEC(".maps");
_Static_assert((int)HOST_REASON_MAX <= (int)LIMIT_REASONS, "a reason without a counter");

/* ---- helpers */

static __always_inline void count(enum host_reason reason)
{
	count_reason(&host_reasons, reason);
}

static __always_inline int drop(enum host_reason reason)
{
	count(reason);
	return VERDICT_DROP;
}

static __always_inline int not_ours(void)
{
	count(HOST_REASON_PASS_NOT_OURS);
	return VERDICT_NEXT;
}

/* A tunnel packet that cannot be delivered: ours to drop, or another's to pass. */
static __always_inline int refuse(const struct ip_view *outer, enum host_reason reason)
{
	if (!bpf_map_lookup_elem(&outers, outer->dst))
		return not_ours();
	return drop(reason);
}

static __always_inline enum host_reason parse_reason(int result)
{
	return result == PARSE_FRAGMENT ? HOST_REASON_IN_FRAGMENT : HOST_REASON_IN_MALFORMED;
}

/* Does the outer source lie in a tunnel source of the plan? */
static __always_inline int source_ok(const struct ip_view *outer)
{
	const __u32 *src = (const __u32 *)outer->src;
	__u32 zero = 0;
	struct host_config *c = bpf_map_lookup_elem(&host_configs, &zero);

	if (!c)
		return 0;
	if (!outer->is6)
		return (src[3] & c->source4_mask_be) == c->source4_be;
	return ((src[0] | (__u64)src[1] << 32) & c->source6_mask_be[0]) == c->source6_be[0] &&
	       ((src[2] | (__u64)src[3] << 32) & c->source6_mask_be[1]) == c->source6_be[1];
}

static __always_inline struct binding *find_binding(const struct ip_view *outer, const struct ip_view *inner,
						    const struct transport_view *t)
{
	struct binding_key key = {};

	tunnel_copy16(key.outer_dst, outer->dst);
	tunnel_copy16(key.vip, inner->dst);
	key.port_be = t->dport_be;
	key.protocol = inner->protocol;
	return bpf_map_lookup_elem(&bindings, &key);
}

/* ---- flow state */

/* Is this the flow that `want` describes? */
static __always_inline int flow_same(const struct flow *f, const struct flow *want)
{
	return tunnel_equal16(f->vip, want->vip) && f->vip_port_be == want->vip_port_be &&
	       f->client_port_be == want->client_port_be;
}

/* Makes `key` stand for `want`, or finds that it does. Returns 0, MAP_EXISTS (another's), or another negative error. */
static __always_inline int flow_take(const struct flow_key *key, const struct flow *want)
{
	struct flow *f = bpf_map_lookup_elem(&flows, key);
	int err;

	if (f)
		return flow_same(f, want) ? 0 : MAP_EXISTS;
	err = bpf_map_update_elem(&flows, key, want, BPF_NOEXIST);
	if (err != MAP_EXISTS)
		return err;
	/* Another CPU was faster: with a packet of the same flow, or not. */
	f = bpf_map_lookup_elem(&flows, key);
	return f && flow_same(f, want) ? 0 : MAP_EXISTS;
}

/* Gives a flow whose tuple is another's a client port of its own, and remembers it. Sets key->client_port_be. Global, so
 * that the verifier looks at it once. */
__noinline int flow_substitute(struct flow_key *key, const struct flow *want)
{
	struct substitute_key sub = {};
	struct substitute chosen = {}, *known;

	if (!key || !want)
		return -1;
	sub.flow = *key;
	tunnel_copy16(sub.vip, want->vip);
	sub.vip_port_be = want->vip_port_be;
	known = bpf_map_lookup_elem(&substitutes, &sub);
	if (known) {
		key->client_port_be = known->client_port_be;
		if (!flow_take(key, want))
			return 0;
	}
	for (__u32 i = 0; i < LIMIT_PORT_PROBES; i++) {
		key->client_port_be = chosen.client_port_be = nat_port(&sub, i);
		if (!flow_take(key, want))
			return bpf_map_update_elem(&substitutes, &sub, &chosen, BPF_ANY);
	}
	return MAP_EXISTS;
}

/* Finds or makes the state of the flow a packet belongs to; key->client_port_be becomes the port the server sees.
 * A flow that has a substitute port keeps it, also when its own tuple became free. */
static __always_inline int flow_enter(struct flow_key *key, const struct flow *want)
{
	struct flow *f = bpf_map_lookup_elem(&flows, key);
	struct substitute_key sub = {};
	int err;

	if (f && flow_same(f, want))
		return 0;
	if (f)
		return flow_substitute(key, want);
	sub.flow = *key;
	tunnel_copy16(sub.vip, want->vip);
	sub.vip_port_be = want->vip_port_be;
	if (bpf_map_lookup_elem(&substitutes, &sub))
		return flow_substitute(key, want);
	err = flow_take(key, want);
	return err == MAP_EXISTS ? flow_substitute(key, want) : err;
}

/* A client that opens a connection to a DIP itself, past the VIP, gets its answers from the DIP: a flow of the same ports
 * that went by a VIP is over. Global, so that the verifier looks at it once. */
__noinline int flow_forget(const struct ip_view *v, const struct transport_view *t)
{
	struct flow_key key = {};

	if (!v || !t)
		return -1;
	tunnel_copy16(key.dip, v->dst);
	tunnel_copy16(key.client, v->src);
	key.dip_port_be = t->dport_be;
	key.client_port_be = t->sport_be;
	key.protocol = v->protocol;
	return bpf_map_delete_elem(&flows, &key);
}

/* ---- delivery */

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
		tunnel_copy16(fib->ipv6_src, src);
		tunnel_copy16(fib->ipv6_dst, dst);
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
		tunnel_copy16(to.ipv6_nh, fib->ipv6_dst);
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
static __always_inline int owned_lost(const struct __sk_buff *skb, const struct bpf_fib_lookup *fib, const struct binding *b)
{
	if (b->rewrite || fib->ifindex != skb->ifindex)
		return 0;
	if (dip_is4(b->dip))
		return fib->family != FAMILY_IP4 || fib->ipv4_dst != ((const __u32 *)b->dip)[3];
	return !tunnel_equal16((const __u8 *)fib->ipv6_dst, b->dip);
}

/* Sends the bare packet to where the DIP is. What the FIB does not forward (a DIP of this machine, forwarding
 * switched off) or what does not fit the way is the stack's. */
static __always_inline int deliver(struct __sk_buff *skb, const struct ip_view *inner, const struct binding *b,
				   enum host_reason reason)
{
	struct bpf_fib_lookup fib;
	long r = route(skb, &fib, inner->src, b->dip);

	switch (r) {
	case BPF_FIB_LKUP_RET_SUCCESS:
		if (owned_lost(skb, &fib, b))
			break;
		count(reason);
		return forward(&fib);
	case BPF_FIB_LKUP_RET_NOT_FWDED:
	case BPF_FIB_LKUP_RET_FWD_DISABLED:
	case BPF_FIB_LKUP_RET_UNSUPP_LWT:
	case BPF_FIB_LKUP_RET_FRAG_NEEDED:
		if (!b->rewrite && !owned_local(skb, inner))
			return drop(HOST_REASON_IN_NO_ROUTE);
		count(reason);
		return VERDICT_PASS;
	}
	return drop(HOST_REASON_IN_NO_ROUTE);
}

/* ---- host_in */

/* Clamps a SYN; returns a reason to drop it, or 0. */
static __always_inline enum host_reason clamp_in(struct __sk_buff *skb, const struct transport_view *t, __u16 mss)
{
	switch (mss_clamp(skb, t, mss)) {
	case MSS_CLAMPED:
		count(HOST_REASON_MSS_CLAMPED);
		return 0;
	case MSS_MALFORMED:
		return HOST_REASON_IN_MALFORMED;
	case MSS_FAILED:
		return HOST_REASON_IN_ADJUST_FAILED;
	}
	return 0;
}

/* Turns the bare packet's VIP:port into DIP:port, and the client's port into its substitute if it has one. */
static __always_inline enum host_reason translate_in(struct __sk_buff *skb, const struct ip_view *inner,
						     const struct transport_view *t, const struct binding *b)
{
	struct flow_key key = {};
	struct flow want = {};
	struct nat n = { .dst = 1 };
	int err;

	tunnel_copy16(key.dip, b->dip);
	tunnel_copy16(key.client, inner->src);
	key.dip_port_be = b->port_be;
	key.client_port_be = t->sport_be;
	key.protocol = inner->protocol;
	tunnel_copy16(want.vip, inner->dst);
	want.vip_port_be = t->dport_be;
	want.client_port_be = t->sport_be;
	want.mss = b->mss;
	err = flow_enter(&key, &want);
	if (err)
		return err == MAP_EXISTS ? HOST_REASON_IN_NO_PORT : HOST_REASON_IN_STATE_FULL;
	if (key.client_port_be != t->sport_be)
		count(HOST_REASON_CLIENT_PORT_MAPPED);
	tunnel_copy16(n.addr, b->dip);
	n.sport_be = key.client_port_be;
	n.dport_be = b->port_be;
	return nat_apply(skb, inner, t, &n, host_ipv6_csum_flag) ? HOST_REASON_IN_ADJUST_FAILED : 0;
}

/* Out of the tunnel, translated, delivered. */
static __always_inline int accept(struct __sk_buff *skb, const struct ip_view *outer, const struct ip_view *inner,
				  struct transport_view *t, const struct binding *b)
{
	__u32 shift = outer->payload - ETH_HLEN;
	enum host_reason reason = 0;

	count_packet(&binding_counts, b->index, inner->end - outer->payload);
	if (t->syn)
		reason = clamp_in(skb, t, b->mss);
	if (reason)
		return drop(reason);
	/* A mark that the sender would not understand: the mux makes no such outer header (RFC 6040 section 4.2). */
	if (outer->ecn == ECN_CONGESTION && inner->ecn == ECN_NOT_CAPABLE)
		return drop(HOST_REASON_IN_MALFORMED);
	if (tunnel_strip(skb, outer, inner) || tunnel_mark(skb, outer, inner))
		return drop(HOST_REASON_IN_ADJUST_FAILED);
	if (!b->rewrite)
		return deliver(skb, inner, b, HOST_REASON_IN_UNTOUCHED);
	t->offset -= shift;
	t->csum_offset -= shift;
	reason = translate_in(skb, inner, t, b);
	if (reason)
		return drop(reason);
	return deliver(skb, inner, b, HOST_REASON_IN_DELIVERED);
}

SEC("tcx/ingress")
int host_in(struct __sk_buff *skb)
{
	struct ip_view outer = {}, inner = {};
	struct transport_view t = {};
	struct binding *b;
	int r;

	/* A tag that the device took off names another interface, whose route is not ours to look up. */
	if (skb->vlan_present || !(tunnel_candidate(skb) || tunnel_opening(skb)))
		return not_ours();
	r = frame_ip(skb, &outer);
	if (r == PARSE_OTHER || !tunnel_is(outer.protocol)) {
		if (!r && !transport_view(skb, &outer, &t) && t.syn)
			flow_forget(&outer, &t);
		return not_ours();
	}
	if (r)
		return refuse(&outer, parse_reason(r));
	if (!source_ok(&outer))
		return refuse(&outer, HOST_REASON_IN_BAD_SOURCE);
	if (outer.fragment)
		return refuse(&outer, HOST_REASON_IN_FRAGMENT);
	r = tunnel_inner(skb, &outer, &inner);
	if (r)
		return refuse(&outer, parse_reason(r));
	r = transport_view(skb, &inner, &t);
	if (r == PARSE_OTHER)
		return refuse(&outer, HOST_REASON_IN_NO_BINDING);
	if (r)
		return refuse(&outer, parse_reason(r));
	b = find_binding(&outer, &inner, &t);
	if (!b)
		return refuse(&outer, HOST_REASON_IN_NO_BINDING);
	return accept(skb, &outer, &inner, &t, b);
}

/* ---- host_out */

static __always_inline struct flow *find_flow(const struct ip_view *v, const struct transport_view *t)
{
	struct flow_key key = {};

	tunnel_copy16(key.dip, v->src);
	tunnel_copy16(key.client, v->dst);
	key.dip_port_be = t->sport_be;
	key.client_port_be = t->dport_be;
	key.protocol = v->protocol;
	return bpf_map_lookup_elem(&flows, &key);
}

/* A SYN-ACK of a VIP that its server owns is clamped; everything else of it is right already. */
static __always_inline int clamp_owned(struct __sk_buff *skb, const struct ip_view *v, const struct transport_view *t)
{
	struct owned_key key = {};
	struct owned *o;

	tunnel_copy16(key.vip, v->src);
	key.port_be = t->sport_be;
	key.protocol = v->protocol;
	o = bpf_map_lookup_elem(&owned_vips, &key);
	if (o && mss_clamp(skb, t, o->mss) == MSS_CLAMPED)
		count(HOST_REASON_MSS_CLAMPED);
	return not_ours();
}

/* Answers leave from the VIP, to the port that the client knows. */
static __always_inline int answer(struct __sk_buff *skb, const struct ip_view *v, const struct transport_view *t,
				  const struct flow *f)
{
	struct nat n = {};

	if (t->syn) {
		int r = mss_clamp(skb, t, f->mss);

		if (r == MSS_FAILED)
			return drop(HOST_REASON_OUT_REWRITE_FAILED);
		if (r == MSS_CLAMPED)
			count(HOST_REASON_MSS_CLAMPED);
	}
	tunnel_copy16(n.addr, f->vip);
	n.sport_be = f->vip_port_be;
	n.dport_be = f->client_port_be;
	if (nat_apply(skb, v, t, &n, host_ipv6_csum_flag))
		return drop(HOST_REASON_OUT_REWRITE_FAILED);
	count(HOST_REASON_OUT_RETURNED);
	return VERDICT_NEXT;
}

SEC("tcx/egress")
int host_out(struct __sk_buff *skb)
{
	struct ip_view v = {};
	struct transport_view t = {};
	struct flow *f;
	int r;

	if (skb->vlan_present || frame_ip(skb, &v))
		return not_ours();
	r = transport_view(skb, &v, &t);
	if (r == PARSE_FRAGMENT && v.fragment == 1 && !ports_view(skb, &v, &t) && find_flow(&v, &t))
		return drop(HOST_REASON_OUT_FRAGMENT);
	if (r)
		return not_ours();
	f = find_flow(&v, &t);
	if (f)
		return answer(skb, &v, &t, f);
	if (t.syn)
		return clamp_owned(skb, &v, &t);
	return not_ours();
}
