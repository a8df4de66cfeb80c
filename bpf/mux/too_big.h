/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Packets that do not fit the tunnel. */
#ifndef SHUNT_MUX_TOO_BIG_H
#define SHUNT_MUX_TOO_BIG_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include "abi.h"
#include "lib/icmp.h"
#include "lib/parse.h"
#include "lib/ptb.h"
#include "mux/aside.h"
#include "mux/find.h"
#include "mux/tables.h"
#include "mux/verdict.h"

/* may_fragment says whether routers on the way might have made the packet smaller: IPv4 without DF. */
static __always_inline int may_fragment(struct xdp_md *ctx, const struct packet *p)
{
	const void *data = (const void *)(long)ctx->data, *end = (const void *)(long)ctx->data_end;
	const struct iphdr *ip = data + ETH_HLEN;

	return p->family == 4 && ((const void *)(ip + 1) > end || !(ip->frag_off & bpf_htons(ENCAP_DF)));
}

/* too_big_allowed takes a token from the packet-too-big bucket of the packet's VIP. Each VIP has its own, because a client that
 * ignores the answers to one VIP must not create a path MTU black hole for the clients of the others. */
static __always_inline int too_big_allowed(const struct packet *p)
{
	__u32 vip = find_vip(p->dst_hi, p->dst_lo), index;
	struct endpoint_slot *slot = vip ? slot_at(vip - 1) : 0;
	__u64 *bucket;

	if (!slot)
		return 0;
	index = *(volatile __u64 *)&slot->value - ENDPOINT_SLOT_FIRST;
	bucket = bpf_map_lookup_elem(&too_bigs, &index);
	return bucket && mux_take(bucket, LIMIT_PTB_RATE);
}

/* too_big ends a packet of more than `mtu` bytes, the most that fits the tunnel. It answers the sender with packet too big unless
 * the packet must not be answered or the VIP's bucket is empty. `value` is the value word of its endpoint's slot. */
static __noinline int too_big(struct xdp_md *ctx, const struct packet *p, __u64 value, __u32 mtu, const struct aside *aside)
{
	__u32 how = aside_how(aside);
	int reason;

	if (how & ASIDE_ERROR || may_fragment(ctx, p) || (how & ASIDE_LATER && p->family == 4) || !source_possible(p))
		return refuse(value, p->l3_len, MUX_REASON_TOO_BIG);
	if (!too_big_allowed(p))
		return refuse(value, p->l3_len, MUX_REASON_PTB_LIMITED);
	count_refused(value, p->l3_len);
	reason = ptb_make(ctx, p, mtu);
	return reason ? drop(reason) : answer(ctx, aside, MUX_REASON_PTB_SENT);
}

/* too_big_usual is too_big for a packet on the usual way. It reads the packet again, so that it need not be in memory
 * there. */
static __noinline int too_big_usual(struct xdp_md *ctx, __u64 value, __u32 mtu)
{
	struct packet p = {};

	if (parse_frame(ctx, (void *)(long)ctx->data, (void *)(long)ctx->data_end, &p))
		return drop(MUX_REASON_INTERNAL);
	return too_big(ctx, &p, value, mtu, 0);
}

#endif
