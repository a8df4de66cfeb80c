/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Answers to the probes that the agent makes by packets: they come to our own address, which is no VIP. The checksum of TCP is
 * not looked at: frames that a veth brings from a local socket have none yet. */
#ifndef SHUNT_MUX_PROBE_H
#define SHUNT_MUX_PROBE_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include "abi.h"
#include "lib/probe.h"
#include "lib/quoted.h"
#include "lib/vlan.h"
#include "mux/aside.h"
#include "mux/tables.h"
#include "mux/verdict.h"

/* Returned instead of a verdict: the packet, untouched, is nothing of a probe's. */
#define PROBE_NONE (-1)

enum probe_room {
	PROBE_HEADROOM = 128, /* taken in front of a frame, where drivers leave 192 or more */
};

/* probe_possible says whether a packet of this protocol may be of a probe: behind IPv6's there may be other headers. */
static __always_inline int probe_possible(__u8 protocol)
{
	return probe_key >> PROBE_ON_SHIFT && protocol != PROTOCOL_UDP;
}

/* probe_now is the time that results carry. */
static __always_inline __u64 probe_now(void)
{
	return test_clock ? test_jiffies : bpf_ktime_get_ns();
}

/* probe_note notes what a round of the rule `number` came to, by packet p of the server; gives what it had come to before. */
static __always_inline __u32 probe_note(__u32 number, __u64 round, const struct packet *p, __u32 state, __u32 status)
{
	struct probe_result *r = bpf_map_lookup_elem(&probe_results, &number);
	__u32 attempt = (__u16)(p->dport - (__u16)(round >> PROBE_ROUND_PORT_SHIFT));

	return r ? probe_stamp(r, round, state, status, attempt, probe_now()) : PROBE_FINAL;
}

/* probe_write puts `len` bytes of the text that begins at `line`, and goes on at `rest`, into the frame at offset `at`. Global: the
 * verifier looks at it once. */
__attribute__((noinline)) int probe_write(struct xdp_md *ctx, __u32 at, __u32 line, __u32 rest, __u32 len)
{
	for (__u32 i = 0; i < LIMIT_PROBE_REQUEST / LIMIT_PROBE_LINE && i * LIMIT_PROBE_LINE < len; i++) {
		__u32 n = len - i * LIMIT_PROBE_LINE, index = i ? rest + i - 1 : line;
		struct probe_text *text = bpf_map_lookup_elem(&probe_texts, &index);

		if (!text)
			return 0;
		if (n > LIMIT_PROBE_LINE)
			n = LIMIT_PROBE_LINE;
		/* Without this clang drops the bound: "invalid zero-sized read" (Linux 6.18). */
		asm volatile("" : "+r"(n));
		if (n == 0 || n > LIMIT_PROBE_LINE ||
		    bpf_xdp_store_bytes(ctx, at + i * LIMIT_PROBE_LINE, text->bytes, n))
			return 0;
	}
	return 1;
}

/* probe_stretch makes the outer headers of a segment without data, which the frame has, those of one with `len` bytes. */
static __noinline int probe_stretch(struct xdp_md *ctx, __u32 outer, __u32 len)
{
	void *ip = (void *)(long)ctx->data + ETH_HLEN, *end = (void *)(long)ctx->data_end;
	struct ipv6hdr *ip6 = ip;
	struct iphdr *ip4 = ip;
	struct udphdr *udp;

	if (outer == OVERHEAD_IP4 || outer == OVERHEAD_GUE4) {
		udp = ip + sizeof(*ip4);
		if ((void *)(udp + 1) > end)
			return 0;
		ip4->tot_len = bpf_htons(bpf_ntohs(ip4->tot_len) + len);
		ip4->check = ~csum_fold_small((__u16)~ip4->check + bpf_htons(len));
	} else {
		udp = ip + sizeof(*ip6);
		if ((void *)(udp + 1) > end)
			return 0;
		ip6->payload_len = bpf_htons(bpf_ntohs(ip6->payload_len) + len);
	}
	if (outer == OVERHEAD_GUE4 || outer == OVERHEAD_GUE6)
		udp->len = bpf_htons(bpf_ntohs(udp->len) + len);
	return 1;
}

