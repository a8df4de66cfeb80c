// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Shows aes.h and quic.h to prog-run tests: they set `in` and `quic_sets`, run a program, and read `out`. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "lib/aes.h"
#include "lib/quic.h"

/* What is to be computed. */
struct quic_in {
	struct aes_schedule encryption;
	struct aes_schedule decryption;
	struct aes_block block;
	struct quic_cid cid;
	__u32 length; /* of cid */
	__u32 rsv;
};

struct quic_out {
	struct aes_block encrypted;
	__u32 first;  /* octets of what the block is the encryption of */
	__u32 member;
	/* Of the frame. */
	__u32 read;
	__u32 is_long;
	__u32 length;
	__u32 source;
	__u32 read_member;
	__u32 rsv;
};

struct quic_in in;
struct quic_out out;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct quic_set);
} unit_quic_sets SEC(".maps");

/* quic computes what needs no frame. */
SEC("xdp")
int quic(struct xdp_md *ctx)
{
	__u32 zero = 0;
	const struct quic_set *set = bpf_map_lookup_elem(&unit_quic_sets, &zero);

	(void)ctx;
	if (!set)
		return XDP_ABORTED;
	out.encrypted = aes_encrypt(&in.encryption, in.block);
	out.first = aes_decrypt_first(&in.decryption, in.block);
	out.member = quic_member(set, &in.cid, in.length);
	return XDP_PASS;
}

/* quic_frame reads the frame's bytes from the 14th on as a datagram. */
SEC("xdp.frags")
int quic_frame(struct xdp_md *ctx)
{
	__u32 zero = 0, end = bpf_xdp_get_buff_len(ctx);
	const struct quic_set *set = bpf_map_lookup_elem(&unit_quic_sets, &zero);
	struct quic_start start = {};

	if (!set)
		return XDP_ABORTED;
	out.read = quic_start_read(ctx, &start, 14, end);
	out.is_long = start.is_long;
	out.length = start.length;
	out.source = start.source;
	out.read_member = quic_member(set, &start.cid, start.length);
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
