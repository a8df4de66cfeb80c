// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The front of the data-plane benchmarks. One prog-run repeat is one packet: undo what the program under test did to
 * the frame in the repeat before, write the header of the next flow, let the stores retire, tail-call the program.
 * Time is stamped every 1 << stamp_shift packets, so that the harness can tell quiet stretches from disturbed ones.
 * The second program sends the same packets as live frames. */
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "flow.h"
#include "lib/cookie.h"

enum front_limit {
	FRAME_MAX = 96,
	CIDS = 1 << 12,
	STAMPS = 8192,
};

/* Offsets from the start of the Ethernet frame; the frame has no VLAN tag, no IP options. */
enum frame_offset {
	IP4_CHECKSUM = 24,
	IP4_SOURCE = 26,
	IP4_DESTINATION = 30,
	IP4_PORTS = 34,
	IP4_FRAME = 64,
	IP4_ECHO = 62,       /* of timestamps behind two NOPs */
	IP4_ECHO_FRAME = 66,
	IP4_CID = 43,        /* of a short header of QUIC */
	IP4_CID_FRAME = 80,
	IP6_SOURCE_LOW = 30,
	IP6_DESTINATION_LOW = 46,
	IP6_PORTS = 54,
	IP6_FRAME = 80,
	IP6_ECHO = 82,
	IP6_ECHO_FRAME = 86,
};

/* Written by the harness before a run. */
struct front_config {
	__u8 frame[FRAME_MAX]; /* IPv4: addresses and header checksum zero; IPv6: low halves of the addresses zero */
	__u32 frame_len;
	__u32 family;       /* 4 or 6 */
	__u32 flows;        /* random flow numbers are below this */
	__u32 vips;
	__u32 ordered;      /* 1: flow numbers count up from state.next instead */
	__u32 repeat_shift; /* ordered: each flow has 1 << repeat_shift packets in a row */
	__u32 sum4;         /* IPv4: folded ones' complement sum of the header as in `frame`, words as stored */
	__u32 client4;      /* IPv4: base of the client addresses, host order */
	__u32 vip4;         /* IPv4: address of VIP 0, host order */
	__u32 stamp_shift;  /* time is stamped every 1 << stamp_shift packets */
	__u16 port_be;      /* destination port */
	__u16 rsv;
	__u32 out_ifindex;  /* live frames: the device they leave by */
	struct siphash_key cookie_key; /* echoes carry cookies of key 0, which is this one */
	__u32 cookie_members; /* that cookies name; 0: there are no timestamps */
	__u32 cids;         /* 1: packets are of QUIC, with the connection ids of `cids` */
};

/* Written here, read by the harness after a run. */
struct front_state {
	__u64 random;       /* xorshift64 state; not 0 */
	__u64 packets;
	__u64 undo_failed;
	__u64 fence;
	__u32 flow;         /* number of the last flow */
	__u32 next;         /* where ordered flow numbers begin */
	__u64 stamps[STAMPS]; /* ns at packet i << stamp_shift */
};

struct front_config config;
struct front_state state;

/* The program under test. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} targets SEC(".maps");

/* A connection id, first octet lowest; what is behind its end is the packet's. */
struct front_cid {
	__u64 lo;
	__u64 mid;
	__u32 hi;
	__u32 rsv;
};

/* Connection ids, by the lowest bits of the flow number: few enough to stay in the caches, for what the program under test does with one does not depend on the
 * one before. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CIDS);
	__type(key, __u32);
	__type(value, struct front_cid);
} cids SEC(".maps");

/* next_flow returns the flow number of packet n: uniform below config.flows, or counted up. */
static __always_inline __u32 next_flow(__u64 n)
{
	__u64 r = state.random;

	if (config.ordered)
		return state.next + (__u32)(n >> config.repeat_shift);
	r ^= r << 13;
	r ^= r >> 7;
	r ^= r << 17;
	state.random = r;
	return (__u32)(((r >> 32) * config.flows) >> 32);
}

/* copy copies a field of the template; volatile, so that stores have the sizes that readers load. */
#define copy(type, at) (*(volatile type *)(data + (at)) = *(type *)(config.frame + (at)))

/* write4 writes a whole IPv4 frame. */
static __always_inline void write4(void *data, const struct flow_ids *ids)
{
	__u32 source = bpf_htonl(config.client4 | ids->client), vip = bpf_htonl(config.vip4 + ids->vip);
	__u32 sum = config.sum4 + (source & 0xffff) + (source >> 16) + (vip & 0xffff) + (vip >> 16);

	sum = (sum & 0xffff) + (sum >> 16);
	sum += sum >> 16;
	copy(__u64, 0);
	copy(__u32, 8);
	copy(__u16, 12);
	copy(__u32, 14);
	copy(__u32, 18);
	copy(__u16, 22);
	*(volatile __u16 *)(data + IP4_CHECKSUM) = ~sum;
	*(volatile __u64 *)(data + IP4_SOURCE) = source | (__u64)vip << 32;
	*(volatile __u32 *)(data + IP4_PORTS) = bpf_htons(ids->port) | (__u32)config.port_be << 16;
	copy(__u64, 38);
	copy(__u64, 46);
	copy(__u64, 54);
	copy(__u16, 62);
}

