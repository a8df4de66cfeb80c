/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Captures. */
#ifndef SHUNT_ABI_WATCH_H
#define SHUNT_ABI_WATCH_H

#include "abi/limit.h"

enum watch_limit {
	LIMIT_WATCH_BYTES = 2048,   /* of one frame in an event */
	LIMIT_WATCH_RING = 4 << 20, /* bytes of the ring buffer */
};

/* What became of one captured packet. `data` holds the frame as it came, then the frame as it was sent. */
struct watch_event {
	__u64 time;          /* CLOCK_MONOTONIC, nanoseconds */
	__u64 reasons;       /* bit n: enum mux_reason n was counted */
	__u32 verdict;       /* XDP action */
	__u32 ifindex;       /* it came in by */
	__u32 length;        /* of the frame as it came */
	__u32 captured;      /* its bytes in data */
	__u32 sent_length;   /* of the frame as it was sent; 0 when it was not */
	__u32 sent_captured; /* its bytes in data */
	__u8 data[2 * LIMIT_WATCH_BYTES];
};
SHUNT_ASSERT_SIZE(struct watch_event, 40 + 2 * LIMIT_WATCH_BYTES);
_Static_assert((int)LIMIT_REASONS <= 64, "a reason without a bit in watch_event");

#endif
