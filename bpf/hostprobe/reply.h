/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of hostprobe.bpf.c: a server's packet becomes the answer to it, and leaves by the device that it came by. */

/* A segment to be sent to a probe's server. */
struct turn {
	__be32 seq_be;
	__be32 ack_be;
	__u32 len;   /* bytes of the request in it; 0: it is a RST */
	__u32 sum;   /* of the request */
	__u64 lines; /* of the request: struct probe_rule */
};

enum reply_room {
	/* Taken off a frame's front. What a device or the stack still has to sum up (CHECKSUM_PARTIAL) begins in it, and the kernel gives that
	 * up when it lies before the frame: the checksum that is written here is whole. */
	REPLY_STRIP = 128,
};

/* reply_resize makes the frame `size` bytes long, of which the first ETH_HLEN alone mean what they did. */
static __always_inline int reply_resize(struct __sk_buff *skb, __u32 size)
{
	return !bpf_skb_change_tail(skb, size + REPLY_STRIP, 0) && !bpf_skb_adjust_room(skb, -REPLY_STRIP, BPF_ADJ_ROOM_MAC, 0);
}

/* reply_ethernet turns the frame's addresses round. */
static __always_inline int reply_ethernet(struct __sk_buff *skb)
{
	__u8 was[2 * ETH_ALEN], now[2 * ETH_ALEN];

	if (bpf_skb_load_bytes(skb, 0, was, sizeof(was)))
		return 0;
	__builtin_memcpy(now, was + ETH_ALEN, ETH_ALEN);
	__builtin_memcpy(now + ETH_ALEN, was, ETH_ALEN);
	return !bpf_skb_store_bytes(skb, 0, now, sizeof(now), BPF_F_RECOMPUTE_CSUM);
}

/* reply_headers writes the headers of IP and TCP. */
static __always_inline int reply_headers(struct __sk_buff *skb, const struct packet *p, const struct turn *t)
{
	__u32 ip[(sizeof(struct ipv6hdr) + sizeof(struct tcphdr)) / 4] = {};
	const __u64 flags = BPF_F_RECOMPUTE_CSUM | BPF_F_INVALIDATE_HASH;

	if (p->family == 4) {
		probe_ip4(ip, p, t->seq_be, t->ack_be, t->len, t->sum);
		return !bpf_skb_store_bytes(skb, ETH_HLEN, ip, sizeof(struct iphdr) + sizeof(struct tcphdr), flags);
	}
	probe_ip6(ip, p, t->seq_be, t->ack_be, t->len, t->sum);
	return !bpf_skb_store_bytes(skb, ETH_HLEN, ip, sizeof(ip), flags);
}

/* reply_text puts `len` bytes of the request of a rule with these lines into the frame at offset `at`. Global: the verifier looks at
 * it once. */
__noinline int reply_text(struct __sk_buff *skb, __u32 at, __u64 lines, __u32 len)
{
	__u32 line = probe_line_of(lines, PROBE_LINES_REQUEST_SHIFT), rest = probe_line_of(lines, PROBE_LINES_REST_SHIFT);

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
		    bpf_skb_store_bytes(skb, at + i * LIMIT_PROBE_LINE, text->bytes, n, BPF_F_RECOMPUTE_CSUM))
			return 0;
	}
	return 1;
}

/* reply makes the frame, which is packet p of the server of rule `number`, the segment *t, and sends it back. */
static __always_inline int reply(struct __sk_buff *skb, const struct packet *p, __u32 number, __u64 round, struct turn *t)
{
	const __u32 headers = ETH_HLEN + (p->family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr)) + sizeof(struct tcphdr);
	enum host_reason reason = t->len ? HOST_REASON_PROBE_ASKED : HOST_REASON_PROBE_ENDED;

	if (!reply_resize(skb, headers + t->len)) {
		note_state(number, round, p, PROBE_STUCK, 0);
		reason = HOST_REASON_PROBE_NO_ROOM;
		t->len = 0;
		t->sum = 0;
		t->ack_be = 0;
		if (!reply_resize(skb, headers))
			return drop(reason);
	}
	if (!reply_ethernet(skb) || !reply_headers(skb, p, t) || (t->len && !reply_text(skb, headers, t->lines, t->len)))
		return drop(HOST_REASON_PROBE_NO_ROOM);
	count(reason);
	return bpf_redirect(skb->ifindex, 0);
}
