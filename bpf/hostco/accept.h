/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of hostco.bpf.c: what acknowledges an answer. */

/* What the kernel makes a connection of (include/net/tcp.h, Linux 6.9). */
struct bpf_tcp_req_attrs {
	__u32 rcv_tsval;
	__u32 rcv_tsecr;
	__u16 mss;
	__u8 rcv_wscale;
	__u8 snd_wscale;
	__u8 ecn_ok;
	__u8 wscale_ok;
	__u8 sack_ok;
	__u8 tstamp_ok;
	__u8 usec_ts_ok;
	__u8 reserved[3];
};

/* What the kernel has in place of struct bpf_sock: nothing of it is looked at. */
struct sock {
	__u8 rsv;
};
extern int bpf_sk_assign_tcp_reqsk(struct __sk_buff *skb, struct sock *sk, struct bpf_tcp_req_attrs *attrs, int attrs__sz) __ksym;

/* Is the echo, which came back with a right sequence number, of the timestamp that was sent with it? */
static __always_inline int co_echo_ok(const struct co_segment *s, const struct co_endpoint *e, __u32 echo, __u32 clock)
{
	__u32 cookie = co_cookie(echo, clock), kid = short_cookie_kid(cookie);

	return (__s32)(co_clock_of(echo, clock) - clock) <= 0 && e->live >> kid & 1 && short_cookie_decode(co_prf(s, e, kid), cookie, co_secret(e, kid)) == e->member;
}

/* Gives an acknowledgement to who listens, with the connection; tells what became of it. */
static __always_inline enum co_reason co_assign(struct __sk_buff *skb, const struct co_segment *s, struct bpf_tcp_req_attrs *attrs)
{
	struct bpf_sock *sk = co_socket(skb, s);
	enum co_reason reason = CO_REASON_REFUSED;
	struct tcp_sock *tp;

	if (!sk)
		return CO_REASON_PASS_NO_LISTENER;
	if (sk->state != CO_STATE_LISTEN) {
		reason = CO_REASON_PASS_OTHER;
	} else {
		tp = bpf_skc_to_tcp_sock(sk);
		if (tp && !bpf_sk_assign_tcp_reqsk(skb, (struct sock *)tp, attrs, sizeof(*attrs)))
			reason = CO_REASON_ACCEPTED;
	}
	bpf_sk_release(sk);
	return reason;
}

/* Of most segments the kernel has the connection: they are told by their numbers, before anybody is looked for. */
static __always_inline int co_accept(struct __sk_buff *skb, const struct co_segment *s, const struct co_endpoint *e)
{
	const struct co_setup *setup = co_setup();
	struct bpf_tcp_req_attrs attrs = { .tstamp_ok = 1 };
	struct handshake h = {};
	enum co_reason reason;
	__u32 clock, echo, at;

	at = options_timestamps(&s->options);
	if (!setup || !at)
		return CO_NEXT;
	clock = co_clock(setup);
	echo = options_word(&s->options, at + 4);
	co_handshake(s, s->t.seq - 1, &h);
	h.bits = co_clock_of(echo, clock) & ((1U << CO_OFFER_BITS) - 1);
	if (!handshake_known(&setup->key, &h, s->t.ack - 1, co_age(clock)))
		return CO_NEXT;
	attrs.rcv_tsval = options_word(&s->options, at);
	attrs.rcv_tsecr = echo;
	attrs.mss = offer_mss(s->v.is6, h.class);
	attrs.sack_ok = h.bits >> 4 & 1;
	if ((h.bits & 15) != OFFER_NO_WSCALE) {
		attrs.wscale_ok = 1;
		attrs.snd_wscale = h.bits & 15;
		attrs.rcv_wscale = setup->wscale & 15;
	}
	if (!co_echo_ok(s, e, echo, clock))
		return co_count(CO_REASON_BAD_ECHO, CO_DROP);
	reason = co_assign(skb, s, &attrs);
	return co_count(reason, reason == CO_REASON_REFUSED ? CO_DROP : CO_NEXT);
}
