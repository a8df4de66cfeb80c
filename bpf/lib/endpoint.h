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

/* The value word of a slot that holds another key: go on. */
#define ENDPOINT_GO_ON (~0ULL)

/* endpoint_look compares slot `index` with (vip, key): its value word, 0 when the search ends here without a match, or
 * ENDPOINT_GO_ON. */
static __always_inline __u64 endpoint_look(void *slots, __u32 index, __u64 vip_hi, __u64 vip_lo, __u64 key)
{
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
	return ENDPOINT_GO_ON;
}

/* endpoint_probe looks at slot i of the probe sequence of a key with this endpoint_hash: half i & 1 of bucket
 * home + (i >> 1) * step, where home is the high and step the low (odd) half of the hash. `slots` is a map of
 * struct endpoint_slot with mask + 1 elements; vip as its two halves as stored. */
static __always_inline __u64 endpoint_probe(void *slots, __u32 mask, __u64 hash, __u32 i, __u64 vip_hi, __u64 vip_lo,
					    __u64 key)
{
	__u32 bucket = (__u32)(hash >> 32) + (i >> 1) * ((__u32)hash | 1);

	return endpoint_look(slots, (bucket << 1 | (i & 1)) & mask, vip_hi, vip_lo, key);
}

/* endpoint_search goes through the probe sequence from slot `from` on: the value word, or 0. */
static __always_inline __u64 endpoint_search(void *slots, __u32 mask, __u32 from, __u64 vip_hi, __u64 vip_lo, __u64 key)
{
	__u64 hash = endpoint_hash(vip_hi, vip_lo, key);

	for (__u32 i = from; i < LIMIT_ENDPOINT_PROBES; i++) {
		__u64 value = endpoint_probe(slots, mask, hash, i, vip_hi, vip_lo, key);

		if (value != ENDPOINT_GO_ON)
			return value;
	}
	return 0;
}

#endif
