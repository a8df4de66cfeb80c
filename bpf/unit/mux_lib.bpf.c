// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Shows hash.h, endpoint.h, load.h and ring.h to prog-run tests: they set `in`, run the program, and read `out`. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "lib/endpoint.h"
#include "lib/hash.h"
#include "lib/load.h"
#include "lib/ring.h"

/* What is to be computed. */
struct unit_in {
	struct siphash_key key;
	__u64 src_hi; /* as stored */
	__u64 src_lo;
	__u64 dst_hi;
	__u64 dst_lo;
	__u64 ring;  /* words of an endpoint */
	__u64 range;
	__u64 hash;  /* a flow hash, for the walk */
	__u32 vni;
	__u16 sport;
	__u16 dport;
	__u32 protocol;
	__u32 rsv;
};

struct unit_out {
	__u64 flow4;
	__u64 flow6;
	__u64 table4;
	__u64 table6;
	__u64 endpoint;
	__u32 id;
	__u32 probes; /* all ones: nothing is usable */
};

struct unit_in in;
struct unit_out out;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u64);
} unit_rings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u64);
} unit_members SEC(".maps");

/* walk is what the mux does to find a member: the slot's own, else ring_walk. */
static __always_inline void walk(void)
{
	__u32 slot = ring_slot(in.hash, in.ring >> 32 & 0x1f);
	struct ring_choice c = { .id = ring_member(&unit_rings, (__u32)in.ring, slot) };

	if (!member_usable_word(&unit_members, (__u32)in.range, in.range >> 32, c.id)) {
		c = ring_walk(&unit_rings, &unit_members, in.ring, in.range, slot);
		if (!c.probes)
			c.probes = 0xffffffff;
	}
	out.id = c.id;
	out.probes = c.probes;
}

/* unit computes everything. */
SEC("xdp")
int unit(struct xdp_md *ctx)
{
	struct siphash_key key = in.key;
	__u64 word = flow_word(in.vni, in.sport, in.dport, in.protocol);

	(void)ctx;
	out.flow4 = flow_hash4(&key, bpf_ntohl(in.src_lo >> 32), bpf_ntohl(in.dst_lo >> 32), word);
	out.flow6 = flow_hash6(&key, in.src_hi, in.src_lo, in.dst_hi, in.dst_lo, word);
	out.table4 = table_hash4(&key, bpf_ntohl(in.src_lo >> 32), bpf_ntohl(in.dst_lo >> 32), word);
	out.table6 = table_hash6(&key, in.src_hi, in.src_lo, in.dst_hi, in.dst_lo, word);
	out.endpoint = endpoint_hash(in.dst_hi, in.dst_lo, endpoint_key(in.vni, in.protocol, in.dport));
	walk();
	return XDP_PASS;
}

/* unit_load counts in the first word of unit_members a connection more, and two less. */
SEC("xdp")
int unit_load(struct xdp_md *ctx)
{
	__u32 zero = 0;
	__u64 *load = bpf_map_lookup_elem(&unit_members, &zero);

	(void)ctx;
	if (!load)
		return XDP_DROP;
	load_add(load);
	load_take(load);
	load_take(load);
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
