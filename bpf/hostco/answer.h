/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of hostco.bpf.c: the answer to a SYN. */

enum co_answer_field {
	CO_WINDOW = 64240,
	CO_HOPS = 64,
};

/* The first timestamp: not ahead of the clock, and in its lowest bits what is offered. */
static __always_inline __u32 co_first_clock(__u32 clock, __u32 bits)
{
	__u32 first = (clock & ~((1U << CO_OFFER_BITS) - 1)) | bits;

	return (__s32)(first - clock) > 0 ? first - (1U << CO_OFFER_BITS) : first;
}

/* Writes the answer's TCP header. */
static __always_inline void co_make(struct co_tcp *to, const struct co_segment *s, const struct offer *offer, const struct co_setup *setup,
				    const struct co_endpoint *e, __u32 seq, __u32 tsval)
{
	__builtin_memset(to, 0, sizeof(*to));
	to->tcp.source = s->t.dport_be;
	to->tcp.dest = s->t.sport_be;
	to->tcp.seq = bpf_htonl(seq);
	to->tcp.ack_seq = bpf_htonl(s->t.seq + 1);
	to->tcp.doff = CO_TCP_LEN / 4;
	to->tcp.syn = 1;
	to->tcp.ack = 1;
	to->tcp.window = bpf_htons(CO_WINDOW);
	to->mss = bpf_htonl(TCP_OPTION_MSS << 24 | 4 << 16 | e->mss);
	to->stamp_kind = bpf_htonl((offer->sack ? HANDSHAKE_SACK << 24 | 2 << 16 : 0x0101 << 16) | TCP_OPTION_TIMESTAMPS << 8 | 10);
	to->tsval = bpf_htonl(tsval);
	to->tsecr = bpf_htonl(offer->tsval);
	to->wscale = bpf_htonl(offer->wscale == OFFER_NO_WSCALE ? 0x01010101 : (__u32)(TCP_OPTION_NOP << 24 | HANDSHAKE_WSCALE << 16 | 3 << 8) | (setup->wscale & 15));
}

/* Turns an IPv4 header without options around, for a segment of CO_TCP_LEN. */
static __always_inline int co_turn4(struct __sk_buff *skb)
{
	struct iphdr ip;
	__be32 addr;
	__u64 sum;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
		return -1;
	addr = ip.saddr;
	ip.saddr = ip.daddr;
	ip.daddr = addr;
	ip.tos = 0;
	ip.tot_len = bpf_htons(sizeof(ip) + CO_TCP_LEN);
	ip.id = 0;
	ip.frag_off = bpf_htons(0x4000);
	ip.ttl = CO_HOPS;
	ip.check = 0;
	sum = bpf_csum_diff(0, 0, (__be32 *)&ip, sizeof(ip), 0);
	sum = (sum & 0xffff) + (sum >> 16 & 0xffff);
	sum = (sum & 0xffff) + (sum >> 16);
	ip.check = ~sum;
	return bpf_skb_store_bytes(skb, ETH_HLEN, &ip, sizeof(ip), 0);
}

/* Turns an IPv6 header without extensions around. */
static __always_inline int co_turn6(struct __sk_buff *skb)
{
	struct ipv6hdr ip;
	struct in6_addr addr;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
		return -1;
	addr = ip.saddr;
	ip.saddr = ip.daddr;
	ip.daddr = addr;
	ip.priority = 0;
	ip.flow_lbl[0] = ip.flow_lbl[1] = ip.flow_lbl[2] = 0;
	ip.payload_len = bpf_htons(CO_TCP_LEN);
	ip.hop_limit = CO_HOPS;
	return bpf_skb_store_bytes(skb, ETH_HLEN, &ip, sizeof(ip), 0);
}

/* Replaces the TCP header of a segment behind nothing but an IP header, and what is behind it. The checksum goes from one to the other by what differs, so that it is right where it is final and
 * where the device still has to make it (CHECKSUM_PARTIAL). */
