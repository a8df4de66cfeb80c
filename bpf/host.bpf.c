/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The host's data plane: two tcx programs on the uplink, and one on each device that servers are behind.
 *
 * host_in takes tunnel packets of the muxes (IP in IP, GUE) out of their outer header, turns VIP:port into DIP:port and
 * hands them to the server; host_out turns the server's answers back, and they leave by the host's own route (direct
 * return). ICMP errors are translated with what they quote, and fragments follow their first one.
 * What servers say on connections that they open themselves leaves with a VIP and a port leased to them, and what comes back finds them
 * (host/snat*.h).
 * host_serve sees first what servers send, on the ingress of their devices, and drops what they may not send: by others' addresses, or
 * into the muxes' tunnels. Answers to clients on this machine it translates itself.
 * A packet that is none of ours is TCX_NEXT: the next program, then the kernel, untouched.
 *
 * Not here: on the uplink, frames with a VLAN tag.
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
#include "lib/quote.h"
#include "lib/hash.h"
#include "lib/tag.h"
#include "lib/ring.h"
#include "lib/vlan.h"
#include "lib/timestamp.h"
#include "lib/cookie.h"
#include "lib/short_cookie.h"
#include "lib/evc.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* BPF_F_IPV6 where the kernel knows it: without it a device's sum over an IPv6 packet (CHECKSUM_COMPLETE) goes wrong
 * when an address is replaced, and the kernel has to sum up again. */
const volatile __u64 host_ipv6_csum_flag = 0;

/* The version of the host's part of abi.h that this object was built with. */
const volatile enum host_limit host_abi_version = LIMIT_HOST_ABI_VERSION;

/* All flags that this object knows (and their way into BTF). */
const volatile enum host_flag host_flags_known = HOST_RANGES | HOST_ANY | HOST_SOURCES | HOST_GUARD | HOST_STRICT;

/* What of repair Go has to know (and its way into BTF). */
const volatile enum repair_limit repair_limit_peers = LIMIT_PEERS;
const volatile enum repair_flow repair_flow_usual = REPAIR_PORTS;
const volatile enum host_source host_source_usual = HOST_SOURCE_MUX;
/* Of no use but that these enums reach BTF. */
const volatile enum flow_tag flow_tag_known = 0;
const volatile enum flow_kind flow_kind_known = 0;
const volatile enum flow_record_flag flow_flags_known = 0;
const volatile enum idle_class idle_class_known = 0;
const volatile enum host_snat_limit snat_limit_known = 0;
const volatile enum meter_limit meter_limit_known = LIMIT_METERS;
const volatile enum meter_direction meter_direction_known = METER_IN;

const volatile enum host_cookie_limit cookie_limit_known = LIMIT_HOST_COOKIE_KEYS;
const volatile enum host_cookie_use cookie_use_known = 0;
const volatile enum binding_cookie binding_cookie_known = BINDING_COOKIE_MEMBER_BITS;
const volatile enum evc_flag evc_flag_known = 0;

/* Time bits of a stamp. Only tests make them fewer, so that clocks go round faster. */
const volatile __u32 host_time_bits = COOKIE_TIME_BITS;

/* Buckets of flow_tags less one, and the key of their hash. */
const volatile __u32 flow_mask = 0;
const volatile struct siphash_key flow_key = {};

/* 1: time is host_test_now. */
const volatile __u32 host_test_clock = 0;
volatile __u64 host_test_now = 0;

/* Not 0 once there may be flows with FLOW_BESIDE; of a table that was taken over there may be. */
volatile __u32 host_flows_beside = 0;

/* Not 0 while host_co is behind host_in (hostco.bpf.c): what is for an owned VIP goes on to it. */
volatile __u32 host_openings = 0;

/* Nanoseconds that the clock that muxes and hosts share is ahead of CLOCK_MONOTONIC: what servers that own the VIP have of cookies is read with it. */
volatile __u64 host_ahead = 0;

/* Not 0 once flows have clocks. */
volatile __u32 host_flows_stamped = 0;

#include "host/name.h"

/* What is to be written into the options of a segment. */
struct stamp {
	struct timestamp ts;  /* as it came */
	__u32 at;             /* of a timestamp, from the beginning of the TCP header; 0: nothing is */
	__be32 value;
	__u32 sum;            /* the difference that all of it makes to the checksum */
	__u32 mptcp;          /* of a byte; 0: none */
	__u8 flags;           /* that byte */
	__u8 rsv[7];
};

