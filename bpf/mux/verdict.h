/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* How packets end: verdicts with their counted reasons. */
#ifndef SHUNT_MUX_VERDICT_H
#define SHUNT_MUX_VERDICT_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "lib/count.h"
#include "mux/tables.h"

/* note counts a reason. */
static __always_inline void note(enum mux_reason reason)
{
	count_reason_in(&reasons, LIMIT_REASONS, reason);
}

/* drop counts the reason and ends the packet. */
static __always_inline int drop(enum mux_reason reason)
{
	note(reason);
	return XDP_DROP;
}

/* pass counts the reason and hands the packet to the kernel. */
static __always_inline int pass(enum mux_reason reason)
{
	note(reason);
	return XDP_PASS;
}

/* count_refused counts a packet of an endpoint that goes to no member: `value` is the value word of its slot. */
static __always_inline void count_refused(__u64 value, __u32 l3_len)
{
	count_packet_in(&endpoint_counts, endpoint_region, (__u32)value - ENDPOINT_SLOT_FIRST, l3_len);
}

/* refuse counts such a packet and ends it. */
static __always_inline int refuse(__u64 value, __u32 l3_len, enum mux_reason reason)
{
	count_refused(value, l3_len);
	return drop(reason);
}

/* bounce sends the packet out of the interface it came in by. */
static __always_inline int bounce(struct xdp_md *ctx)
{
	return bounce_redirects ? bpf_redirect(ctx->ingress_ifindex, 0) : XDP_TX;
}

#endif
