/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Counters of this CPU. */
#ifndef SHUNT_COUNT_H
#define SHUNT_COUNT_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"

/* count_packet adds a packet to element `index` of a per-CPU array of struct counter. */
static __always_inline void count_packet(void *counters, __u32 index, __u64 bytes)
{
	struct counter *c = bpf_map_lookup_elem(counters, &index);

	if (!c)
		return;
	c->packets++;
	c->bytes += bytes;
}

/* count_reason adds one to element `reason` of a per-CPU array of __u64. */
static __always_inline void count_reason(void *reasons, __u32 reason)
{
	__u64 *n = bpf_map_lookup_elem(reasons, &reason);

	if (n)
		*n += 1;
}

#endif
