/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Endpoints with many ports: the intervals of a VIP, searched when no exact key matched. */
#ifndef SHUNT_PORTS_H
#define SHUNT_PORTS_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"

/* Halvings that end a search over all words of the table. */
#define PORTS_STEPS 19
_Static_assert(LIMIT_PORT_RANGES < 1 << PORTS_STEPS, "a search that ends too early");

/* ports_find looks for the interval that holds (protocol, port) among the words that `span` names (enum port_range_shift,
 * enum span_shift): slot index of the endpoint + 1, or 0. `ranges` is a map of words. */
static __always_inline __u32 ports_find(void *ranges, __u64 span, __u8 protocol, __u16 port)
{
	__u32 low = (__u32)span, rest = span >> SPAN_COUNT_SHIFT;
	__u64 want = (__u64)protocol << PORT_RANGE_PROTOCOL_SHIFT | (__u64)port << PORT_RANGE_LOW_SHIFT, best = 0;

	/* Greater than every interval that begins here. */
	want |= (1ULL << PORT_RANGE_LOW_SHIFT) - 1;
	for (int i = 0; i < PORTS_STEPS && rest; i++) {
		__u32 half = rest >> 1, at = low + half;
		__u64 *word = bpf_map_lookup_elem(ranges, &at), value;

		if (!word)
			return 0;
		value = *word;
		if (value <= want) {
			best = value;
			low = at + 1;
			rest -= half + 1;
		} else {
			rest = half;
		}
	}
	if (best >> PORT_RANGE_PROTOCOL_SHIFT != protocol || (__u16)(best >> PORT_RANGE_HIGH_SHIFT) < port)
		return 0;
	return (best & ((1ULL << PORT_RANGE_HIGH_SHIFT) - 1)) + 1;
}

#endif
