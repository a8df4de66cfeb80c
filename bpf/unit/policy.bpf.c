// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Shows ports.h and source.h to prog-run tests: they set `in`, run the program, and read `out`. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "lib/ports.h"
#include "lib/source.h"

/* What is looked up. */
struct policy_in {
	__u64 span; /* of the ranges of a VIP */
	__u64 src_hi; /* as stored */
	__u64 src_lo;
	__u32 v6;
	__u32 list;
	__u16 port;
	__u8 protocol;
	__u8 rsv[5];
};

struct policy_out {
	__u32 slot; /* ports_find */
	__u32 denied;
};

struct policy_in in;
struct policy_out out;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u64);
} unit_ranges SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, struct source_list);
} unit_lists SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1 << 20);
	__type(key, __u32);
	__type(value, __u64);
} unit_words SEC(".maps");

/* unit looks both up. */
SEC("xdp")
int unit(struct xdp_md *ctx)
{
	(void)ctx;
	out.slot = ports_find(&unit_ranges, in.span, in.protocol, in.port);
	out.denied = source_denied(&unit_lists, &unit_words, in.list, in.src_hi, in.src_lo, in.v6);
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
