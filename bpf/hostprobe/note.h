/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of hostprobe.bpf.c: the rule that a packet is about, and what its round came to. */

/* note_time is the time that results carry. */
static __always_inline __u64 note_time(void)
{
	return host_probe_clock ? host_probe_now : bpf_ktime_get_ns();
}

/* note_packet makes *p a packet between two addresses as far as rules are compared with it. */
static __always_inline void note_packet(struct packet *p, const __u8 src[16], const __u8 dst[16], __be16 sport_be, __be16 dport_be, __u8 is6)
{
	__builtin_memcpy(&p->src_hi, src, 16);
	__builtin_memcpy(&p->dst_hi, dst, 16);
	p->sport = bpf_ntohs(sport_be);
	p->dport = bpf_ntohs(dport_be);
	p->family = is6 ? 6 : 4;
}

/* note_state notes what a round of the rule `number` came to, by packet p of the server; gives what it had come to before. */
static __always_inline __u32 note_state(__u32 number, __u64 round, const struct packet *p, __u32 state, __u32 status)
{
	struct probe_result *r = bpf_map_lookup_elem(&probe_results, &number);
	__u32 attempt = (__u16)(p->dport - (__u16)(round >> PROBE_ROUND_PORT_SHIFT));

	return r ? probe_stamp(r, round, state, status, attempt, note_time()) : PROBE_FINAL;
}

/* note_connected says whether the server took the round's connection. */
static __always_inline int note_connected(__u32 number, __u64 round)
{
	struct probe_result *r = bpf_map_lookup_elem(&probe_results, &number);
	__u64 word = r ? *(volatile __u64 *)&r->word : 0;

	return (__u32)word == (__u32)round && (word >> PROBE_RESULT_STATE_SHIFT & 0xff) >= PROBE_CONNECTED;
}
