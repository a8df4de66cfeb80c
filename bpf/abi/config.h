/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the walk of the mux needs beside its tables. */
#ifndef SHUNT_ABI_CONFIG_H
#define SHUNT_ABI_CONFIG_H

#include "abi/limit.h"

/* SipHash-1-3 key (protocol section 1.6). */
struct siphash_key {
	__u64 k0;
	__u64 k1;
};
SHUNT_ASSERT_SIZE(struct siphash_key, 16);

/* The one element of the map `configs`: what the walk needs beside the tables. */
struct mux_config {
	__u32 abi_version;
	__u32 outer4_base_be;  /* outer IPv4 source = base | (hash & mask) */
	__u32 outer4_mask_be;  /* host bits of the tunnel source prefix */
	__u32 rsv0;
	__u8 outer6_base[16];  /* outer IPv6 source: the first 8 bytes of it, 4 of zero, 4 that vary with the flow */
	struct siphash_key ring_keys[LIMIT_RING_KEYS];
	struct siphash_key flow_key; /* of the flow table: made with the tables, never changed */
	__u64 idle;                  /* atomic: the longest idle ticks of all endpoints, as in their policy words */
	__u64 ahead;                 /* atomic: nanoseconds that the shared clock of form CO is ahead of CLOCK_MONOTONIC */
	__u64 nat;                   /* atomic: enum nat_shift */
	struct siphash_key spread_key; /* of spread_hash, whose output is on the wire: no other hash shares the key. Made like flow_key */
	__u64 over;                  /* atomic: 1 while share_marks may have a mark, else 0 */
};
SHUNT_ASSERT_SIZE(struct mux_config, 128);

#endif
