// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The far end of the health benchmarks: servers without state that answer for every IPv4 address. A SYN gets a SYN-ACK, a
 * request `200 OK` with the FIN, a client's FIN its ACK (and a FIN, unless one went before), all else nothing. The server's
 * sequence number tells what was sent before. Frames may be lost on purpose, and the starts of probes are watched: how far
 * apart those of one target are is what an engine promises. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

enum responder_limit {
	RESPONDER_TARGETS = 1 << 18, /* whose starts can be watched */
	RESPONDER_LATENESS = 4096,   /* slots of lateness, of 1 ms each; the last has all that is later */
};

enum responder_constant {
	SERVER_ISN = 0x10000000,
	NS_PER_MS = 1000000,
};

/* Written by the harness. */
struct responder_config {
	__u64 interval_ns; /* between the probes of one target; 0: starts are not watched */
	__u64 deadline_ns; /* while starts are not watched: those after this time (CLOCK_MONOTONIC) missed it; 0: none does */
	__u32 first;       /* address of target 0, host order */
	__u32 targets;
	__u32 loss;        /* a frame, of either direction, is lost with odds of loss in 2^32 */
	__u32 out_ifindex; /* the device itself: answers go where the question came from */
	__u32 gone_first;  /* servers that are gone, as first and targets */
	__u32 gone_targets;
	__u32 gone_silent; /* they answer nothing; else they refuse */
	__u32 rsv;
};

/* Counted here. One CPU at a time. */
struct responder_state {
	__u64 starts;     /* SYNs that begin a probe; while starts are not watched, all SYNs */
	__u64 again;      /* SYNs that were sent again: the sequence number is as before and half an interval not over */
	__u64 requests;
	__u64 lost;
	__u64 failed;     /* answers that found no room in the frame */
	__u64 strangers;  /* frames that are no TCP over IPv4 of the plain form */
	__u64 missed;     /* starts that came more than two intervals after the last of their target, or after the deadline */
	__u64 lateness[RESPONDER_LATENESS]; /* starts by how many ms farther from the last one than an interval */
};

/* The last start of a target. */
struct responder_start {
	__u64 at_ns;
	__u32 isn;
	__u32 rsv;
};

struct responder_config config;
struct responder_state state;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, RESPONDER_TARGETS);
	__type(key, __u32);
	__type(value, struct responder_start);
} starts SEC(".maps");

enum frame_offset {
	IP_AT = ETH_HLEN,
	TCP_AT = IP_AT + sizeof(struct iphdr),
	PAYLOAD_AT = TCP_AT + sizeof(struct tcphdr),
};

static const char answer[] = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

enum answer_limit {
	ANSWER_LEN = sizeof(answer) - 1,
	ANSWER_SUM_LEN = 56, /* the largest multiple of 4 that is not above ANSWER_LEN */
};

_Static_assert(ANSWER_LEN == 57, "the loop over the answer's checksum is of fixed length");

/* lost decides about one frame. */
static __always_inline int lost(void)
{
	if (!config.loss || bpf_get_prandom_u32() >= config.loss)
		return 0;
	state.lost++;
	return 1;
}

/* watch notes a SYN to a target. */
static __always_inline void watch(__u32 target, __u32 isn)
{
	struct responder_start *s;
	__u64 now, late;

	if (!config.interval_ns) {
		state.starts++;
		if (config.deadline_ns && bpf_ktime_get_coarse_ns() > config.deadline_ns)
			state.missed++;
		return;
	}
	s = bpf_map_lookup_elem(&starts, &target);
	if (!s || target >= config.targets)
		return;
	now = bpf_ktime_get_ns();
	late = now - s->at_ns;
	if (s->isn == isn && late < config.interval_ns / 2) {
		state.again++;
		return;
	}
	state.starts++;
	if (s->at_ns) {
		if (late > 2 * config.interval_ns)
			state.missed++;
		late = late > config.interval_ns ? (late - config.interval_ns) / NS_PER_MS : 0;
		if (late >= RESPONDER_LATENESS)
			late = RESPONDER_LATENESS - 1;
		state.lateness[late]++;
	}
	s->at_ns = now;
	s->isn = isn;
}

/* sum adds the 32-bit words of length bytes, which is a constant and a multiple of 4. */
static __always_inline __u64 sum(const void *from, __u32 length, __u64 total)
{
	const __u32 *words = from;

#pragma unroll
	for (__u32 i = 0; i < length / 4; i++)
		total += words[i];
	return total;
}

static __always_inline __u16 fold(__u64 total)
{
	total = (total & 0xffffffff) + (total >> 32);
	total = (total & 0xffffffff) + (total >> 32);
	total = (total & 0xffff) + (total >> 16);
	total = (total & 0xffff) + (total >> 16);
	return ~total;
}

/* Room that a SYN-ACK has behind it, at least, as it would in the buffers of a network card: a checker that is a program makes its
 * request of the frame. A veth's buffer of a short frame has room in front only. */
enum { ROOM = 160 };

