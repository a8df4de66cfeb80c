// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The sender of bursts of probes. The kernel runs it with frames of its own (BPF_PROG_TEST_RUN, BPF_F_TEST_XDP_LIVE_FRAMES); each
 * takes the next of the agent's frames, as long as the window has room: receive rings of devices have few places, and answers
 * come while a burst lasts. A turn without room sends nothing. One CPU at a time runs it. */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LIMIT_BURST_FRAMES);
	__type(key, __u32);
	__type(value, struct burst_frame);
} burst_frames SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct burst_state);
} burst_states SEC(".maps");

/* The mux's (bpf/mux/tables.h). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LIMIT_PROBE_RULES);
	__type(key, __u32);
	__type(value, struct probe_result);
} probe_results SEC(".maps");

/* Carries the enumeration that Go needs into BTF. */
const struct {
	enum burst_limit limit;
} burst_enums = {};

/* burst_free says whether a place of the window is free: nobody has it, the probe came to an end, or it is not young any more. */
static __always_inline int burst_free(__u32 slot, __u64 now, __u64 young)
{
	__u32 index = slot - 1;
	struct burst_frame *f;
	struct probe_result *r;
	__u64 word;

	if (!slot)
		return 1;
	f = bpf_map_lookup_elem(&burst_frames, &index);
	if (!f || now - f->at >= young)
		return 1;
	r = bpf_map_lookup_elem(&probe_results, &f->number);
	if (!r)
		return 1;
	word = *(volatile __u64 *)&r->word;
	return (__u32)word == f->isn && (word >> PROBE_RESULT_STATE_SHIFT & 0xff) >= PROBE_FINAL;
}

/* burst_copy writes a whole frame: the kernel's has the bytes of an earlier one. */
static __always_inline int burst_copy(struct xdp_md *ctx, const struct burst_frame *f)
{
	volatile __u64 *data = (void *)(long)ctx->data;
	const __u64 *from = (const __u64 *)f->bytes;
	void *end = (void *)(long)ctx->data_end;
	int i;

	if ((void *)data + LIMIT_BURST_BYTES > end || f->length > LIMIT_BURST_BYTES)
		return 0;
#pragma unroll
	for (i = 0; i < LIMIT_BURST_SHORT / 8; i++)
		data[i] = from[i];
	if (f->length > LIMIT_BURST_SHORT) {
#pragma unroll
		for (i = LIMIT_BURST_SHORT / 8; i < LIMIT_BURST_BYTES / 8; i++)
			data[i] = from[i];
	}
	return bpf_xdp_adjust_tail(ctx, (int)f->length - LIMIT_BURST_BYTES) == 0;
}

SEC("xdp")
int burst(struct xdp_md *ctx)
{
	__u32 zero = 0, next, place = 0;
	struct burst_state *s = bpf_map_lookup_elem(&burst_states, &zero);
	struct burst_frame *f;
	int i, room = 0;
	__u64 now;

	if (!s)
		return XDP_DROP;
	*(volatile __u32 *)&s->turns += 1;
	next = s->next;
	f = bpf_map_lookup_elem(&burst_frames, &next);
	if (next >= s->count || !f)
		return XDP_DROP;
	now = bpf_ktime_get_ns();
	for (i = 0; i < LIMIT_BURST_LOOKS && !room; i++) {
		place = s->cursor;
		if (place >= s->window || place >= LIMIT_BURST_WINDOW)
			place = 0;
		s->cursor = place + 1;
		room = burst_free(s->slots[place], now, s->young);
	}
	if (!room || place >= LIMIT_BURST_WINDOW || !burst_copy(ctx, f))
		return XDP_DROP;
	f->at = now;
	s->slots[place] = next + 1;
	*(volatile __u32 *)&s->next = next + 1;
	return bpf_redirect(f->ifindex, 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";
