// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The mux while somebody captures: the same walk, then what became of the packet into a ring buffer.
 *
 * The walk's text is included whole, so that a capture sees what the mux does and the mux itself knows nothing of
 * captures. Reasons are found by comparing this CPU's counters before and after: XDP programs do not interrupt each other
 * on a CPU. The agent puts this program in the place of `mux` for as long as a capture lasts; both use the same tables. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

/* Inlined: a call more would not fit the stack, "combined stack size of 6 calls is 528. Too large" (6.18). */
__attribute__((always_inline)) int mux(struct xdp_md *ctx);

#include "mux.bpf.c"

/* Events, each a struct watch_event without the unused end of its data. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, LIMIT_WATCH_RING);
} watch_events SEC(".maps");

struct watch_scratch {
	__u64 counts[LIMIT_REASONS];
	struct watch_event event;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct watch_scratch);
} watch_scratches SEC(".maps");

/* Events that found the ring buffer full. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} watch_lost SEC(".maps");

/* Carries the enumeration that Go needs into BTF. */
const struct {
	enum watch_limit limit;
} watch_enums = {};

/* What is captured: packets to this address, stored as in struct packet; of this protocol, 0 for every one; to ports from
 * first to last, last 0 for every packet, those without ports too. */
const volatile __u64 watch_vip_hi = 0;
const volatile __u64 watch_vip_lo = 0;
const volatile __u32 watch_protocol = 0;
const volatile __u32 watch_port_first = 0;
const volatile __u32 watch_port_last = 0;

/* Bytes taken of a frame as it came and as it left, at most LIMIT_WATCH_BYTES. */
const volatile __u32 watch_snaplen = LIMIT_WATCH_BYTES;
const volatile __u32 watch_sent_snaplen = LIMIT_WATCH_BYTES;

/* watched says whether the packet is one to capture. */
static __noinline int watched(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct packet p = {};
	int reason = parse_frame(ctx, data, end, &p);

	if (!p.family || p.dst_hi != watch_vip_hi || p.dst_lo != watch_vip_lo)
		return 0;
	if (watch_protocol && p.protocol != watch_protocol)
		return 0;
	if (!watch_port_last)
		return 1;
	return !reason && has_ports(&p) && p.dport >= watch_port_first && p.dport <= watch_port_last;
}

/* copy_frame copies the frame's first bytes, at most `most`, to `at` in the event's data, and returns how many. */
static __always_inline __u32 copy_frame(struct xdp_md *ctx, struct watch_event *e, __u32 at, __u32 length, __u32 most)
{
	__u32 n = length < most ? length : most;

	if (n > LIMIT_WATCH_BYTES)
		n = LIMIT_WATCH_BYTES;
	/* Once more in a form that the verifier follows: "R4 invalid zero-sized read" (6.18). */
	if (n == 0 || at > LIMIT_WATCH_BYTES)
		return 0;
	return bpf_xdp_load_bytes(ctx, 0, e->data + at, n) ? 0 : n;
}

/* count_at reads a reason's counter of this CPU. */
static __always_inline __u64 count_at(__u32 region, __u32 reason)
{
	__u32 index = region + reason;
	__u64 *n = bpf_map_lookup_elem(&reasons, &index);

	return n ? *n : 0;
}

/* watch_before notes the packet and the counters. The event's `length` stays 0 when the packet is not watched. */
static __noinline int watch_before(struct xdp_md *ctx)
{
	__u32 zero = 0, region = bpf_get_smp_processor_id() * LIMIT_REASONS, i;
	struct watch_scratch *s = bpf_map_lookup_elem(&watch_scratches, &zero);

	if (!s)
		return 0;
	s->event.length = 0;
	if (!watched(ctx))
		return 0;
	for (i = 0; i < LIMIT_REASONS; i++)
		s->counts[i] = count_at(region, i);
	s->event.time = bpf_ktime_get_ns();
	s->event.ifindex = ctx->ingress_ifindex;
	s->event.length = bpf_xdp_get_buff_len(ctx);
	s->event.captured = copy_frame(ctx, &s->event, 0, s->event.length, watch_snaplen);
	return 0;
}

/* watch_after tells what became of the packet that watch_before noted. */
static __noinline int watch_after(struct xdp_md *ctx, int verdict)
{
	__u32 zero = 0, region = bpf_get_smp_processor_id() * LIMIT_REASONS, i, size;
	struct watch_scratch *s = bpf_map_lookup_elem(&watch_scratches, &zero);
	struct watch_event *e;
	__u64 *lost;

	if (!s || !s->event.length)
		return 0;
	e = &s->event;
	e->verdict = verdict;
	e->sent_length = 0;
	e->sent_captured = 0;
	e->reasons = 0;
	for (i = 0; i < LIMIT_REASONS; i++)
		if (s->counts[i] != count_at(region, i))
			e->reasons |= 1ULL << i;
	if (verdict == XDP_TX || verdict == XDP_REDIRECT) {
		e->sent_length = bpf_xdp_get_buff_len(ctx);
		e->sent_captured = copy_frame(ctx, e, e->captured, e->sent_length, watch_sent_snaplen);
	}
	size = e->captured + e->sent_captured;
	if (size > 2 * LIMIT_WATCH_BYTES)
		return 0;
	if (bpf_ringbuf_output(&watch_events, e, offsetof(struct watch_event, data) + size, 0)) {
		lost = bpf_map_lookup_elem(&watch_lost, &zero);
		if (lost)
			*lost += 1;
	}
	return 0;
}

/* mux_watch is mux, and tells. It keeps nothing on its stack across the walk. */
SEC("xdp.frags")
int mux_watch(struct xdp_md *ctx)
{
	int verdict;

	watch_before(ctx);
	verdict = mux(ctx);
	watch_after(ctx, verdict);
	return verdict;
}
