/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Which endpoint a packet is for. */
#ifndef SHUNT_MUX_FIND_H
#define SHUNT_MUX_FIND_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "lib/endpoint.h"
#include "lib/parse.h"
#include "mux/tables.h"

/* other_own says whether an Ethernet address, shifted by 16 bits, is that of another interface of ours. */
__attribute__((noinline)) int other_own(__u64 shifted)
{
#pragma unroll
	for (__u32 i = 0; i < LIMIT_INTERFACES; i++) {
		__u64 mac = own_macs[i];

		if (mac && mac << 16 == shifted)
			return 1;
	}
	return 0;
}

/* find_exact returns the index of the slot of (vip, key) + 1, or 0. */
__attribute__((noinline)) __u32 find_exact(__u64 vip_hi, __u64 vip_lo, __u64 key)
{
	return endpoint_search(&endpoint_slots, endpoint_mask, 0, vip_hi, vip_lo, key);
}

/* slot_at is the slot with an index. */
static __always_inline struct endpoint_slot *slot_at(__u32 index)
{
	return bpf_map_lookup_elem(&endpoint_slots, &index);
}

/* home_of is the index of the slot where a search for (vip, key) begins, and usually ends. */
static __always_inline __u32 home_of(__u64 vip_hi, __u64 vip_lo, __u64 key)
{
	return endpoint_probe(endpoint_hash(vip_hi, vip_lo, key), endpoint_mask, 0);
}

/* find_vip is find_exact for the slot of a VIP as such: index of the slot + 1, or 0. */
__attribute__((noinline)) __u32 find_vip(__u64 hi, __u64 lo)
{
	return endpoint_search(&endpoint_slots, endpoint_mask, 0, hi, lo, endpoint_key(0, 0, 0));
}

#endif