/* A packet that came through a tunnel. */
struct arrival {
	struct ip_view outer;      /* payload: of the inner packet */
	struct ip_view inner;
	struct transport_view t;   /* of the inner packet */
	struct quote q;            /* in it, if it is an ICMP error */
	enum host_tunnel kind;
	__u32 vni;
	__u16 member;              /* GUE_NO_MEMBER with IPIP */
	__u8 by;                   /* 1: from a switch, until a member is chosen */
	__u8 spread;               /* 1: this host chose the member */
	__u8 router[16];
	/* Of what came from a switch. */
	__u8 host[16];             /* outer destination */
	__be16 sought_be;          /* port and protocol of the endpoint */
	__u8 sought;
	__u8 rsv[5];
	/* Not cleared before: of a packet whose flow was looked for. */
	struct flow_name name;
	struct flow_record want;
	struct flow_found flow;
	struct flow_spare spare;
	struct stamp stamp; /* of a segment of a flow with a cookie */
	struct evc clock;   /* of that flow before it, and after: too large for the stack */
	struct evc after;
};

/* ---- maps */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct host_config);
	__uint(max_entries, 1);
} host_configs SEC(".maps");

/* Tunnel sources beyond those of the configuration; values are of enum host_source. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct tunnel_source);
	__type(value, __u32);
	__uint(max_entries, LIMIT_TUNNEL_SOURCES);
} tunnel_sources SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct binding_key);
	__type(value, struct binding);
	__uint(max_entries, LIMIT_BINDINGS);
} bound_members SEC(".maps");

/* Bindings of ranges of ports; a range's parts are copies of one binding. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct binding_prefix);
	__type(value, struct binding);
	__uint(max_entries, LIMIT_BINDING_PREFIXES);
} bound_ranges SEC(".maps");

/* Outer destinations that some binding has, and by which tunnels: enum host_tunnel. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(key_size, 16);
	__type(value, enum host_tunnel);
	__uint(max_entries, LIMIT_BINDINGS);
} outers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct owned_key);
	__type(value, struct owned);
	__uint(max_entries, LIMIT_BINDINGS);
} owned_vips SEC(".maps");

/* The flow table (host/flow.h): buckets, and eight records to each. The agent makes them with as many as it is told. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct flow_tags);
	__uint(max_entries, LIMIT_HOST_FLOWS_MIN / LIMIT_FLOW_BUCKET);
} flow_tags SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct flow_record);
	__uint(max_entries, LIMIT_HOST_FLOWS_MIN);
} flow_records SEC(".maps");

/* Beside flow_records. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct evc);
	__uint(max_entries, LIMIT_HOST_FLOWS_MIN);
} flow_cookies SEC(".maps");

/* VIPs whose packets carry cookies. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct host_cookie_keys);
	__uint(max_entries, LIMIT_HOST_COOKIE_KEYS);
} cookie_keys SEC(".maps");

/* Addresses that records name; one stays as long as a flow may name it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__uint(value_size, 16);
	__uint(max_entries, LIMIT_FLOW_ADDRS);
} flow_addrs SEC(".maps");

/* By the index of a binding's counter; written before the binding. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct binding_flow);
	__uint(max_entries, LIMIT_BINDINGS);
} binding_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct flow_setup);
	__uint(max_entries, 1);
} flow_setups SEC(".maps");

/* Endpoints from which something was displaced lately, their slots and their targets: memory-mapped. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct repair);
	__uint(max_entries, LIMIT_REPAIRS);
} repairs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64); /* two slots, the first in the lower half: elements of maps have whole words */
	__uint(max_entries, LIMIT_REPAIR_SLOTS / 2);
} repair_slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct repair_target);
	__uint(max_entries, LIMIT_REPAIR_TARGETS);
} repair_targets SEC(".maps");