/* reply turns the frame into an answer with the given payload and sends it back. */
static __always_inline int reply(struct xdp_md *ctx, __u32 seq, __u32 ack_seq, __u16 flags_be, int payload, int room)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const int length = PAYLOAD_AT + (payload ? ANSWER_LEN : 0);
	__u64 had = end - data, total;
	struct ethhdr *eth = data, was;
	struct iphdr *ip = data + IP_AT;
	struct tcphdr *tcp = data + TCP_AT;
	__u32 here, there;
	__u16 port, peer;

	/* Keeps the compiler from subtracting the halves: "32-bit pointer arithmetic prohibited" (Linux 6.18). */
	asm volatile("" : "+r"(had));
	if (data + PAYLOAD_AT > end)
		return XDP_ABORTED;
	was = *eth;
	here = ip->daddr;
	there = ip->saddr;
	port = tcp->dest;
	peer = tcp->source;
	if (room && !bpf_xdp_adjust_head(ctx, -room))
		had += room;
	if (bpf_xdp_adjust_tail(ctx, length - (int)had)) {
		state.failed++;
		return XDP_ABORTED;
	}
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	eth = data;
	ip = data + IP_AT;
	tcp = data + TCP_AT;
	if (data + length > end)
		return XDP_ABORTED;
	__builtin_memcpy(eth->h_dest, was.h_source, ETH_ALEN);
	__builtin_memcpy(eth->h_source, was.h_dest, ETH_ALEN);
	eth->h_proto = bpf_htons(ETH_P_IP);
	((__u16 *)ip)[0] = bpf_htons(0x4500);
	ip->tot_len = bpf_htons(length - IP_AT);
	ip->id = 0;
	ip->frag_off = bpf_htons(0x4000);
	ip->ttl = 64;
	ip->protocol = IPPROTO_TCP;
	ip->check = 0;
	ip->saddr = here;
	ip->daddr = there;
	ip->check = fold(sum(ip, sizeof(*ip), 0));
	tcp->source = port;
	tcp->dest = peer;
	tcp->seq = bpf_htonl(seq);
	tcp->ack_seq = bpf_htonl(ack_seq);
	((__u16 *)tcp)[6] = flags_be;
	tcp->window = bpf_htons(0xffff);
	tcp->check = 0;
	tcp->urg_ptr = 0;
	total = (__u64)here + there + bpf_htonl(IPPROTO_TCP << 16 | (__u32)(length - TCP_AT));
	total = sum(tcp, sizeof(*tcp), total);
	if (payload) {
		__builtin_memcpy(data + PAYLOAD_AT, answer, ANSWER_LEN);
		total = sum(data + PAYLOAD_AT, ANSWER_SUM_LEN, total) + (__u8)answer[ANSWER_SUM_LEN];
	}
	tcp->check = fold(total);
	if (lost())
		return XDP_DROP;
	return bpf_redirect(config.out_ifindex, 0);
}

/* Data offset and flags of an answer, as the header has them: no options. */
#define FLAGS(f) bpf_htons(5 << 12 | (f))

enum tcp_flag {
	FLAG_FIN = 0x01,
	FLAG_SYN = 0x02,
	FLAG_RST = 0x04,
	FLAG_PSH = 0x08,
	FLAG_ACK = 0x10,
};

SEC("xdp")
int responder(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 seq, ack, payload, flags, header;
	struct ethhdr *eth = data;
	struct iphdr *ip = data + IP_AT;
	struct tcphdr *tcp = data + TCP_AT;

	if (data + PAYLOAD_AT > end)
		return XDP_PASS;
	if (eth->h_proto != bpf_htons(ETH_P_IP) || ((__u8 *)ip)[0] != 0x45 || ip->protocol != IPPROTO_TCP) {
		state.strangers++;
		return XDP_PASS;
	}
	flags = ((__u8 *)tcp)[13];
	seq = bpf_ntohl(tcp->seq);
	ack = bpf_ntohl(tcp->ack_seq);
	if (flags & FLAG_SYN)
		watch(bpf_ntohl(ip->daddr) - config.first, seq);
	if (lost())
		return XDP_DROP;
	if (bpf_ntohl(ip->daddr) - config.gone_first < config.gone_targets) {
		if (config.gone_silent || !(flags & FLAG_SYN))
			return XDP_DROP;
		return reply(ctx, 0, seq + 1, FLAGS(FLAG_RST | FLAG_ACK), 0, 0);
	}
	if (flags & FLAG_SYN)
		return reply(ctx, SERVER_ISN, seq + 1, FLAGS(FLAG_SYN | FLAG_ACK), 0, ROOM);
	if (flags & FLAG_RST || !(flags & FLAG_ACK))
		return XDP_DROP;
	header = sizeof(*ip) + (((__u8 *)tcp)[12] >> 4) * 4;
	payload = bpf_ntohs(ip->tot_len);
	if (payload < header)
		return XDP_DROP;
	payload -= header;
	if (payload) {
		/* Sent again when the answer was lost, with a FIN behind it or not. */
		state.requests++;
		return reply(ctx, SERVER_ISN + 1, seq + payload + (flags & FLAG_FIN), FLAGS(FLAG_PSH | FLAG_ACK | FLAG_FIN), 1, 0);
	}
	if (!(flags & FLAG_FIN))
		return XDP_DROP;
	if (ack == SERVER_ISN + 1)
		return reply(ctx, ack, seq + 1, FLAGS(FLAG_ACK | FLAG_FIN), 0, 0);
	return reply(ctx, ack, seq + 1, FLAGS(FLAG_ACK), 0, 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";
