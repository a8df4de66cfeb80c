/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Ports of VIPs that servers send from: whose they are. */
#ifndef SHUNT_MUX_SNAT_H
#define SHUNT_MUX_SNAT_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "lib/parse.h"
#include "lib/ring.h"
#include "mux/find.h"
#include "mux/tables.h"

/* Answers of snat_member: the index of the member word:32 | SNAT_FOUND, or one of the others. */
#define SNAT_NONE 0             /* the VIP's ports are not leased */
#define SNAT_FOUND (1ULL << 32)
#define SNAT_NOBODY (2ULL << 32)

/* snat_block_of is the block of the VIP of a slot, or nothing. */
static __always_inline struct snat_block *snat_block_of(const struct endpoint_slot *vip)
{
	__u32 index = (*(const volatile __u64 *)&vip->members >> SNAT_BLOCK_SHIFT) - 1;

	return bpf_map_lookup_elem(&snat_blocks, &index);
}

/* snat_member finds the server that has a port of the VIP whose slot has index `vip`. */
__attribute__((noinline)) __u64 snat_member(__u32 vip, __u32 port)
{
	const struct endpoint_slot *slot = slot_at(vip);
	const struct snat_block *b = slot ? snat_block_of(slot) : 0;
	__u32 at = port >> 5 & (LIMIT_SNAT_WORDS - 1), place, member;
	__u64 range, *word;

	if (!b)
		return SNAT_NONE;
	place = *(const volatile __u64 *)&b->words[at] >> (port >> 3 & 3) * 16 & 0xffff;
	range = b->members;
	if (!place || place > range >> 32)
		return SNAT_NOBODY;
	member = (__u32)range + place - 1;
	word = bpf_map_lookup_elem(&members, &member);
	return word && member_present(*(volatile __u64 *)word) ? SNAT_FOUND | member : SNAT_NOBODY;
}

/* from_service says whether an address is a VIP of ours that does not send from this port: 0 for packets without ports. What
 * a server sends from a port that it has goes round for ever no more than what it sends from its own address. */
__attribute__((noinline)) int from_service(__u64 hi, __u64 lo, __u32 port)
{
	__u32 vip = find_vip(hi, lo);

	return vip && !(snat_member(vip - 1, port) & SNAT_FOUND);
}

/* from_vip says whether the source is a VIP of ours. Two services that answer whatever they get would answer each other,
 * through the mux, without end. */
static __always_inline int from_vip(const struct packet *p)
{
	__u64 cover;

	if (p->family == 4) {
		cover = cover4;
		return (p->src_lo >> 32 & cover >> 32) == (__u32)cover && from_service(p->src_hi, p->src_lo, p->sport);
	}
	return (p->src_hi & cover6_mask) == cover6_value && !is_mapped(p->src_hi, p->src_lo) &&
	       from_service(p->src_hi, p->src_lo, p->sport);
}

#endif
