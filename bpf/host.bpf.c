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
#include "lib/seq.h"
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
const volatile enum host_reason_class host_reason_class_known = 0;
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
#include "host/arrival.h"
#include "host/tables.h"

/* ---- parts; each uses those above it */

#include "host/verdict.h"
#include "host/binding.h"
#include "host/clock.h"
#include "host/meter.h"
#include "host/shares.h"
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
#include "host/arrive.h"

/* ---- host_in */

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
