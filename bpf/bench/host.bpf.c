// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The front of the benchmarks of the host's programs, as front.bpf.c is of the mux's: one repeat is one packet, whose
 * length and headers are made anew before the program under test is called. Each direction has a front of its own,
 * because a program calls only what is attached the way it is itself.
 * Then the floors: what a host that does nothing but its tunnel's part must pay. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "flow.h"

enum host_front_limit {
	HOST_FRAME_MAX = 96,
	HOST_STAMPS = 8192,
};

enum host_front_verdict {
	FRONT_NEXT = -1,
	FRONT_DROP = 2,
};

/* Offsets from the start of the Ethernet frame; no VLAN tag, no IP options. OUT: a bare packet of a server, IN: a
 * client's in an IPv4 tunnel. */
enum host_frame_offset {
	OUT_CHECKSUM = 24,
	OUT_SOURCE = 26,
	OUT_PORTS = 34,
	OUT_SEQ = 38,
	OUT_FRAME = 64,
	OUT_TIMES = 58,   /* with timestamps: TSval and TSecr, behind which nothing is */
	OUT_STAMPED = 66,
	IN_OUTER_CHECKSUM = 24,
	IN_OUTER_SOURCE = 26,
	IN_CHECKSUM = 44,
	IN_SOURCE = 46,
	IN_PORTS = 54,
	IN_SEQ = 58,
	IN_FRAME = 84,
	IN_TIMES = 78,
	IN_STAMPED = 86,
};

/* Written by the harness before a run. */
struct host_setting {
	__u8 frame[HOST_FRAME_MAX]; /* addresses that vary, header checksums, ports and sequence number zero */
	__u32 frame_len;
	__u32 flows;       /* random flow numbers are below this */
	__u32 ordered;     /* 1: flow numbers count up from state.next instead */
	__u32 stamp_shift; /* time is stamped every 1 << stamp_shift packets */
	__u32 client4;     /* base of the client addresses, host order */
	__u32 fixed4;      /* as stored: the outer source on the way in, unused on the way out */
	__u32 vip4;        /* as stored: the inner destination on the way in */
	__u32 dip4;        /* base of the DIPs, host order: flow n has DIP n % dips */
	__u32 dips;        /* a power of two */
	__u32 outer_sum;   /* folded ones' complement sums of the headers as in `frame`, words as stored */
	__u32 inner_sum;
	__u32 seq;         /* sequence number of packet 0: it counts packets */
	__u16 port_be;     /* the endpoint's on the way in, the DIP's on the way out */
	__u16 stamped;     /* 1: frames have timestamps */
	__u32 time;        /* TSval of packet 0; it grows by one every 1 << time_shift packets */
	__u32 time_shift;
};

/* Written here, read by the harness after a run. */
struct host_progress {
	__u64 random;       /* xorshift64 state; not 0 */
	__u64 packets;
	__u64 undo_failed;
	__u64 fence;
	__u32 flow;         /* number of the last flow */
	__u32 next;         /* where ordered flow numbers begin */
	__u64 stamps[HOST_STAMPS]; /* ns at packet i << stamp_shift */
};

struct host_setting setting;
struct host_progress progress;

/* What a flow's packets echo on the way in, host order. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64); /* elements of maps have whole words */
} echoes SEC(".maps");

/* The programs under test, one for each direction. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} targets_in SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} targets_out SEC(".maps");

/* next_flow returns the flow number of packet n: uniform below setting.flows, or counted up. */
static __always_inline __u32 next_flow(__u64 n)
{
	__u64 r = progress.random;

	if (setting.ordered)
		return progress.next + (__u32)n;
	r ^= r << 13;
	r ^= r >> 7;
	r ^= r << 17;
	progress.random = r;
	return (__u32)(((r >> 32) * setting.flows) >> 32);
}

