// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* What a choice of a member costs by itself, for benchmarks: a run makes many of them, of flows with hashes of their own. The tables are the mux's. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "mux/choose.h"
#include "mux/schedule.h"
#include "mux/tables.h"

enum choices {
	CHOICES = 256, /* of a run */
};

/* Index of the endpoint's slot; set by the harness. */
const volatile __u32 choices_slot = 0;

/* Where runs begin their flows, and what they chose: else nothing would have to be done. */
__u64 choices_seed;
__u64 choices_made;

const struct {
	enum choices choices;
} choices_enums = {};

/* choices_of runs one way of choosing. */
#define CHOICES_OF(choice)                                                                         \
	__u32 index = choices_slot;                                                                \
	struct endpoint_slot *slot = bpf_map_lookup_elem(&endpoint_slots, &index);                 \
	__u64 ring, range, extra, hash, made = 0, seed = choices_seed;                             \
	__u32 endpoint;                                                                            \
                                                                                                   \
	if (!slot)                                                                                 \
		return XDP_ABORTED;                                                                \
	ring = slot->ring;                                                                         \
	range = slot->members;                                                                     \
	extra = slot->extra;                                                                       \
	endpoint = slot->value - ENDPOINT_SLOT_FIRST;                                              \
	(void)ring, (void)range, (void)extra, (void)endpoint;                                      \
	for (int i = 0; i < CHOICES; i++) {                                                        \
		hash = mix64(seed + i);                                                            \
		made += (choice);                                                                  \
	}                                                                                          \
	choices_seed = seed + CHOICES;                                                             \
	choices_made += made;                                                                      \
	return XDP_PASS;

/* choose_nothing is what the others do beside the choice. */
SEC("xdp")
int choose_nothing(struct xdp_md *ctx)
{
	(void)ctx;
	CHOICES_OF(hash)
}

/* choose_by_ring asks the ring. */
SEC("xdp")
int choose_by_ring(struct xdp_md *ctx)
{
	__u32 id = 0;

	(void)ctx;
	CHOICES_OF(choose(ring, range, hash, &id))
}

/* choose_by_scheduler asks the scheduler. */
SEC("xdp")
int choose_by_scheduler(struct xdp_md *ctx)
{
	(void)ctx;
	CHOICES_OF(schedule_pick(extra, range, hash, endpoint))
}

char _license[] SEC("license") = "Dual BSD/GPL";
