/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Lists of source prefixes. Of nested prefixes the longest decides, and there are two answers only: so a list is the
 * sorted addresses at which the answer turns, and an address is denied by how many of them lie at or below it. */
#ifndef SHUNT_SOURCE_H
#define SHUNT_SOURCE_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include "abi.h"

/* Halvings that end a search over all turns that the table may hold: two IPv4 turns to a word. */
#define SOURCE_STEPS 24
_Static_assert(LIMIT_SOURCE_WORDS * 2 < 1 << SOURCE_STEPS, "a search that ends too early");

/* source_turns4 counts the turns at or below an IPv4 address in host order. */
static __always_inline __u32 source_turns4(void *words, __u64 span, __u32 addr)
{
	__u32 first = (__u32)span, low = 0, rest = span >> SPAN_COUNT_SHIFT;

	for (int i = 0; i < SOURCE_STEPS && rest; i++) {
		__u32 half = rest >> 1, turn = low + half, at = first + (turn >> 1);
		__u64 *word = bpf_map_lookup_elem(words, &at);

		if (!word)
			return 0;
		if ((__u32)(*word >> (turn & 1) * 32) <= addr) {
			low = turn + 1;
			rest -= half + 1;
		} else {
			rest = half;
		}
	}
	return low;
}

/* source_turns6 counts the turns at or below an IPv6 address; its halves as numbers. A turn is two words, high first. */
static __always_inline __u32 source_turns6(void *words, __u64 span, __u64 hi, __u64 lo)
{
	__u32 first = (__u32)span, low = 0, rest = span >> SPAN_COUNT_SHIFT;

	for (int i = 0; i < SOURCE_STEPS && rest; i++) {
		__u32 half = rest >> 1, at = first + (low + half) * 2, next = at + 1;
		__u64 *high = bpf_map_lookup_elem(words, &at), *behind;

		if (!high)
			return 0;
		if (*high == hi) {
			behind = bpf_map_lookup_elem(words, &next);
			if (!behind)
				return 0;
			rest = *behind <= lo ? rest - half - 1 : half;
			low = *behind <= lo ? low + half + 1 : low;
		} else if (*high < hi) {
			low += half + 1;
			rest -= half + 1;
		} else {
			rest = half;
		}
	}
	return low;
}

/* source_denied says whether list `index` refuses an address, given as its two halves as stored. A list that is not there
 * refuses everything. `lists` is a map of struct source_list, `words` that of the turns. */
static __always_inline int source_denied(void *lists, void *words, __u32 index, __u64 src_hi, __u64 src_lo, int v6)
{
	const struct source_list *l = bpf_map_lookup_elem(lists, &index);

	if (!l)
		return 1;
	if (v6)
		return (source_turns6(words, l->turns6, bpf_be64_to_cpu(src_hi), bpf_be64_to_cpu(src_lo)) ^ l->denies) & 1;
	return (source_turns4(words, l->turns4, bpf_ntohl(src_lo >> 32)) ^ l->denies) & 1;
}

#endif
