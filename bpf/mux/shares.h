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
	/* Four member words that begin at a multiple of four are of one endpoint. So one of their four bits says the first of these: the others are free. */
	SHARE_FLOWS = 0,    /* of the flow table */
	SHARE_WAITING = 1,  /* with path nat, in the first four of a block: of the sessions that wait for trust */
	SHARE_SESSIONS = 2, /* with path nat, in the first four of a block: of the sessions that are trusted */
};

/* share_mark returns 1 if the four words of a member word have this mark, else 0. */
static __always_inline __u64 share_mark(__u32 member, enum share_mark mark)
{
	__u32 index = member / 64;
	__u64 *marks = bpf_map_lookup_elem(&share_marks, &index);

	return marks ? *(volatile __u64 *)marks >> ((member & 60) + mark) & 1 : 0;
}

/* over_share returns 1 if the VIP of a member word holds more than its share of the flow table, else 0. */
static __always_inline __u64 over_share(__u32 member)
{
	return share_mark(member, SHARE_FLOWS);
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
