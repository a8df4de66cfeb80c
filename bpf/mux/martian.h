/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Sources that no client of a VIP has. */
#ifndef SHUNT_MUX_MARTIAN_H
#define SHUNT_MUX_MARTIAN_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "lib/parse.h"
#include "mux/tables.h"

/* from_tunnel says whether a packet's source is one that muxes of this Network tunnel from. Without such a prefix of the family the base is zero. */
static __always_inline int from_tunnel(const struct mux_config *c, const struct packet *p)
{
	__u64 base = p->family == 4 ? c->outer4_base_be : *(const __u64 *)c->outer6_base;
	__u64 source = p->family == 4 ? (__u32)(p->src_lo >> 32) & ~c->outer4_mask_be : p->src_hi;

	return source == base && base;
}

/* source_allowed says whether a packet that is to be forwarded may come from its source: an address that a host may have, and no tunnel source. VIPs
 * of ours are from_vip's. */
static __always_inline int source_allowed(const struct mux_config *c, const struct packet *p)
{
	return source_possible(p) && !from_tunnel(c, p);
}

/* is_martian says that a packet of the slower ways may not come from its source. */
static __noinline int is_martian(const struct packet *p)
{
	__u32 zero = 0;
	const struct mux_config *c = bpf_map_lookup_elem(&configs, &zero);

	return !c || !source_allowed(c, p);
}

#endif
