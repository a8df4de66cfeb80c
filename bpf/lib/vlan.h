/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* VLAN tags (IEEE 802.1Q, 802.1ad), one or two. A frame's tags are kept as one word: the outer tag in the low half, the
 * inner in the high one, each TPID and TCI as stored; 0 is none. */
#ifndef SHUNT_VLAN_H
#define SHUNT_VLAN_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

enum vlan {
	VLAN_LEN = 4, /* of a tag */
	VLAN_MACS = 2 * ETH_ALEN,
};

/* vlan_is says whether an Ethernet type announces a tag; the type as stored. */
static __always_inline int vlan_is(__u16 type)
{
	return type == bpf_htons(ETH_P_8021Q) || type == bpf_htons(ETH_P_8021AD);
}

/* vlan_len is the length of tags. */
static __always_inline __u32 vlan_len(__u64 tags)
{
	return tags >> 32 ? 2 * VLAN_LEN : tags ? VLAN_LEN : 0;
}

/* vlan_type reads the type behind `tags` tags; false when the frame ends before. */
static __always_inline int vlan_type(const void *data, const void *end, __u32 tags, __u16 *type)
{
	const __u16 *at = data + VLAN_MACS + tags * VLAN_LEN;

	if ((const void *)(at + 1) > end)
		return 0;
	*type = *at;
	return 1;
}

/* vlan_read reads a frame's tags and the type behind them, as stored. False when the frame ends before that. */
static __always_inline int vlan_read(const void *data, const void *end, __u64 *tags, __u16 *type)
{
	const __u32 *tag = data + VLAN_MACS;

	*tags = 0;
	*type = 0;
	if (!vlan_type(data, end, 0, type))
		return 0;
	if (!vlan_is(*type))
		return 1;
	if (!vlan_type(data, end, 1, type))
		return 0;
	*tags = tag[0];
	if (!vlan_is(*type))
		return 1;
	if (!vlan_type(data, end, 2, type))
		return 0;
	*tags |= (__u64)tag[1] << 32;
	return 1;
}

/* vlan_move puts the two addresses of a frame at its new beginning, `by` bytes on (back, when below 0). */
static __always_inline int vlan_move(struct xdp_md *ctx, int by)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u64 a;
	__u32 b;

	if (data + VLAN_MACS > end)
		return 0;
	a = *(__u64 *)data;
	b = *(__u32 *)(data + 8);
	if (bpf_xdp_adjust_head(ctx, by))
		return 0;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (data + VLAN_MACS > end)
		return 0;
	*(__u64 *)data = a;
	*(__u32 *)(data + 8) = b;
	return 1;
}

/* vlan_strip takes the tags that vlan_read found off a frame. */
static __always_inline int vlan_strip(struct xdp_md *ctx, __u64 tags)
{
	return tags >> 32 ? vlan_move(ctx, 2 * VLAN_LEN) : vlan_move(ctx, VLAN_LEN);
}

/* vlan_push puts tags into a frame without any; false when there is no headroom. */
static __always_inline int vlan_push(struct xdp_md *ctx, __u64 tags)
{
	void *data, *end;

	if (!(tags >> 32 ? vlan_move(ctx, -2 * VLAN_LEN) : vlan_move(ctx, -VLAN_LEN)))
		return 0;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (data + VLAN_MACS + 2 * VLAN_LEN > end)
		return 0;
	*(__u32 *)(data + VLAN_MACS) = tags;
	if (tags >> 32)
		*(__u32 *)(data + VLAN_MACS + VLAN_LEN) = tags >> 32;
	return 1;
}

#endif