/* write6 writes a whole IPv6 frame. */
static __always_inline void write6(void *data, const struct flow_ids *ids)
{
	copy(__u64, 0);
	copy(__u32, 8);
	copy(__u16, 12);
	copy(__u64, 14);
	copy(__u64, 22);
	*(volatile __u64 *)(data + IP6_SOURCE_LOW) = bpf_cpu_to_be64((__u64)ids->spread << 32 | ids->client);
	copy(__u64, 38);
	*(volatile __u64 *)(data + IP6_DESTINATION_LOW) = bpf_cpu_to_be64((__u64)ids->vip + 1);
	*(volatile __u32 *)(data + IP6_PORTS) = bpf_htons(ids->port) | (__u32)config.port_be << 16;
	copy(__u64, 58);
	copy(__u64, 66);
	copy(__u32, 74);
	copy(__u16, 78);
}

/* write_echo writes the timestamp that a client echoes: the cookie of its flow. */
static __always_inline int write_echo(void *data, void *end)
{
	__u64 hash;
	__u32 id = flow_member_of(state.flow, config.cookie_members);

	if (config.family == 4) {
		if (data + IP4_ECHO_FRAME > end)
			return 0;
		hash = cookie_prf4(&config.cookie_key, bpf_ntohl(*(__u32 *)(data + IP4_SOURCE)), bpf_ntohs(*(__u16 *)(data + IP4_PORTS)), bpf_ntohs(config.port_be));
		*(volatile __u32 *)(data + IP4_ECHO) = bpf_htonl(cookie_place(state.flow, cookie_encode(hash, 0, id, cookie_secret(&config.cookie_key))));
		return 1;
	}
	if (data + IP6_ECHO_FRAME > end)
		return 0;
	hash = cookie_prf6(&config.cookie_key, *(__u64 *)(data + 22), *(__u64 *)(data + 30), bpf_ntohs(*(__u16 *)(data + IP6_PORTS)), bpf_ntohs(config.port_be));
	copy(__u16, IP6_FRAME);
	*(volatile __u32 *)(data + IP6_ECHO) = bpf_htonl(cookie_place(state.flow, cookie_encode(hash, 0, id, cookie_secret(&config.cookie_key))));
	return 1;
}

/* write_cid writes the connection id of a flow. */
static __always_inline int write_cid(void *data, void *end)
{
	__u32 index = state.flow & (CIDS - 1);
	const struct front_cid *cid = bpf_map_lookup_elem(&cids, &index);

	if (!cid || data + IP4_CID_FRAME > end)
		return 0;
	copy(__u64, IP4_CID + 20);
	copy(__u64, IP4_CID + 28);
	copy(__u8, IP4_CID + 36);
	*(volatile __u64 *)(data + IP4_CID) = cid->lo;
	*(volatile __u64 *)(data + IP4_CID + 8) = cid->mid;
	*(volatile __u32 *)(data + IP4_CID + 16) = cid->hi;
	return 1;
}

/* write_next writes the frame of packet n; false when it does not fit. */
static __always_inline int write_next(struct xdp_md *ctx, __u64 n)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct flow_ids ids;

	state.flow = next_flow(n);
	flow_ids_of(state.flow, config.vips, &ids);
	if (config.family == 4) {
		if (data + IP4_FRAME > end)
			return 0;
		write4(data, &ids);
	} else {
		if (data + IP6_FRAME > end)
			return 0;
		write6(data, &ids);
	}
	if (config.cids)
		return write_cid(data, end);
	return config.cookie_members ? write_echo(data, end) : 1;
}

SEC("xdp")
int front(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u64 n = state.packets++, len = end - data;

	/* Keeps the compiler from subtracting the halves: "32-bit pointer arithmetic prohibited" (Linux 6.18). */
	asm volatile("" : "+r"(len));

	if (!(n & ((1ULL << config.stamp_shift) - 1)))
		state.stamps[n >> config.stamp_shift & (STAMPS - 1)] = bpf_ktime_get_ns();
	if (bpf_xdp_adjust_head(ctx, (int)len - (int)config.frame_len)) {
		state.undo_failed++;
		return XDP_ABORTED;
	}
	if (!write_next(ctx, n))
		return XDP_ABORTED;
	/* A locked instruction: the frame is in the cache, not in the store buffer, and the packet before is finished,
	 * as with a frame that a device wrote. */
	__sync_fetch_and_add(&state.fence, 1);
	bpf_tail_call_static(ctx, &targets, 0);
	return XDP_ABORTED;
}

/* Frames come back as the receivers left them: all of the headers is written anew. */
SEC("xdp")
int generate(struct xdp_md *ctx)
{
	if (!write_next(ctx, state.packets++))
		return XDP_ABORTED;
	return bpf_redirect(config.out_ifindex, 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";
