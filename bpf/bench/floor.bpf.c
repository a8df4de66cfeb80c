// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The floor of the data-plane benchmark: what every balancer that encapsulates must pay. No lookup, no checks of the
 * packet, no counters; the outer header is complete, with the inner length and TOS and, for IPv4, its checksum.
 * For live frames there is the same with a redirect behind it, and the sink that the frames end in. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

enum floor_limit {
	SINK_STAMP_SHIFT = 14,
	SINK_STAMPS = 1024,
	SINK_CPUS = 64,
};

/* What arrived on one CPU, on lines of its own. */
struct sink_state {
	__u64 packets;
	__u64 strangers; /* frames that are not IP in IP */
	__u64 stamps[SINK_STAMPS]; /* ns at packet i << SINK_STAMP_SHIFT */
	__u64 rsv[6];
};

struct sink_state sinks[SINK_CPUS];

/* The device that floor_live4 sends by. */
volatile __u32 out_ifindex;

enum floor_constant {
	OUTER_TTL = 64,
	SOURCE4 = 0x64400001,      /* 100.64.0.1 */
	DESTINATION4 = 0x0a140101, /* 10.20.1.1 */
};

static const __u8 macs[2 * ETH_ALEN] = {0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2};

/* Nothing: measured beside the others and subtracted. */
SEC("xdp")
int floor_null(struct xdp_md *ctx)
{
	return XDP_TX;
}

static __always_inline int encapsulate4(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct iphdr *inner = data + ETH_HLEN, *outer;
	__u32 first, sum;

	if ((void *)(inner + 1) > end)
		return XDP_DROP;
	first = 0x45 | (__u32)inner->tos << 8 |
		(__u32)bpf_htons(bpf_ntohs(inner->tot_len) + sizeof(*outer)) << 16;
	if (bpf_xdp_adjust_head(ctx, -(int)sizeof(*outer)))
		return XDP_DROP;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	outer = data + ETH_HLEN;
	if ((void *)(outer + 1) > end)
		return XDP_DROP;
	__builtin_memcpy(data, macs, sizeof(macs));
	((struct ethhdr *)data)->h_proto = bpf_htons(ETH_P_IP);
	sum = (first & 0xffff) + (first >> 16) + (OUTER_TTL | IPPROTO_IPIP << 8) +
	      (bpf_htonl(SOURCE4) & 0xffff) + (bpf_htonl(SOURCE4) >> 16) +
	      (bpf_htonl(DESTINATION4) & 0xffff) + (bpf_htonl(DESTINATION4) >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum += sum >> 16;
	((__u32 *)outer)[0] = first;
	((__u32 *)outer)[1] = 0;
	((__u32 *)outer)[2] = (OUTER_TTL | IPPROTO_IPIP << 8) | ~sum << 16;
	((__u32 *)outer)[3] = bpf_htonl(SOURCE4);
	((__u32 *)outer)[4] = bpf_htonl(DESTINATION4);
	return XDP_TX;
}

SEC("xdp")
int floor_ip4(struct xdp_md *ctx)
{
	return encapsulate4(ctx);
}

/* The floor of live frames. */
SEC("xdp")
int floor_live4(struct xdp_md *ctx)
{
	int verdict = encapsulate4(ctx);

	return verdict == XDP_TX ? bpf_redirect(out_ifindex, 0) : verdict;
}

SEC("xdp")
int floor_ip6(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ipv6hdr *inner = data + ETH_HLEN, *outer;
	__u64 *words;
	__u16 length;

	if ((void *)(inner + 1) > end)
		return XDP_DROP;
	length = bpf_htons(bpf_ntohs(inner->payload_len) + sizeof(*outer));
	if (bpf_xdp_adjust_head(ctx, -(int)sizeof(*outer)))
		return XDP_DROP;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	outer = data + ETH_HLEN;
	if ((void *)(outer + 1) > end)
		return XDP_DROP;
	__builtin_memcpy(data, macs, sizeof(macs));
	((struct ethhdr *)data)->h_proto = bpf_htons(ETH_P_IPV6);
	words = (__u64 *)outer;
	words[0] = 0x60 | (__u64)length << 32 | (__u64)IPPROTO_IPV6 << 48 | (__u64)OUTER_TTL << 56;
	words[1] = bpf_cpu_to_be64(0xfd53687500000000ULL);
	words[2] = bpf_cpu_to_be64(1);
	words[3] = bpf_cpu_to_be64(0x20010db800200001ULL);
	words[4] = bpf_cpu_to_be64(1);
	return XDP_TX;
}

/* The end of live frames: counts and drops. */
SEC("xdp")
int sink(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct sink_state *s = &sinks[bpf_get_smp_processor_id() & (SINK_CPUS - 1)];
	struct iphdr *outer = data + ETH_HLEN;
	__u64 n = s->packets;

	if ((void *)(outer + 1) > end || outer->version != 4 || outer->protocol != IPPROTO_IPIP) {
		s->strangers++;
		return XDP_DROP;
	}
	if (!(n & ((1 << SINK_STAMP_SHIFT) - 1)))
		s->stamps[n >> SINK_STAMP_SHIFT & (SINK_STAMPS - 1)] = bpf_ktime_get_ns();
	s->packets = n + 1;
	return XDP_DROP;
}

char _license[] SEC("license") = "Dual BSD/GPL";
