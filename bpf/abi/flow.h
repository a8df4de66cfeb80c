/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Flows that the mux remembers. */
#ifndef SHUNT_ABI_FLOW_H
#define SHUNT_ABI_FLOW_H

#include "abi/limit.h"

/* Flow hashes: the lowest bits are the bucket, bits 36-38 the home (the entry taken if it is free), 39-63 the
 * fingerprint. */
enum flow_hash_shift {
	FLOW_HOME_SHIFT = 36,
};

/* A flow entry: a remembered flow in one atomic word. Bits 0-15 stamp (tick of the last packet that refreshed it),
 * 16-17 enum flow_class, 18-38 index of the member word, 39-63 fingerprint. 0: empty. */
enum flow_bit {
	FLOW_CLASS_SHIFT = 16,
	FLOW_MEMBER_SHIFT = 18,
	FLOW_FINGERPRINT_SHIFT = 39,
	/* Of endpoints with ENDPOINT_SOURCE this bit of the fingerprint is 1 in the entries of clients, 0 in those of flows. */
	FLOW_CLIENT_SHIFT = 39,
};

enum flow_class {
	FLOW_CLASS_EMPTY = 0,
	FLOW_CLASS_UNTRUSTED = 1, /* only first packets were seen */
	FLOW_CLASS_TRUSTED = 2,   /* TCP: a later segment with ACK; else a second packet */
	FLOW_CLASS_CLOSING = 3,   /* FIN or RST was seen */
};

/* One cache line of the flow table. */
struct flow_bucket {
	__u64 entries[LIMIT_FLOW_BUCKET]; /* atomic */
};
SHUNT_ASSERT_SIZE(struct flow_bucket, 64);

/* Key of a remembered fragment: what all fragments of a packet share. Addresses are two halves as stored. */
struct fragment_key {
	__u64 src_hi;
	__u64 src_lo;
	__u64 dst_hi;
	__u64 dst_lo;
	__u32 id;    /* as stored */
	__u32 scope; /* vni:24 | protocol:8 from the top bit down; the protocol of IPv6 is 0, for it need not be in all */
};
SHUNT_ASSERT_SIZE(struct fragment_key, 40);

/* Where the first fragment of a packet went. */
struct fragment {
	__u32 slot;   /* index of the endpoint's slot */
	__u32 member; /* index of the member word; a miss when it is not within the slot's members any more */
	__u32 hash;   /* low half of the hash that the outer source varies with */
	__u32 time;   /* jiffies, low half */
};
SHUNT_ASSERT_SIZE(struct fragment, 16);

#endif
