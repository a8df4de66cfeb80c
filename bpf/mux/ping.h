/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Echo requests to VIPs. */
#ifndef SHUNT_MUX_PING_H
#define SHUNT_MUX_PING_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "lib/icmp.h"
#include "lib/parse.h"
#include "mux/admit.h"
#include "mux/aside.h"
#include "mux/find.h"
#include "mux/martian.h"
#include "mux/tables.h"
#include "mux/verdict.h"

/* ping_denied says whether the VIP whose slot has this index does not take the source. */
static __always_inline int ping_denied(const struct packet *p, __u32 vip)
{
	struct endpoint_slot *slot = slot_at(vip);
	struct vip_guard *g = slot ? guard_of(*(volatile __u64 *)&slot->extra) : 0;

	return g && source_refused(g, p->src_hi, p->src_lo);
}

/* ping_allowed takes a token from the bucket of the VIP whose slot has this index. */
static __always_inline int ping_allowed(__u32 vip)
{
	struct endpoint_slot *slot = slot_at(vip);
	__u32 index, rate;
	__u64 *bucket;

	if (!slot)
		return 0;
	index = *(volatile __u64 *)&slot->value - ENDPOINT_SLOT_FIRST;
	rate = *(volatile __u64 *)&slot->policy;
	bucket = bpf_map_lookup_elem(&pings, &index);
	return bucket && mux_take(bucket, rate ? rate : LIMIT_PING_RATE);
}

/* ping answers an ICMP echo request to the VIP whose slot has index `vip`, or says why not. */
static __noinline int ping(struct xdp_md *ctx, const struct packet *p, __u32 vip, const struct aside *aside)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	int reason = icmp_check(ctx, data, end, p);

	if (reason)
		return drop(reason);
	if (is_martian(p))
		return drop(MUX_REASON_ICMP_IGNORED);
	if (ping_denied(p, vip))
		return drop(MUX_REASON_SOURCE_DENIED);
	if (!ping_allowed(vip))
		return drop(MUX_REASON_PING_LIMITED);
	if (!icmp_turn(data, end, p))
		return drop(MUX_REASON_TRUNCATED);
	return answer(ctx, aside, MUX_REASON_ECHO_REPLIED);
}

#endif
