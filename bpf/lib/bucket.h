/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* A token bucket in one 64-bit word that all CPUs share, as virtual scheduling (ITU-T I.371, GCRA): the word is the time
 * up to which tokens are spent, in 2^-24 clock ticks. The clock is the caller's. */
#ifndef SHUNT_BUCKET_H
#define SHUNT_BUCKET_H

#include <linux/types.h>

enum bucket {
	/* Fraction bits of a bucket's time. 40 bits of ticks are left: 34 years of the finest clock (1000 Hz). */
	BUCKET_TIME_SHIFT = 24,
};

/* bucket_take takes a token: true when there was one. `now` in ticks; `interval` is the time of one token and `window`
 * that of a full bucket, both in 2^-24 ticks, interval at most window. A word of 0 is a full bucket. What is refused
 * writes nothing. CPUs that take the last tokens at the same moment may take one each: the excess is bounded by their
 * number and paid back, for it moves the word too. */
static __always_inline int bucket_take(__u64 *word, __u64 now, __u64 interval, __u64 window)
{
	__u64 spent = *(volatile __u64 *)word, full;

	now <<= BUCKET_TIME_SHIFT;
	full = now > window ? now - window : 0;
	/* Idle for longer than the bucket holds: full again. Who loses the race finds it filled by the winner. */
	if (spent < full) {
		__u64 seen = __sync_val_compare_and_swap(word, spent, full + interval);

		if (seen == spent)
			return 1;
		spent = seen;
	}
	if (spent + interval > now)
		return 0;
	__sync_fetch_and_add(word, interval);
	return 1;
}

#endif
