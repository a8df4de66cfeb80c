/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of hostprobe.bpf.c: an ICMP error that may quote a probe's SYN. */

/* error_means says whether a message of this type and code means that the server cannot be reached: net, host, protocol or port
 * unreachable, or prohibited. Packet too big (RFC 1191) is the kernel's. */
static __always_inline int error_means(const struct ip_view *v, const __u8 head[2])
{
	return v->is6 ? head[0] == 1 : head[0] == 3 && head[1] != 4;
}

/* error ends an ICMP message that quotes a probe's SYN. */
static __always_inline int error(struct __sk_buff *skb, struct ip_view *v)
{
	const struct probe_rule *r;
	struct packet p = {};
	struct quote q = {};
	__u32 seq, number;
	__u8 head[2];
	__u64 round;

	if (v->payload + sizeof(head) > v->end || bpf_skb_load_bytes(skb, v->payload, head, sizeof(head)) || !error_means(v, head))
		return VERDICT_NEXT;
	if (quote_view(skb, v, &q) || q.protocol != IPPROTO_TCP || !view_equal16(q.src, v->dst) ||
	    bpf_skb_load_bytes(skb, q.transport + 4, &seq, sizeof(seq)))
		return VERDICT_NEXT;
	seq = bpf_ntohl(seq);
	number = probe_number(seq, host_probe_key);
	r = bpf_map_lookup_elem(&probe_rules, &number);
	if (!r)
		return VERDICT_NEXT;
	round = *(volatile __u64 *)&r->round;
	note_packet(&p, q.dst, q.src, q.dport_be, q.sport_be, v->is6);
	if (seq != (__u32)round || !probe_fits(r, round, &p))
		return VERDICT_NEXT;
	note_state(number, round, &p, PROBE_UNREACHABLE, 0);
	return drop(HOST_REASON_PROBE_UNREACHABLE);
}
