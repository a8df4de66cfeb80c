/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of hostprobe.bpf.c: a segment that may be of a probe's server. Its own checksum is not looked at: frames that a veth brings
 * from a local socket have none yet. */

/* segment_header says whether the IP header is one that a probe's server sends: of IPv4 without options, and whole. */
static __always_inline int segment_header(struct __sk_buff *skb, const struct ip_view *v)
{
	__u32 ip[sizeof(struct iphdr) / 4];

	if (v->is6)
		return v->payload <= REPLY_STRIP;
	return v->payload == ETH_HLEN + sizeof(ip) && !view_load(skb, ETH_HLEN, ip, sizeof(ip)) && csum_ip4_ok(ip);
}

/* segment_status reads the status from `len` bytes of data at offset `at`; 0 when they begin with no whole status line. */
static __always_inline __u32 segment_status(struct __sk_buff *skb, __u32 at, __u32 len)
{
	__u8 line[PROBE_STATUS_LINE + 3];

	if (len < PROBE_STATUS_LINE || bpf_skb_load_bytes(skb, at, line, PROBE_STATUS_LINE))
		return 0;
	return probe_status(line);
}

/* segment_take ends a segment of the server of rule r; `past` is what it acknowledges beyond the SYN. */
static __always_inline int segment_take(struct __sk_buff *skb, const struct ip_view *v, const struct tcphdr *tcp, const struct packet *p,
					__u32 number, const struct probe_rule *r, __u64 round, __u32 past)
{
	struct turn t = {.seq_be = tcp->ack_seq};
	__u32 data = v->payload + tcp->doff * 4, status;

	if (tcp->rst) {
		note_state(number, round, p, past || note_connected(number, round) ? PROBE_BROKEN : PROBE_REFUSED, 0);
		return drop(HOST_REASON_PROBE_RESET);
	}
	if (tcp->syn) {
		if (past)
			return drop(HOST_REASON_PROBE_IGNORED);
		if (note_state(number, round, p, r->kind == PROBE_HTTP ? PROBE_CONNECTED : PROBE_ANSWERED, 0) < PROBE_FINAL &&
		    r->kind == PROBE_HTTP) {
			t.ack_be = bpf_htonl(bpf_ntohl(tcp->seq) + 1);
			t.len = r->request_len;
			t.lines = r->lines;
			t.sum = r->request_sum;
		}
	} else if (data < v->end) {
		status = segment_status(skb, data, v->end - data);
		note_state(number, round, p, status ? PROBE_STATUS : PROBE_ODD, status);
	} else if (tcp->fin) {
		note_state(number, round, p, PROBE_CLOSED, 0);
	} else {
		return drop(HOST_REASON_PROBE_IGNORED);
	}
	return reply(skb, p, number, round, &t);
}

/* segment ends a TCP segment that is of a probe's server. */
static __always_inline int segment(struct __sk_buff *skb, const struct ip_view *v)
{
	const struct probe_rule *r;
	struct packet p = {};
	struct tcphdr tcp;
	__u32 seq, number;
	__u64 round;

	if (v->payload + sizeof(tcp) > v->end || view_load(skb, v->payload, &tcp, sizeof(tcp)))
		return VERDICT_NEXT;
	if (bpf_ntohs(tcp.dest) < LIMIT_PROBE_PORT_FIRST || !tcp.ack || tcp.doff * 4 < sizeof(tcp) || v->payload + tcp.doff * 4 > v->end)
		return VERDICT_NEXT;
	seq = bpf_ntohl(tcp.ack_seq) - 1;
	number = probe_number(seq, host_probe_key);
	r = bpf_map_lookup_elem(&probe_rules, &number);
	if (!r)
		return VERDICT_NEXT;
	round = *(volatile __u64 *)&r->round;
	note_packet(&p, v->src, v->dst, tcp.source, tcp.dest, v->is6);
	seq -= (__u32)round;
	if (!probe_fits(r, round, &p) || (seq && seq != r->request_len) || !segment_header(skb, v))
		return VERDICT_NEXT;
	return segment_take(skb, v, &tcp, &p, number, r, round, seq);
}
