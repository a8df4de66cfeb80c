/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The exact-match endpoint table: open addressing over buckets of two slots (one cache line), double hashing. */
#ifndef SHUNT_ENDPOINT_H
#define SHUNT_ENDPOINT_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "hash.h"

/* endpoint_key is the key word of a slot; the port in host order. */
static __always_inline __u64 endpoint_key(__u32 vni, __u8 protocol, __u16 port)
{
	return (__u64)vni << 40 | (__u64)protocol << 32 | (__u64)port << 16;
}

/* endpoint_find returns the value word of the slot that holds (vip, key), or 0. `slots` is a map of struct
 * endpoint_slot with mask + 1 slots; vip as its two halves as stored. Slot i of the probe sequence is half i & 1 of
 * bucket (home + (i >> 1) * step), where home is the high and step the low (odd) half of endpoint_hash. */
static __always_inline __u64 endpoint_find(void *slots, __u32 mask, __u64 vip_hi, __u64 vip_lo, __u64 key)
{
	__u64 hash = endpoint_hash(vip_hi, vip_lo, key);
	__u32 bucket = hash >> 32, step = (__u32)hash | 1;

	for (int i = 0; i < LIMIT_ENDPOINT_PROBES; i++) {
		__u32 index = (bucket << 1 | (i & 1)) & mask;
		struct endpoint_slot *s = bpf_map_lookup_elem(slots, &index);
		const __u64 *vip;
		__u64 value;

		if (!s)
			return 0;
		value = *(volatile __u64 *)&s->value;
		if (value == ENDPOINT_SLOT_EMPTY)
			return 0;
		vip = (const __u64 *)s->vip;
		if (vip[1] == vip_lo && s->key == key && vip[0] == vip_hi && value >= ENDPOINT_SLOT_FIRST)
			return value;
		if (i & 1)
			bucket += step;
	}
	return 0;
}

#endif
