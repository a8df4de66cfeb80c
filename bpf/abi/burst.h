/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Bursts of probes. */
#ifndef SHUNT_ABI_BURST_H
#define SHUNT_ABI_BURST_H

#include "abi/limit.h"

enum burst_limit {
	/* Frames of a burst: 6 MiB. */
	LIMIT_BURST_FRAMES = 1 << 15,
	/* Of one that costs little to begin: 192 KiB. */
	LIMIT_BURST_QUICK = 1 << 10,
	/* Bytes of a frame: two headers of IPv6, one of them with GUE, a tag and a TCP header, and what makes its record whole
	 * cache lines. The frames that the kernel runs the program with have as many. */
	LIMIT_BURST_BYTES = 168,
	/* Bytes that all frames are copied with; longer ones are copied whole. */
	LIMIT_BURST_SHORT = 64,
	/* Probes under way at once at most. */
	LIMIT_BURST_WINDOW = 256,
	/* Places of the window that are looked at in one turn. */
	LIMIT_BURST_LOOKS = 8,
};

/* A frame to be sent, written by the agent before its burst. */
struct burst_frame {
	__u64 at;       /* when it was, CLOCK_MONOTONIC, nanoseconds; written by the program before burst_state.next */
	__u32 number;   /* of its probe's rule */
	__u32 isn;      /* of its probe's round */
	__u32 ifindex;  /* of the device that it leaves by */
	__u32 length;
	__u8 bytes[LIMIT_BURST_BYTES];
};
SHUNT_ASSERT_SIZE(struct burst_frame, 192);

/* A burst under way; the agent writes it before, and reads it meanwhile. */
struct burst_state {
	__u32 count;  /* frames */
	__u32 window; /* probes under way at most, 1 to LIMIT_BURST_WINDOW */
	__u64 young;  /* nanoseconds after which a probe without an answer leaves the window */
	__u32 next;   /* frames before this one were sent */
	__u32 turns;  /* of the program, waiting ones too */
	__u32 cursor; /* place of the window to look at next */
	__u32 rsv;
	__u32 slots[LIMIT_BURST_WINDOW]; /* the window: frame + 1 of a probe that may be under way, 0 none */
};
SHUNT_ASSERT_SIZE(struct burst_state, 1056);

#endif