/* probe_outer writes a rule's outer headers of a segment with `len` bytes of data. */
static __always_inline int probe_outer(struct xdp_md *ctx, __u64 lines, __u32 outer, __u32 len)
{
	return probe_write(ctx, ETH_HLEN, probe_line_of(lines, PROBE_LINES_OUTER_SHIFT), 0, outer) &&
	       (!len || probe_stretch(ctx, outer, len));
}

/* probe_leave sends a frame out by a next hop word. */
static __always_inline int probe_leave(struct xdp_md *ctx, const struct device *dev, enum mux_reason reason)
{
	__u32 ifindex = dev->ifindex & ~(1u << DEVICE_TAGGED_SHIFT);

	if (dev->ifindex >> DEVICE_TAGGED_SHIFT && !vlan_push(ctx, dev->vlan))
		return drop(MUX_REASON_NO_HEADROOM);
	note(reason);
	return ifindex == ctx->ingress_ifindex ? bounce(ctx) : bpf_redirect(ifindex, 0);
}

/* probe_headers writes all headers but a tunnel's; false when the frame is too short. */
static __always_inline int probe_headers(struct xdp_md *ctx, const struct aside *aside, const struct probe_rule *r, __u64 nexthop,
					 __u64 mac)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end, *ip;
	const struct packet *p = &aside->packet;
	const struct turn *t = &aside->turn;
	__u32 outer = r->outer_len, text = t->len ? r->request_sum : 0;
	int is6 = p->family == 6;

	if (outer > OVERHEAD_GUE6)
		return 0;
	ip = data + ETH_HLEN + outer;
	if (outer)
		is6 = outer == OVERHEAD_IP6 || outer == OVERHEAD_GUE6;
	if (data + ETH_HLEN > end)
		return 0;
	encap_ethernet(data, nexthop, mac, is6 ? ETH_P_IPV6 : ETH_P_IP);
	if (p->family == 4) {
		if (ip + sizeof(struct iphdr) + sizeof(struct tcphdr) > end)
			return 0;
		probe_ip4(ip, p, t->seq_be, t->ack_be, t->len, text);
		return 1;
	}
	if (ip + sizeof(struct ipv6hdr) + sizeof(struct tcphdr) > end)
		return 0;
	probe_ip6(ip, p, t->seq_be, t->ack_be, t->len, text);
	return 1;
}

/* probe_resize makes the frame `size` bytes long, of which the old ones mean nothing any more. A frame that a local socket made
 * has little room behind it (veth, Linux 6.18), one of a driver with small buffers little in front. */
static __noinline int probe_resize(struct xdp_md *ctx, __u32 size)
{
	__s32 grow = (__s32)size - (__s32)bpf_xdp_get_buff_len(ctx);

	if (grow <= 0)
		return !grow || !bpf_xdp_adjust_tail(ctx, grow);
	/* Not all of what is in front: a tag may have to go there yet. */
	if (!bpf_xdp_adjust_head(ctx, -grow - VLAN_LEN))
		return !bpf_xdp_adjust_head(ctx, VLAN_LEN);
	if (!bpf_xdp_adjust_tail(ctx, grow))
		return 1;
	return grow > PROBE_HEADROOM && !bpf_xdp_adjust_head(ctx, -PROBE_HEADROOM) &&
	       !bpf_xdp_adjust_tail(ctx, grow - PROBE_HEADROOM);
}

