/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The choice of a member by the ring. */
#ifndef SHUNT_MUX_CHOOSE_H
#define SHUNT_MUX_CHOOSE_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "lib/hash.h"
#include "lib/ring.h"
#include "mux/identity.h"
#include "mux/tables.h"

/* walk_on finds a member when the slot's own is not usable: probes:32 | member id:32, 0 when nothing is usable. */
__attribute__((noinline)) __u64 walk_on(__u64 ring, __u64 range, __u32 slot)
{
	struct ring_choice c = ring_walk(&rings, &members, ring, range, slot);

	return (__u64)c.probes << 32 | c.id;
}

/* choose picks the member of a ring hash: its word, or 0; its id. */
static __always_inline __u64 choose(__u64 ring, __u64 range, __u64 hash, __u32 *id)
{
	__u32 slot = ring_slot(hash, ring >> 32 & 0x1f), first = (__u32)range, count = range >> 32;
	__u64 word, found;

	if (!ring)
		return 0;
	*id = ring_member(&rings, (__u32)ring, slot);
	word = member_usable_word(&members, first, count, *id);
	if (word)
		return word;
	found = walk_on(ring, range, slot);
	*id = (__u32)found;
	/* A member that died in between drops this packet: it would have been sent to a dead server. */
	return found ? member_usable_word(&members, first, count, *id) : 0;
}

/* ring_tweak is the tweak of the extra record with this index + 1; 0 when there is none. Global, so that the verifier looks at it once. */
__attribute__((noinline)) __u64 ring_tweak(__u64 extra)
{
	__u32 index = (__u32)extra - 1;
	const struct endpoint_extra *e = bpf_map_lookup_elem(&endpoint_extras, &index);

	return e ? e->ring_tweak : 0;
}

/* ring_hash is the hash of an identity under the key of the slot's ring, whose word is `ring`. */
static __always_inline __u64 ring_hash(const struct mux_config *c, const struct endpoint_slot *slot, __u64 ring, const struct packet *p,
				       const struct identity *id)
{
	struct siphash_key key;

	_Static_assert(LIMIT_RING_KEYS == 2, "the branch below knows two keys");
	/* A branch, not an index: the hash may then begin before the endpoint's slot has come. */
	if (ring >> RING_WORD_KEY_SHIFT & 1)
		key = c->ring_keys[1];
	else
		key = c->ring_keys[0];
	if (ring >> RING_WORD_KEYED_SHIFT & 1)
		key.k0 ^= ring_tweak(*(const volatile __u64 *)&slot->extra);
	return identity_ring(&key, p, id);
}

#endif
