/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Rate limits: token buckets whose interval the agent sets. */
#ifndef SHUNT_LIMIT_H
#define SHUNT_LIMIT_H

#include <linux/types.h>

#include "abi.h"
#include "bucket.h"

/* limit_take takes a token from the bucket *spent: true when there was one, or when interval is 0, for no limit. `now` in
 * ticks; `window`, in 2^-24 ticks, is the time of a full bucket unless that holds fewer than LIMIT_BURST_MIN tokens. */
static __always_inline int limit_take(__u64 *spent, __u64 interval, __u64 window, __u64 now)
{
	if (!interval)
		return 1;
	if (window < interval * LIMIT_BURST_MIN)
		window = interval * LIMIT_BURST_MIN;
	return bucket_take(spent, now, interval, window);
}

#endif