/* probe_reply makes the frame the segment of aside->turn and sends it. */
static __noinline int probe_reply(struct xdp_md *ctx, struct aside *aside)
{
	__u32 number = aside->turn.number, len = aside->turn.len, slot, inner, outer;
	struct probe_rule *r = bpf_map_lookup_elem(&probe_rules, &number);
	struct device *dev;
	enum mux_reason reason = len ? MUX_REASON_PROBE_ASKED : MUX_REASON_PROBE_ENDED;
	__u64 nexthop, lines;

	if (!r)
		return drop(MUX_REASON_INTERNAL);
	lines = r->lines;
	nexthop = *(volatile __u64 *)&r->nexthop;
	slot = nexthop >> NEXTHOP_DEVICE_SHIFT & (LIMIT_DEVICES - 1);
	dev = bpf_map_lookup_elem(&devices, &slot);
	if (!dev || !(nexthop >> NEXTHOP_VALID_SHIFT))
		return drop(MUX_REASON_NO_NEXTHOP);
	outer = r->outer_len;
	inner = (aside->packet.family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr)) + sizeof(struct tcphdr);
	if (!probe_resize(ctx, ETH_HLEN + outer + inner + len)) {
		probe_note(number, r->round, &aside->packet, PROBE_STUCK, 0);
		reason = MUX_REASON_PROBE_NO_ROOM;
		aside->turn.len = len = 0;
		aside->turn.ack_be = 0;
		if (!probe_resize(ctx, ETH_HLEN + outer + inner))
			return drop(reason);
	}
	if (!probe_headers(ctx, aside, r, nexthop, dev->mac))
		return drop(MUX_REASON_INTERNAL);
	if (outer && !probe_outer(ctx, lines, outer, len))
		return drop(MUX_REASON_INTERNAL);
	if (len && !probe_write(ctx, ETH_HLEN + outer + inner, probe_line_of(lines, PROBE_LINES_REQUEST_SHIFT),
				probe_line_of(lines, PROBE_LINES_REST_SHIFT), len))
		return drop(MUX_REASON_INTERNAL);
	return probe_leave(ctx, dev, reason);
}

/* probe_read_status reads the status from `len` bytes of data at offset `at`; 0 when they begin with no whole status line. */
static __noinline __u32 probe_read_status(struct xdp_md *ctx, __u32 at, __u32 len)
{
	__u8 line[PROBE_STATUS_LINE + 3];

	if (len < PROBE_STATUS_LINE || bpf_xdp_load_bytes(ctx, at, line, PROBE_STATUS_LINE))
		return 0;
	return probe_status(line);
}

/* probe_segment takes a segment of a probe's server; `seq` is what it acknowledges, less one. */
static __always_inline int probe_segment(struct xdp_md *ctx, struct aside *aside, const struct tcphdr *tcp)
{
	const struct packet *p = &aside->packet;
	__u32 theirs = bpf_ntohl(tcp->seq), data = p->l4 + tcp->doff * 4, end = ETH_HLEN + p->l3_len, before, status;
	__u32 seq = bpf_ntohl(tcp->ack_seq) - 1, number = probe_number(seq, probe_key), flags = p->segment;
	const struct probe_rule *r = bpf_map_lookup_elem(&probe_rules, &number);
	__u64 round = r ? *(volatile __u64 *)&r->round : 0;

	if (!r || !probe_fits(r, round, p) || (seq != (__u32)round && seq != (__u32)round + r->request_len))
		return PROBE_NONE;
	seq -= (__u32)round;
	aside->turn.number = number;
	aside->turn.seq_be = tcp->ack_seq;
	aside->turn.ack_be = 0;
	aside->turn.len = 0;
	if (flags & SEGMENT_RST) {
		struct probe_result *have = bpf_map_lookup_elem(&probe_results, &number);
		__u64 word = have ? *(volatile __u64 *)&have->word : 0;
		int connected = (__u32)word == (__u32)round && (word >> PROBE_RESULT_STATE_SHIFT & 0xff) >= PROBE_CONNECTED;

		probe_note(number, round, p, seq || connected ? PROBE_BROKEN : PROBE_REFUSED, 0);
		return drop(MUX_REASON_PROBE_RESET);
	}
	if (flags & SEGMENT_SYN) {
		if (seq)
			return drop(MUX_REASON_PROBE_IGNORED);
		before = probe_note(number, round, p, r->kind == PROBE_HTTP ? PROBE_CONNECTED : PROBE_ANSWERED, 0);
		if (r->kind == PROBE_HTTP && before < PROBE_FINAL) {
			aside->turn.ack_be = bpf_htonl(theirs + 1);
			aside->turn.len = r->request_len;
		}
		return probe_reply(ctx, aside);
	}
	if (data < end) {
		status = probe_read_status(ctx, data, end - data);
		probe_note(number, round, p, status ? PROBE_STATUS : PROBE_ODD, status);
		return probe_reply(ctx, aside);
	}
	if (flags & SEGMENT_FIN) {
		probe_note(number, round, p, PROBE_CLOSED, 0);
		return probe_reply(ctx, aside);
	}
	return drop(MUX_REASON_PROBE_IGNORED);
}

