/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Counters of this CPU: per-CPU arrays, or plain arrays with a region of `size` elements for every CPU (abi.h), which the
 * agent reads without a system call and whose elements cost one cache line. */
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

/* count_packet_in adds a packet to element `index` of this CPU's region in an array of struct counter. */
static __always_inline void count_packet_in(void *counters, __u32 size, __u32 index, __u64 bytes)
{
	count_packet(counters, bpf_get_smp_processor_id() * size + index, bytes);
}

/* count_reason_in adds one to element `reason` of this CPU's region in an array of __u64. */
static __always_inline void count_reason_in(void *reasons, __u32 size, __u32 reason)
{
	count_reason(reasons, bpf_get_smp_processor_id() * size + reason);
}

#endif