/* The value is an enum so that it reaches BTF and thereby Go: what hosts send on comes from these addresses; the value says nothing. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(key_size, 16);
	__type(value, enum repair_use);
	__uint(max_entries, LIMIT_PEERS);
} peers SEC(".maps");

/* Prefixes of the plan's Networks. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct network_prefix);
	__type(value, enum network_kind);
	__uint(max_entries, LIMIT_NETWORKS);
} networks SEC(".maps");

/* Who may send from which address. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct sender_key);
	__type(value, enum sender_use);
	__uint(max_entries, LIMIT_SENDERS);
} senders SEC(".maps");

/* Addresses of SNAT, 4 bytes each: DIPs whose connections leave with a VIP, and those VIPs. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(key_size, 4);
	__type(value, enum host_snat_addr);
	__uint(max_entries, 2 * LIMIT_HOST_SNAT_HOLDERS);
} snat_addrs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct host_snat_holder);
	__uint(max_entries, LIMIT_HOST_SNAT_HOLDERS);
} snat_holders SEC(".maps");

/* A DIP's block is written before it is named, and not written again while it may be read, but for `used`. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct host_snat_range);
	__uint(max_entries, LIMIT_HOST_SNAT_RANGES);
} snat_ranges SEC(".maps");

/* Destinations that servers' connections go to without SNAT; the value says nothing. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct host_snat_prefix);
	__type(value, __u32);
	__uint(max_entries, LIMIT_HOST_SNAT_INSIDE);
} snat_inside_of SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct host_snat_setup);
	__uint(max_entries, 1);
} snat_setups SEC(".maps");

/* Indices of DIPs whose ports get scarce: for the agent that is there. Not pinned. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, LIMIT_HOST_SNAT_LOWS);
} snat_lows SEC(".maps");

/* Datagrams in fragments. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, struct datagram_key);
	__type(value, struct datagram);
	__uint(max_entries, LIMIT_DATAGRAMS);
} datagrams SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct counter);
	__uint(max_entries, LIMIT_BINDINGS);
} binding_counts SEC(".maps");

/* What clients' connections came to, by the index of the binding's counter. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct handshakes);
	__uint(max_entries, LIMIT_BINDINGS);
} binding_asks SEC(".maps");
_Static_assert((int)LIMIT_BINDINGS <= 1 << 16, "an index that does not fit into struct flow_record");

/* Established flows, by the index of the binding's counter: shared by all CPUs, for one changes it only when a connection begins or ends. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct flow_count);
	__uint(max_entries, LIMIT_BINDINGS);
} flow_counts SEC(".maps");

/* What servers get and send, by their number in flow_addrs. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct server_meter);
	__uint(max_entries, LIMIT_METERS);
} server_meters SEC(".maps");

/* Keyed by an enum so that the enum reaches BTF and thereby Go. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, enum host_reason);
	__type(value, __u64);
	__uint(max_entries, LIMIT_REASONS);
} host_reasons SEC(".maps");
_Static_assert((int)HOST_REASON_MAX <= (int)LIMIT_REASONS, "a reason without a counter");

/* The packet that host_in looks at, and the flow that either program found: too large for the stack. Not pinned. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct arrival);
	__uint(max_entries, 1);
} arrivals SEC(".maps");

/* ---- parts; each uses those above it */

#include "host/verdict.h"
#include "host/binding.h"
#include "host/clock.h"
#include "host/meter.h"
#include "host/flow.h"
#include "host/track.h"
#include "host/client.h"
#include "host/handshake.h"
#include "host/cookie.h"
#include "host/deliver.h"
#include "host/hairpin.h"
#include "host/beside.h"
#include "host/datagram.h"
#include "host/packet.h"
#include "host/repair.h"
#include "host/spread.h"
#include "host/accept.h"
#include "host/answer.h"
#include "host/snat_port.h"
#include "host/snat_track.h"
#include "host/snat.h"
#include "host/snat_in.h"
#include "host/icmp.h"
#include "host/sent.h"
#include "host/guard.h"
#include "host/serve.h"

/* ---- host_in */

/* A packet out of a tunnel finds its binding. */
static __always_inline int arrive(struct __sk_buff *skb, struct arrival *a)
{
	const struct binding *b;
	int r = PARSE_OTHER;

	if (a->inner.fragment == 2)
		return follow(skb, a);
	if (quote_possible(&a->inner))
		r = quote_view(skb, &a->inner, &a->q);
	if (r == PARSE_OK) {
		if (a->by)
			spread_quoted(skb, a);
		return accept_error(skb, a);
	}
	if (r == PARSE_OTHER)
		r = transport_view(skb, &a->inner, &a->t);
	if (r == PARSE_MALFORMED)
		return refuse(a, HOST_REASON_IN_MALFORMED);
	if (a->by)
		spread(skb, a, a->inner.protocol, a->t.dport_be);
	b = find_binding(a, a->inner.protocol, a->t.dport_be);
	if (!b)
		return snat_arrive(skb, a);
	/* Other messages of ICMP are not translated: their answers quote nothing to know them by. */
	if (b->rewrite && quote_protocol(&a->inner))
		return refuse(a, HOST_REASON_IN_NO_BINDING);
	return accept_packet(skb, a, b);
}