__noinline int co_write(struct __sk_buff *skb, struct co_scratch *c)
{
	__u32 len, at, check_at;
	__be16 was, is;
	__s64 diff;

	if (!c)
		return -1;
	at = c->segment.t.offset;
	len = c->segment.t.header_len;
	check_at = at + __builtin_offsetof(struct tcphdr, check);
	/* Data on a SYN is not taken: its client sends it again. */
	if (c->segment.v.end != at + len || len > sizeof(c->from))
		return -1;
	if (bpf_skb_load_bytes(skb, at, &c->from.tcp, sizeof(c->from.tcp)))
		return -1;
	for (__u32 i = 0; i < LIMIT_TCP_OPTIONS; i++)
		c->from.options[i] = i < c->segment.options.len ? c->segment.options.bytes[i] : 0;
	c->to.tcp.check = 0;
	was = c->from.tcp.check;
	c->from.tcp.check = 0;
	diff = bpf_csum_diff((__be32 *)&c->from, sizeof(c->from), (__be32 *)&c->to, sizeof(c->to), 0);
	c->to.tcp.check = was;
	if (diff < 0 || bpf_skb_change_tail(skb, at + CO_TCP_LEN, 0) || bpf_skb_store_bytes(skb, at, &c->to, sizeof(c->to), 0))
		return -1;
	if (bpf_l4_csum_replace(skb, check_at, 0, diff, 0))
		return -1;
	was = bpf_htons(len);
	is = bpf_htons(CO_TCP_LEN);
	if (was != is && bpf_l4_csum_replace(skb, check_at, was, is, BPF_F_PSEUDO_HDR | sizeof(is)))
		return -1;
	return c->segment.v.is6 ? co_turn6(skb) : co_turn4(skb);
}

/* Takes the timestamps out of a SYN that the kernel is to answer: what its clock says would be read as a cookie now and then. */
static __always_inline int co_mute(struct __sk_buff *skb, struct co_scratch *c)
{
	__u32 at = options_timestamps(&c->segment.options), i;
	__u8 nops[OPTIONS_TIMESTAMPS_LEN];
	__u32 check_at = c->segment.t.offset + __builtin_offsetof(struct tcphdr, check);
	__s64 diff;

	if (at < 2 || at > LIMIT_TCP_OPTIONS - 8)
		return 0;
	__builtin_memset(nops, TCP_OPTION_NOP, sizeof(nops));
	for (i = 0; i < LIMIT_TCP_OPTIONS; i++)
		c->from.options[i] = c->segment.options.bytes[i];
	for (i = 0; i < LIMIT_TCP_OPTIONS; i++)
		if (i - (at - 2) < OPTIONS_TIMESTAMPS_LEN)
			c->from.options[i] = TCP_OPTION_NOP;
	diff = bpf_csum_diff((__be32 *)c->segment.options.bytes, LIMIT_TCP_OPTIONS, (__be32 *)c->from.options, LIMIT_TCP_OPTIONS, 0);
	if (diff < 0 || bpf_skb_store_bytes(skb, c->segment.t.offset + sizeof(struct tcphdr) + at - 2, nops, sizeof(nops), 0))
		return -1;
	return bpf_l4_csum_replace(skb, check_at, 0, diff, 0);
}

/* Answers a SYN, or leaves it to the kernel. */
static __always_inline int co_answer(struct __sk_buff *skb, struct co_scratch *c, const struct co_endpoint *e)
{
	const struct co_segment *s = &c->segment;
	const struct co_setup *setup = co_setup();
	struct handshake h = {};
	struct offer offer;
	enum co_reason reason;
	__u32 clock, class, stamp;

	if (!setup)
		return CO_NEXT;
	offer_read(&s->options, &offer);
	if (offer.broken)
		return co_count(CO_REASON_MALFORMED, CO_DROP);
	/* RFC 9293 section 3.7.1: what a SYN without the option means. */
	class = offer_class(s->v.is6, offer.mss ? offer.mss : s->v.is6 ? 1220 : 536);
	if (!offer.stamped)
		return co_count(CO_REASON_PASS_NO_TIME, CO_NEXT);
	reason = class == CO_MSS_CLASSES ? CO_REASON_PASS_NO_TIME : co_asks(skb, s);
	/* Whoever is to answer it, a machine behind this one too, has another clock. */
	if (reason && co_mute(skb, c))
		return co_count(CO_REASON_NO_ROOM, CO_DROP);
	if (reason)
		return co_count(reason, CO_NEXT);
	if (!(setup->allow & CO_ALLOW_SACK))
		offer.sack = 0;
	if (!(setup->allow & CO_ALLOW_WSCALE))
		offer.wscale = OFFER_NO_WSCALE;
	clock = co_clock(setup);
	stamp = co_place(co_first_clock(clock, offer_bits(&offer)), short_cookie_encode(co_prf(s, e, e->mint), e->mint & 1, e->member, co_secret(e, e->mint & 1)));
	co_handshake(s, s->t.seq, &h);
	h.age = co_age(clock);
	h.class = class;
	h.bits = offer_bits(&offer);
	co_make(&c->to, s, &offer, setup, e, handshake_seq(&setup->key, &h), stamp);
	if (co_write(skb, c))
		return co_count(CO_REASON_NO_ROOM, CO_DROP);
	/* By the uplink, to whom its routes say: bpf_fib_lookup would ask for forwarding to be on. */
	count_reason(&co_reasons, CO_REASON_ANSWERED);
	return bpf_redirect_neigh(skb->ifindex, 0, 0, 0);
}
