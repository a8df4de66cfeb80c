/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Records of connections to endpoints with ENDPOINT_TRACK (protocol section 2). */
#ifndef SHUNT_ABI_CONNECTION_H
#define SHUNT_ABI_CONNECTION_H

#include "abi/limit.h"

/* A record: what a connection that showed a valid cookie, or connection id of QUIC, has sent since. Its index is in one place at any time: on the stack of a CPU, in a batch of the
 * depot, in the agent's hand, or in an entry of `track_buckets`, which makes it a connection's. An entry is as those of the flow table are, with the
 * record's index in the place of the member, and for a stamp the jiffies when it was opened: FLOW_CLASS_UNTRUSTED on probation, FLOW_CLASS_TRUSTED since. Who takes
 * the entry away, by one compare and swap, has the index. */
struct track_record {
	__u64 hash;    /* the flow's, under the flow key; 0: nobody's */
	__u32 whose;   /* enum connection_shift */
	__u32 last;    /* tick of the last packet, low half */
	__u64 packets; /* atomic: added to, as bytes are */
	__u64 bytes;   /* of the inner IP packets */
};
SHUNT_ASSERT_SIZE(struct track_record, 32);

/* Whose a record is: member id:12 | index of the endpoint's counter:17 | zero:2 | FIN was seen:1, from bit 0 up. */
enum connection_shift {
	CONNECTION_ENDPOINT_SHIFT = 12,
	CONNECTION_CLOSING_SHIFT = 31,
};

enum connection_limit {
	/* Records: their indices have 21 bits in entries. */
	LIMIT_CONNECTIONS = 1 << 21,
	LIMIT_CONNECTIONS_MIN = 1 << 10,
	/* Indices of a batch. */
	LIMIT_CONNECTION_BATCH = 63,
	/* The least room of a CPU's stack: a quarter holds a batch. */
	LIMIT_CONNECTION_REGION = 1 << 8,
	/* Entries of a bucket on probation: at most half of the records are, for there are places for twice as many. */
	LIMIT_CONNECTION_NEW = LIMIT_FLOW_BUCKET / 4,
	/* Seconds that a record stays on probation without a packet, at most. */
	LIMIT_CONNECTION_PROBATION = 10,
	/* Seconds that a record stays after the last packet behind a FIN. */
	LIMIT_CONNECTION_CLOSING = 60,
};

/* Indices of free records on their way between the stacks of CPUs. */
struct connection_batch {
	__u32 indices[LIMIT_CONNECTION_BATCH];
	__u32 count;
};
SHUNT_ASSERT_SIZE(struct connection_batch, 256);

#endif
