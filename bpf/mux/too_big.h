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
#include "mux/verdict.h"

/* may_fragment says whether routers on the way might have made the packet smaller: IPv4 without DF. */
static __always_inline int may_fragment(struct xdp_md *ctx, const struct packet *p)
{
	const void *data = (const void *)(long)ctx->data, *end = (const void *)(long)ctx->data_end;
	const struct iphdr *ip = data + ETH_HLEN;

	return p->family == 4 && ((const void *)(ip + 1) > end || !(ip->frag_off & bpf_htons(ENCAP_DF)));
}

/* too_big ends a packet of more than `mtu` bytes, the most that fits the tunnel: its sender is told, unless it may not or
 * too many were. `value` is the value word of its endpoint's slot. */
static __noinline int too_big(struct xdp_md *ctx, const struct packet *p, __u64 value, __u32 mtu, const struct aside *aside)
{
	__u32 how = aside_how(aside);
	int reason;

	if (how & ASIDE_ERROR || may_fragment(ctx, p) || (how & ASIDE_LATER && p->family == 4) || !icmp_source_ok(p))
		return refuse(value, p->l3_len, MUX_REASON_TOO_BIG);
	if (!mux_take(&ptb_spent, LIMIT_PTB_RATE))
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
