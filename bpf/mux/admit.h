/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Whether an endpoint takes a packet: limits of its VIP, sources of its service. */
#ifndef SHUNT_MUX_ADMIT_H
#define SHUNT_MUX_ADMIT_H

#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "lib/limit.h"
#include "lib/parse.h"
#include "lib/source.h"
#include "mux/tables.h"

/* guard_of is the guard that the extra word of a slot leads to, or nothing. */
static __always_inline struct vip_guard *guard_of(__u64 extra)
{
	__u32 index = (__u32)extra - 1;
	const struct endpoint_extra *e = bpf_map_lookup_elem(&endpoint_extras, &index);

	if (!e)
		return 0;
	index = e->guard - 1;
	return bpf_map_lookup_elem(&vip_guards, &index);
}

/* source_refused says whether the VIP of a guard does not take a source, given as its two halves as stored. An
 * IPv6 packet from an IPv4-mapped address has the source that is mapped. */
static __always_inline int source_refused(const struct vip_guard *g, __u64 src_hi, __u64 src_lo)
{
	__u64 sources = *(volatile __u64 *)&g->sources;
	int v6 = !is_mapped(src_hi, src_lo);

	return sources && source_denied(&source_lists, &source_words, sources - 1, src_hi, src_lo, v6);
}

/* admit says why a packet of an endpoint with ENDPOINT_ADMIT is refused, 0 when it is not. `extra` is the slot's word. What
 * is refused for its source takes nothing from the limits. */
__attribute__((noinline)) int admit(__u64 extra, __u64 src_hi, __u64 src_lo)
{
	struct vip_guard *g = guard_of(extra);

	if (!g)
		return 0;
	if (source_refused(g, src_hi, src_lo))
		return MUX_REASON_SOURCE_DENIED;
	if (!limit_take(&g->packets_spent, *(volatile __u64 *)&g->packets_interval, limit_window, mux_now()))
		return MUX_REASON_RATE_LIMITED;
	return 0;
}

/* admit_flow says why a new flow of an endpoint with ENDPOINT_ADMIT is refused, 0 when it is not. Asked once for every
 * segment with SYN, and for other packets that the flow table does not know and would remember. */
__attribute__((noinline)) int admit_flow(__u64 extra)
{
	struct vip_guard *g = guard_of(extra);

	if (!g || limit_take(&g->flows_spent, *(volatile __u64 *)&g->flows_interval, limit_window, mux_now()))
		return 0;
	return MUX_REASON_NEW_FLOW_LIMITED;
}

/* admit_answer says why an answer to a server's own connection is refused, 0 when it is not: it is beyond the packets per second of its VIP, to which it counts as packets of
 * endpoints do. `extra` is the word of the VIP's slot. The source list is of endpoints: a server may open connections to any address. */
__attribute__((noinline)) int admit_answer(__u64 extra)
{
	struct vip_guard *g = guard_of(extra);

	if (!g || limit_take(&g->packets_spent, *(volatile __u64 *)&g->packets_interval, limit_window, mux_now()))
		return 0;
	return MUX_REASON_RATE_LIMITED;
}

#endif