/* Takes what GUE says of a packet into the arrival; returns a reason to refuse it, or 0. */
static __always_inline enum host_reason arrive_gue(struct __sk_buff *skb, struct arrival *a)
{
	struct gue_header g;

	switch (gue_payload(skb, &a->outer, &g)) {
	case PARSE_OK:
		a->vni = bpf_ntohl(g.vni_be) >> 8;
		a->member = bpf_ntohs(g.member_be);
		return 0;
	case PARSE_OTHER:
		return HOST_REASON_IN_GUE_UNKNOWN;
	}
	return HOST_REASON_IN_MALFORMED;
}

/* A frame without a tunnel is not ours, but a SYN among them may end a flow. */
static __always_inline int pass_by(struct __sk_buff *skb, struct arrival *a)
{
	if (a->outer.protocol == IPPROTO_TCP && !transport_view(skb, &a->outer, &a->t) && a->t.syn)
		flow_forget(&a->outer, &a->t);
	return not_ours();
}

/* A packet that may have come by a tunnel. */
static __always_inline int look(struct __sk_buff *skb, struct arrival *a)
{
	enum host_reason reason = 0;
	int r = frame_ip(skb, &a->outer);
	__u32 source;

	if (r == PARSE_OTHER)
		return not_ours();
	if (r)
		a->kind = tunnel_is(a->outer.protocol) ? HOST_TUNNEL_IPIP : 0;
	else
		a->kind = tunnel_kind(skb, &a->outer);
	if (!a->kind)
		return r ? not_ours() : pass_by(skb, a);
	if (r)
		return refuse(a, parse_reason(r));
	source = source_ok(&a->outer);
	if (!source && !from_peer(&a->outer))
		return refuse(a, HOST_REASON_IN_BAD_SOURCE);
	if (a->outer.fragment)
		return refuse(a, HOST_REASON_IN_FRAGMENT);
	a->member = GUE_NO_MEMBER;
	/* GUE names the member. */
	a->by = source == HOST_SOURCE_SWITCH && a->kind == HOST_TUNNEL_IPIP;
	if (a->kind == HOST_TUNNEL_GUE)
		reason = arrive_gue(skb, a);
	if (reason)
		return refuse(a, reason);
	r = tunnel_inner(skb, &a->outer, &a->inner);
	if (r)
		return refuse(a, parse_reason(r));
	return arrive(skb, a);
}

SEC("tcx/ingress")
int host_in(struct __sk_buff *skb)
{
	struct arrival *a;
	__u32 zero = 0;

	/* A tag that the device took off names another interface, whose route is not ours to look up. */
	if (skb->vlan_present || !(tunnel_candidate(skb) || tunnel_opening(skb)))
		return not_ours();
	a = bpf_map_lookup_elem(&arrivals, &zero);
	if (!a)
		return not_ours();
	__builtin_memset(a, 0, __builtin_offsetof(struct arrival, name));
	return look(skb, a);
}

/* ---- host_out */

/* Could this packet without ports be of an endpoint for all protocols? */
static __always_inline int plain_possible(void)
{
	const struct host_config *c = config();

	return c && c->flags & HOST_ANY;
}

SEC("tcx/egress")
int host_out(struct __sk_buff *skb)
{
	struct ip_view v = {};
	struct transport_view t = {};
	struct arrival *scratch;
	__u32 zero = 0;
	int r;

	if (skb->vlan_present || frame_ip(skb, &v))
		return not_ours();
	r = transport_view(skb, &v, &t);
	if (r == PARSE_FRAGMENT)
		return follow_out(skb, &v, 0);
	if (r == PARSE_MALFORMED)
		return not_ours();
	if (quote_possible(&v)) {
		r = answer_icmp(skb, &v, 0);
		return r == VERDICT_OPEN ? leave(skb, &v, &t) : r;
	}
	if (!t.ports && !plain_possible())
		return leave(skb, &v, &t);
	scratch = bpf_map_lookup_elem(&arrivals, &zero);
	if (scratch && find_flow(&v, &t, &scratch->name, &scratch->flow)) {
		if (scratch->flow.record.peer_port_be != scratch->flow.record.client_port_be)
			client_keep(&scratch->flow, &scratch->spare);
		return answer(skb, &v, &t, scratch, 0);
	}
	return leave(skb, &v, &t);
}

/* ---- host_serve */

/* Every step returns a reason to drop the frame, or 0. What is not IP is not looked at. */
SEC("tcx/ingress")
int host_serve(struct __sk_buff *skb)
{
	struct sent s = {};
	enum host_reason reason;

	if (!sent_view(skb, &s))
		return VERDICT_NEXT;
	reason = sent_whole(skb, &s);
	if (!reason)
		reason = guard(skb, &s);
	if (reason)
		return drop(reason);
	if (host_flows_beside && !s.tagged && !s.result)
		return serve_beside(skb, &s.v);
	return VERDICT_NEXT;
}