/* header_sum is the checksum of an IPv4 header whose other words have the sum `sum` when two words more are in it. */
static __always_inline __u16 header_sum(__u32 sum, __u32 a, __u32 b)
{
	sum += (a & 0xffff) + (a >> 16) + (b & 0xffff) + (b >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum += sum >> 16;
	return ~sum;
}

/* copy copies a field of the template; volatile, so that stores have the sizes that readers load. */
#define copy(type, at) (*(volatile type *)(data + (at)) = *(type *)(setting.frame + (at)))

/* write_out writes the frame of a server's packet. */
static __always_inline void write_out(void *data, const struct flow_ids *ids, __u32 dip, __u32 seq)
{
	__u32 client = bpf_htonl(setting.client4 | ids->client);

	copy(__u64, 0);
	copy(__u32, 8);
	copy(__u16, 12);
	copy(__u32, 14);
	copy(__u32, 18);
	copy(__u16, 22);
	*(volatile __u16 *)(data + OUT_CHECKSUM) = header_sum(setting.inner_sum, dip, client);
	*(volatile __u64 *)(data + OUT_SOURCE) = dip | (__u64)client << 32;
	*(volatile __u32 *)(data + OUT_PORTS) = setting.port_be | (__u32)bpf_htons(ids->port) << 16;
	*(volatile __u32 *)(data + OUT_SEQ) = bpf_htonl(seq);
	copy(__u32, 42);
	copy(__u64, 46);
	copy(__u64, 54);
	copy(__u16, 62);
}

/* write_in writes the frame of a client's packet in its tunnel. */
static __always_inline void write_in(void *data, const struct flow_ids *ids, __u32 dip, __u32 seq)
{
	__u32 client = bpf_htonl(setting.client4 | ids->client);

	copy(__u64, 0);
	copy(__u32, 8);
	copy(__u16, 12);
	copy(__u32, 14);
	copy(__u32, 18);
	copy(__u16, 22);
	*(volatile __u16 *)(data + IN_OUTER_CHECKSUM) = header_sum(setting.outer_sum, setting.fixed4, dip);
	*(volatile __u64 *)(data + IN_OUTER_SOURCE) = setting.fixed4 | (__u64)dip << 32;
	copy(__u32, 34);
	copy(__u32, 38);
	copy(__u16, 42);
	*(volatile __u16 *)(data + IN_CHECKSUM) = header_sum(setting.inner_sum, client, setting.vip4);
	*(volatile __u64 *)(data + IN_SOURCE) = client | (__u64)setting.vip4 << 32;
	*(volatile __u32 *)(data + IN_PORTS) = bpf_htons(ids->port) | (__u32)setting.port_be << 16;
	*(volatile __u32 *)(data + IN_SEQ) = bpf_htonl(seq);
	copy(__u32, 62);
	copy(__u64, 66);
	copy(__u64, 74);
	copy(__u16, 82);
}

/* write_times writes the timestamps. */
static __always_inline void write_times(void *times, __u64 n, __u32 echo)
{
	*(volatile __u32 *)times = bpf_htonl(setting.time + (__u32)(n >> setting.time_shift));
	*(volatile __u32 *)(times + 4) = bpf_htonl(echo);
}

/* prepare makes the frame of the next packet; false when it cannot. */
static __always_inline int prepare(struct __sk_buff *skb, int in)
{
	__u64 n = progress.packets++;
	__s32 missing = (__s32)setting.frame_len - (__s32)skb->len;
	__u64 *echo = 0;
	struct flow_ids ids;
	void *data, *end;
	__u32 dip;

	if (!(n & ((1ULL << setting.stamp_shift) - 1)))
		progress.stamps[n >> setting.stamp_shift & (HOST_STAMPS - 1)] = bpf_ktime_get_ns();
	/* Only a program that takes the packet out of its tunnel leaves something to undo. */
	if (missing && bpf_skb_adjust_room(skb, missing, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_NO_CSUM_RESET)) {
		progress.undo_failed++;
		return 0;
	}
	progress.flow = next_flow(n);
	flow_ids_of(progress.flow, 1, &ids);
	dip = bpf_htonl(setting.dip4 | (progress.flow & (setting.dips - 1)));
	if (in && setting.stamped)
		echo = bpf_map_lookup_elem(&echoes, &progress.flow);
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	if (in) {
		if (data + IN_FRAME > end)
			return 0;
		write_in(data, &ids, dip, setting.seq + (__u32)n);
		if (setting.stamped && data + IN_STAMPED <= end)
			write_times(data + IN_TIMES, n, echo ? *echo : 0);
	} else {
		if (data + OUT_FRAME > end)
			return 0;
		write_out(data, &ids, dip, setting.seq + (__u32)n);
		if (setting.stamped && data + OUT_STAMPED <= end)
			write_times(data + OUT_TIMES, n, 0);
	}
	/* A locked instruction: the packet before is finished, and the frame is in the cache, as with one that a device
	 * wrote. */
	__sync_fetch_and_add(&progress.fence, 1);
	return 1;
}

SEC("tcx/ingress")
int front_in(struct __sk_buff *skb)
{
	if (prepare(skb, 1))
		bpf_tail_call_static(skb, &targets_in, 0);
	return FRONT_DROP;
}

SEC("tcx/egress")
int front_out(struct __sk_buff *skb)
{
	if (prepare(skb, 0))
		bpf_tail_call_static(skb, &targets_out, 0);
	return FRONT_DROP;
}

/* Nothing: measured beside the others and subtracted; on the way out it is the floor too. */
SEC("tcx/ingress")
int null_in(struct __sk_buff *skb)
{
	return FRONT_NEXT;
}

SEC("tcx/egress")
int null_out(struct __sk_buff *skb)
{
	return FRONT_NEXT;
}

/* The floor of the way in: the outer header goes, and the packet goes on by a device. No look at the packet, no route. */
SEC("tcx/ingress")
int floor_in(struct __sk_buff *skb)
{
	/* BPF_F_ADJ_ROOM_DECAP_L3_IPV4 came with Linux 6.3, later than the headers of some builders. */
	const __u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_NO_CSUM_RESET | 1 << 7;

	if (bpf_skb_adjust_room(skb, -(__s32)sizeof(struct iphdr), BPF_ADJ_ROOM_MAC, flags))
		return FRONT_DROP;
	return bpf_redirect_neigh(skb->ifindex, 0, 0, 0);
}

/* The floor of repair: the packet goes on by a device as it is. */
SEC("tcx/ingress")
int floor_repair(struct __sk_buff *skb)
{
	return bpf_redirect_neigh(skb->ifindex, 0, 0, 0);
}

/* What the host's programs ask of the kernel for a packet, and nothing else: no parsing beyond what it takes, no tables,
 * no counters. */

enum helper_constant {
	HELPERS_IP4 = 2, /* AF_INET */
	HELPERS_IP = ETH_HLEN,
	HELPERS_TCP = ETH_HLEN + 20,
	HELPERS_TCP_CHECK = HELPERS_TCP + 16,
	HELPERS_CHECK = HELPERS_IP + __builtin_offsetof(struct iphdr, check),
};

/* Replaces an address of a bare packet and both ports, with their sums. */
static __always_inline int helpers_translate(struct __sk_buff *skb, __u32 at, __u32 from, __u32 to)
{
	__u32 ports = 0x901f0101;

	return bpf_l4_csum_replace(skb, HELPERS_TCP_CHECK, 0, from - to, BPF_F_PSEUDO_HDR) ||
	       bpf_l4_csum_replace(skb, HELPERS_TCP_CHECK, from, ports, sizeof(ports)) ||
	       bpf_skb_store_bytes(skb, HELPERS_TCP, &ports, sizeof(ports), 0) ||
	       bpf_l3_csum_replace(skb, HELPERS_CHECK, from, to, sizeof(to)) || bpf_skb_store_bytes(skb, at, &to, sizeof(to), 0);
}

/* Of host_in: out of the tunnel, the route, a translation, the way to the server. */
SEC("tcx/ingress")
int helpers_in(struct __sk_buff *skb)
{
	const __u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_NO_CSUM_RESET | 1 << 7;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct bpf_fib_lookup fib = { .family = HELPERS_IP4, .ifindex = skb->ifindex };
	struct bpf_redir_neigh to = { .nh_family = HELPERS_IP4 };
	__u32 vip;

	if (data + IN_FRAME > end)
		return FRONT_DROP;
	fib.ipv4_dst = *(__u32 *)(data + IN_OUTER_SOURCE + 4);
	fib.ipv4_src = *(__u32 *)(data + IN_SOURCE);
	vip = *(__u32 *)(data + IN_SOURCE + 4);
	if (bpf_skb_adjust_room(skb, -(__s32)sizeof(struct iphdr), BPF_ADJ_ROOM_MAC, flags))
		return FRONT_DROP;
	if (helpers_translate(skb, OUT_SOURCE + 4, vip, fib.ipv4_dst) || bpf_fib_lookup(skb, &fib, sizeof(fib), BPF_FIB_LOOKUP_SKIP_NEIGH))
		return FRONT_DROP;
	to.ipv4_nh = fib.ipv4_dst;
	return bpf_redirect_neigh(fib.ifindex, &to, sizeof(to), 0);
}

/* Of host_out: a translation. */
SEC("tcx/egress")
int helpers_out(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	if (data + OUT_FRAME > end)
		return FRONT_DROP;
	return helpers_translate(skb, OUT_SOURCE, *(__u32 *)(data + OUT_SOURCE), setting.vip4) ? FRONT_DROP : FRONT_NEXT;
}

/* Of repair: the outer header's addresses and lifetime, with their sum, and the way on. */
SEC("tcx/ingress")
int helpers_repair(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 from, to, src = setting.vip4;
	__u8 ttl = 63;

	if (data + IN_FRAME > end)
		return FRONT_DROP;
	from = *(__u32 *)(data + IN_OUTER_SOURCE);
	to = *(__u32 *)(data + IN_OUTER_SOURCE + 4);
	if (bpf_l3_csum_replace(skb, HELPERS_CHECK, from, src, sizeof(src)) || bpf_l3_csum_replace(skb, HELPERS_CHECK, to, src, sizeof(src)) ||
	    bpf_l3_csum_replace(skb, HELPERS_CHECK, 64, ttl, sizeof(__u16)) ||
	    bpf_skb_store_bytes(skb, HELPERS_IP + __builtin_offsetof(struct iphdr, ttl), &ttl, sizeof(ttl), 0) ||
	    bpf_skb_store_bytes(skb, IN_OUTER_SOURCE, &src, sizeof(src), 0) || bpf_skb_store_bytes(skb, IN_OUTER_SOURCE + 4, &src, sizeof(src), 0))
		return FRONT_DROP;
	return bpf_redirect_neigh(skb->ifindex, 0, 0, 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";
