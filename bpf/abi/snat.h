/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Ports of VIPs that servers send from (SNAT; protocol section 5.2). */
#ifndef SHUNT_ABI_SNAT_H
#define SHUNT_ABI_SNAT_H

#include "abi/limit.h"

/* Who has which ports of a VIP, by ranges of 8: range port >> 3 is in words[range >> 2], 16 bits from bit (range & 3) * 16
 * on. That is the place of its member among `members`, counted from 1; 0: nobody has the range. Each word is atomic. */
struct snat_block {
	__u64 members; /* first member word:32 | number of member words:32, from bit 0 up. Immutable while a VIP names the block */
	__u64 rsv[7];
	__u64 words[LIMIT_SNAT_WORDS];
};
SHUNT_ASSERT_SIZE(struct snat_block, 64 + 8 * LIMIT_SNAT_WORDS);

/* In the members word of a VIP's slot: index of its block + 1. */
enum snat_shift {
	SNAT_BLOCK_SHIFT = 32,
};

#endif