/* probe_error takes an ICMP error that quotes a probe's SYN: net, host, protocol or port unreachable, or prohibited. Packet too
 * big (RFC 1191) is the kernel's. */
static __noinline int probe_error(struct xdp_md *ctx, struct aside *aside)
{
	const struct packet *p = &aside->packet;
	__u32 at = p->l4 + ICMP_HEADER, number, seq;
	const struct probe_rule *r;
	__u8 head[2], ihl;
	__u64 round;

	if (ETH_HLEN + p->l3_len < at || bpf_xdp_load_bytes(ctx, p->l4, head, sizeof(head)))
		return PROBE_NONE;
	if (p->family == 4 ? head[0] != 3 || head[1] == 4 : head[0] != 1)
		return PROBE_NONE;
	if (!quoted_read(ctx, p, &aside->flow) || aside->flow.protocol != PROTOCOL_TCP ||
	    bpf_xdp_load_bytes(ctx, at, &ihl, sizeof(ihl)))
		return PROBE_NONE;
	at += p->family == 4 ? (ihl & 15) * 4 : sizeof(struct ipv6hdr);
	if (bpf_xdp_load_bytes(ctx, at + 4, &seq, sizeof(seq)))
		return PROBE_NONE;
	seq = bpf_ntohl(seq);
	number = probe_number(seq, probe_key);
	r = bpf_map_lookup_elem(&probe_rules, &number);
	round = r ? *(volatile __u64 *)&r->round : 0;
	if (!r || seq != (__u32)round || !probe_fits(r, round, &aside->flow))
		return PROBE_NONE;
	probe_note(number, round, &aside->flow, PROBE_UNREACHABLE, 0);
	return drop(MUX_REASON_PROBE_UNREACHABLE);
}

/* probe ends a well-formed packet for no VIP of ours that is of a probe's server, or PROBE_NONE. */
static __noinline int probe(struct xdp_md *ctx, struct aside *aside)
{
	const void *data = (const void *)(long)ctx->data, *end = (const void *)(long)ctx->data_end;
	const struct packet *p = &aside->packet;
	const struct tcphdr *tcp = data + (p->l4 & 0x7fff);

	if (!(probe_key >> PROBE_ON_SHIFT))
		return PROBE_NONE;
	if (p->protocol == (p->family == 4 ? PROTOCOL_ICMP : PROTOCOL_ICMPV6))
		return probe_error(ctx, aside);
	if (p->protocol != PROTOCOL_TCP || p->dport < LIMIT_PROBE_PORT_FIRST || !(p->segment & SEGMENT_ACK) ||
	    (const void *)(tcp + 1) > end)
		return PROBE_NONE;
	return probe_segment(ctx, aside, tcp);
}

#endif
