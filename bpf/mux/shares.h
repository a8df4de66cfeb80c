/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Shares of VIPs in the flow table. The agent's sweep marks the members of VIPs that hold more than their share; the walk reads the
 * marks only when a new flow finds no free entry in its bucket. */
#ifndef SHUNT_MUX_SHARES_H
#define SHUNT_MUX_SHARES_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "lib/flow.h"
#include "lib/mask.h"
#include "mux/tables.h"

enum share_mark {
	/* With path nat the mark of this member of a block is of the VIP's sessions that wait for trust, all others of those that are trusted. Every
	 * block has as many words. */
	SHARE_WAITING = 1,
};

/* over_share returns 1 if the VIP of a member word holds more than its share of the table that the endpoint uses, else 0. */
static __always_inline __u64 over_share(__u32 member)
{
	__u32 index = member / 64;
	__u64 *marks = bpf_map_lookup_elem(&share_marks, &index);

	return marks ? *(volatile __u64 *)marks >> (member & 63) & 1 : 0;
}

/* flow_over returns the oldest entry of a bucket whose VIP is over its share, LIMIT_FLOW_BUCKET if there is none. With `spare` 1
 * trusted entries are not considered. */
static __always_inline __u32 flow_over(const struct flow_bucket *b, __u64 spare, __u64 tick)
{
	__u64 oldest = 0;

#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < LIMIT_FLOW_BUCKET; i++) {
		__u64 e = flow_load(b, i), class = flow_class(e), trusted = class >> 1 & ~class & 1;
		__u64 take = over_share(flow_member(e)) & ~(spare & trusted) & ~flow_negative(class - 1);

		/* The low bits hold 8 - i: of equals the first wins. */
		oldest = flow_larger(oldest, (flow_age(e, tick) << 4 | (8 - i)) & -(take & 1));
	}
	return oldest ? 8 - (oldest & 15) : LIMIT_FLOW_BUCKET;
}

/* flow_free says whether an entry is empty or expired. `idle` is the word of struct mux_config. */
static __always_inline int flow_free(__u64 e, __u64 idle, __u64 tick)
{
	__u32 class = flow_class(e);

	return !class || flow_age(e, tick) > (idle >> (class == FLOW_CLASS_TRUSTED ? 16 : 0) & 0xffff);
}

#endif
