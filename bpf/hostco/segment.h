/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of hostco.bpf.c: a segment, its endpoint, and who has it in the kernel. */

/* Verdicts of tcx programs (Linux 6.6). */
enum co_verdict {
	CO_NEXT = -1,
	CO_DROP = 2,
};

/* States of sockets (include/net/tcp_states.h). */
enum co_state {
	CO_STATE_LISTEN = 10,
};

/* Who listens, as far as it matters (include/linux/tcp.h). */
struct tcp_sock {
	_Bool is_mptcp;
} __attribute__((preserve_access_index));

static __always_inline int co_count(enum co_reason reason, int verdict)
{
	count_reason(&co_reasons, reason);
	return verdict;
}

static __always_inline struct co_setup *co_setup(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&co_setups, &zero);
}

/* The shared clock, in milliseconds. */
static __always_inline __u32 co_clock(const struct co_setup *setup)
{
	__u64 now = co_test_clock ? co_test_now : bpf_ktime_get_ns();

	return (now + *(const volatile __u64 *)&setup->ahead) / 1000000;
}

/* Is this a whole TCP segment? Global, as what follows, so that the verifier looks at it once. */
__noinline int co_read(struct __sk_buff *skb, struct co_segment *s)
{
	__u32 len;

	if (!s)
		return 0;
	__builtin_memset(&s->v, 0, sizeof(s->v));
	__builtin_memset(&s->t, 0, sizeof(s->t));
	if (frame_ip(skb, &s->v) || s->v.protocol != IPPROTO_TCP || s->v.fragment || transport_view(skb, &s->v, &s->t))
		return 0;
	len = s->t.header_len - sizeof(struct tcphdr);
	s->options.len = len;
	/* The verifier wants to see that it is neither nothing nor too much. */
	if (len - 1 < LIMIT_TCP_OPTIONS)
		return !bpf_skb_load_bytes(skb, s->t.offset + sizeof(struct tcphdr), s->options.bytes, ((len - 1) & 63) + 1);
	return !len;
}

static __always_inline const struct co_endpoint *co_endpoint_of(const struct co_segment *s)
{
	struct co_key k = { .port_be = s->t.dport_be };

	view_copy16(k.vip, s->v.dst);
	return bpf_map_lookup_elem(&co_endpoints, &k);
}

static __always_inline __u64 co_half(const __u8 *addr)
{
	const __u32 *w = (const __u32 *)addr;

	return w[0] | (__u64)w[1] << 32;
}

/* The hash that the flow's cookies are made with. */
static __always_inline __u64 co_prf(const struct co_segment *s, const struct co_endpoint *e, __u32 kid)
{
	const struct siphash_key key = { .k0 = e->keys[kid & 1].k0, .k1 = e->keys[kid & 1].k1 };
	__u16 sport = bpf_ntohs(s->t.sport_be), dport = bpf_ntohs(s->t.dport_be);

	if (!s->v.is6)
		return cookie_prf4(&key, bpf_ntohl(((const __u32 *)s->v.src)[3]), sport, dport);
	return cookie_prf6(&key, co_half(s->v.src), co_half(s->v.src + 8), sport, dport);
}

/* The cookie_secret of an endpoint's key, 0 where member ids are in order. */
static __always_inline __u64 co_secret(const struct co_endpoint *e, __u32 kid)
{
	return e->live >> ((kid & 1) + COOKIE_SHUFFLED_SHIFT) & 1 ? cookie_secret(&e->keys[kid & 1]) : 0;
}

/* What the answer to the segment's SYN is made of; `seq` is that of the SYN. */
static __always_inline void co_handshake(const struct co_segment *s, __u32 seq, struct handshake *h)
{
	h->src_hi = co_half(s->v.src);
	h->src_lo = co_half(s->v.src + 8);
	h->dst_hi = co_half(s->v.dst);
	h->dst_lo = co_half(s->v.dst + 8);
	h->sport = bpf_ntohs(s->t.sport_be);
	h->dport = bpf_ntohs(s->t.dport_be);
	h->seq = seq;
}

/* Units of 65.536 s. */
static __always_inline __u32 co_age(__u32 clock)
{
	return clock >> 16;
}

/* The socket that the kernel would give the segment to, with a reference: or 0. */
static __always_inline struct bpf_sock *co_socket(struct __sk_buff *skb, const struct co_segment *s)
{
	struct bpf_sock_tuple tuple = {};

	if (!s->v.is6) {
		tuple.ipv4.saddr = ((const __u32 *)s->v.src)[3];
		tuple.ipv4.daddr = ((const __u32 *)s->v.dst)[3];
		tuple.ipv4.sport = s->t.sport_be;
		tuple.ipv4.dport = s->t.dport_be;
		return bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	}
	view_copy16(tuple.ipv6.saddr, s->v.src);
	view_copy16(tuple.ipv6.daddr, s->v.dst);
	tuple.ipv6.sport = s->t.sport_be;
	tuple.ipv6.dport = s->t.dport_be;
	return bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
}

/* Who is to answer the SYN: 0 this program, else the reason why the kernel. */
static __always_inline enum co_reason co_asks(struct __sk_buff *skb, const struct co_segment *s)
{
	struct bpf_sock *sk = co_socket(skb, s);
	enum co_reason reason = 0;
	struct tcp_sock *tp;

	if (!sk)
		return CO_REASON_PASS_NO_LISTENER;
	/* The answer is turned around in its place, without what else there is before the segment. */
	if (s->v.payload != ETH_HLEN + (s->v.is6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)))
		reason = CO_REASON_PASS_HEADERS;
	if (sk->state != CO_STATE_LISTEN) {
		reason = CO_REASON_PASS_OLD;
	} else {
		tp = bpf_skc_to_tcp_sock(sk);
		if (tp && bpf_core_field_exists(tp->is_mptcp) && tp->is_mptcp)
			reason = CO_REASON_PASS_MPTCP;
	}
	bpf_sk_release(sk);
	return reason;
}
