/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Words of members' loads (abi/schedule.h): all CPUs change them without locks, and the agent stores them anew. */
#ifndef SHUNT_LOAD_H
#define SHUNT_LOAD_H

#include <linux/types.h>

#include "abi.h"

/* The bits of a word that hold the load. */
#define LOAD_MASK ((1ULL << MEMBER_LOAD_STEP_SHIFT) - 1)

/* load_step is what a connection more adds. */
static __always_inline __u64 load_step(__u64 word)
{
	return word >> MEMBER_LOAD_STEP_SHIFT;
}

/* load_score is what the load would be with a connection more. */
static __always_inline __u64 load_score(__u64 word)
{
	return (word & LOAD_MASK) + load_step(word);
}

/* load_add counts a connection more. */
static __always_inline void load_add(__u64 *load)
{
	__sync_fetch_and_add(load, load_step(*(volatile __u64 *)load));
}

/* load_take counts a connection less, unless there is none: what were below zero would be taken of the step. After some tries in vain against other CPUs it stays
 * counted, until the agent says anew. */
static __always_inline void load_take(__u64 *load)
{
#pragma clang loop unroll(disable)
	for (__u32 tries = 0; tries < LIMIT_LOAD_TRIES; tries++) {
		__u64 was = *(volatile __u64 *)load;

		if ((was & LOAD_MASK) < load_step(was) || __sync_val_compare_and_swap(load, was, was - load_step(was)) == was)
			return;
	}
}

#endif
