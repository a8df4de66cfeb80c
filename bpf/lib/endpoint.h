/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The exact-match endpoint table: open addressing, one slot a cache line, double hashing. */
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

/* endpoint_probe is the slot looked at as number i (from 0) for a key with this endpoint_hash, in a table of mask + 1. */
static __always_inline __u32 endpoint_probe(__u64 hash, __u32 mask, __u32 i)
{
	return ((__u32)(hash >> 32) + i * ((__u32)hash | 1)) & mask;
}

/* endpoint_is says whether slot `s`, whose value word is `value`, holds (vip, key); vip as its two halves as stored. */
static __always_inline int endpoint_is(const struct endpoint_slot *s, __u64 value, __u64 vip_hi, __u64 vip_lo, __u64 key)
{
	const __u64 *vip = (const __u64 *)s->vip;

	return vip[1] == vip_lo && s->key == key && vip[0] == vip_hi && value >= ENDPOINT_SLOT_FIRST;
}

/* endpoint_search goes through the probe sequence from number `from` on: index of the slot + 1, or 0. `slots` is a map
 * of struct endpoint_slot with mask + 1 elements. */
static __always_inline __u32 endpoint_search(void *slots, __u32 mask, __u32 from, __u64 vip_hi, __u64 vip_lo, __u64 key)
{
	__u64 hash = endpoint_hash(vip_hi, vip_lo, key);

	for (__u32 i = from; i < LIMIT_ENDPOINT_PROBES; i++) {
		__u32 index = endpoint_probe(hash, mask, i);
		struct endpoint_slot *s = bpf_map_lookup_elem(slots, &index);
		__u64 value;

		if (!s)
			return 0;
		value = *(volatile __u64 *)&s->value;
		if (value == ENDPOINT_SLOT_EMPTY)
			return 0;
		if (endpoint_is(s, value, vip_hi, vip_lo, key))
			return index + 1;
	}
	return 0;
}

#endif
