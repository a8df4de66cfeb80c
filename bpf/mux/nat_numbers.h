/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the mux believes of TCP connections of path nat, by their sequence numbers. Every segment is forwarded: the ends decide (RFC 9293, RFC 5961).
 * Who is not on the path can send anything in a client's name, but does not know the numbers. What comes from a server's address is the server's. */
#ifndef SHUNT_MUX_NAT_NUMBERS_H
#define SHUNT_MUX_NAT_NUMBERS_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/tcp.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include "abi.h"
#include "lib/parse.h"
#include "lib/seq.h"
#include "mux/aside.h"

/* nat_read reads the numbers of the segment of aside; of other protocols there are none. */
__attribute__((noinline)) int nat_read(struct xdp_md *ctx)
{
	const void *data = (const void *)(long)ctx->data, *end = (const void *)(long)ctx->data_end;
	__u32 zero = 0;
	struct aside *aside = bpf_map_lookup_elem(&asides, &zero);
	const struct tcphdr *tcp;
	const struct packet *p;

	if (!aside)
		return 0;
	p = &aside->packet;
	tcp = data + (p->l4 & 0x7fff);
	if (p->protocol != PROTOCOL_TCP || (const void *)(tcp + 1) > end)
		return 0;
	aside->nat.seq = bpf_ntohl(tcp->seq);
	aside->nat.ack = bpf_ntohl(tcp->ack_seq);
	aside->nat.last = aside->nat.seq + ETH_HLEN + p->l3_len - p->l4 - tcp->doff * 4 + !!(p->segment & SEGMENT_SYN) + !!(p->segment & SEGMENT_FIN);
	return 1;
}

/* nat_opened begins the numbers of a session by the client's first segment. What a segment in the middle of a connection acknowledges is where a RST
 * of a server that knows nothing of it will be (RFC 9293 section 3.5.2). */
static __always_inline void nat_opened(struct nat_session *s, const struct aside *aside)
{
	int syn = aside->packet.segment & SEGMENT_SYN;

	s->client.acked = aside->nat.seq + !!syn;
	s->client.end = aside->nat.last;
	if (syn)
		return;
	s->server.acked = aside->nat.ack;
	s->server.end = aside->nat.ack;
}

/* nat_opened_so returns 1 if the numbers of a session are as nat_opened begins them by the client's SYN, else 0. */
static __always_inline int nat_opened_so(const struct nat_session *s, const struct aside *aside)
{
	return *(const volatile __u32 *)&s->client.acked == aside->nat.seq + 1 && *(const volatile __u32 *)&s->client.end == aside->nat.last;
}

/* nat_blind says whether nothing is known of the numbers of an answered session whose word is `life`: it is of a form that had none. */
static __always_inline int nat_blind(__u64 life)
{
	return (life & (NAT_ANSWERED | NAT_NUMBERED)) == NAT_ANSWERED;
}

/* nat_client_says follows a segment of the client that is no SYN, of the session whose word is `life`: the flags that it brings. */
static __always_inline __u32 nat_client_says(struct nat_session *s, const struct aside *aside, __u64 life)
{
	const struct nat_work *w = &aside->nat;
	__u32 segment = aside->packet.segment, flags = 0;
	int follows;

	/* A kernel resets where its octets end, or where the segment that it answers says. What is between a server answers, and goes on (RFC 5961 section 3.2). */
	if (segment & SEGMENT_RST)
		return !nat_blind(life) && (w->seq == s->client.acked || w->seq == s->client.end) ? NAT_RESET : 0;
	/* What begins where nothing was sent yet does not move the end: it may be forged, or in the wrong order. The server's acknowledgement will. */
	follows = !seq_after(w->seq, s->client.end);
	if (segment & SEGMENT_FIN && seq_after(w->last, s->client.acked) && (follows || !(life & NAT_FINISHING_CLIENT))) {
		*(volatile __u32 *)&s->client.fin = w->last;
		flags |= NAT_FINISHING_CLIENT;
	}
	if (follows && seq_after(w->last, s->client.end))
		*(volatile __u32 *)&s->client.end = w->last;
	if (!(segment & SEGMENT_ACK) || !(life & NAT_NUMBERED) || !seq_within(w->ack, s->server.acked, s->server.end))
		return flags;
	if (s->server.acked != w->ack)
		*(volatile __u32 *)&s->server.acked = w->ack;
	flags |= NAT_TRUSTED;
	if (life & NAT_FINISHING_SERVER && w->ack == s->server.fin)
		flags |= NAT_FIN_SERVER;
	return flags;
}

/* nat_acked notes what a server acknowledged. */
static __always_inline void nat_acked(struct nat_session *s, __u32 ack)
{
	if (!seq_after(ack, s->client.acked))
		return;
	/* The end first: acknowledged is never more than was sent. */
	if (seq_after(ack, s->client.end))
		*(volatile __u32 *)&s->client.end = ack;
	*(volatile __u32 *)&s->client.acked = ack;
}

/* nat_numbered_client begins the client's numbers where a segment of the server acknowledges. A SYN-ACK does not keep the end, which may be that of a SYN that
 * another CPU handles concurrently: octets with the SYN that it does not acknowledge are sent again. */
static __always_inline void nat_numbered_client(struct nat_session *s, const struct aside *aside)
{
	__u32 ack = aside->nat.ack;

	if (aside->packet.segment & SEGMENT_SYN || !seq_within(ack, *(const volatile __u32 *)&s->client.acked, *(const volatile __u32 *)&s->client.end))
		*(volatile __u32 *)&s->client.end = ack;
	*(volatile __u32 *)&s->client.acked = ack;
}

/* nat_numbered begins the numbers of a session by the server's first segment: of the client's they are where it acknowledges. */
static __always_inline void nat_numbered(struct nat_session *s, const struct aside *aside)
{
	const struct nat_work *w = &aside->nat;

	s->isn = w->seq;
	s->server.acked = w->seq + !!(aside->packet.segment & SEGMENT_SYN);
	s->server.end = w->last;
	if (aside->packet.segment & SEGMENT_ACK)
		nat_numbered_client(s, aside);
}

/* nat_begins returns 1 if a server's segment begins another connection than the one of the session whose word is `life`, else 0. A SYN-ACK
 * after a reset that came before any answer does: SYN and RST may have been forged, and the SYN-ACK answers the client. */
static __always_inline int nat_begins(const struct nat_session *s, const struct aside *aside, __u64 life)
{
	if ((aside->packet.segment & (SEGMENT_SYN | SEGMENT_RST)) != SEGMENT_SYN)
		return 0;
	return life & NAT_NUMBERED ? aside->nat.seq != s->isn : !!(life & NAT_RESET);
}

/* nat_server_says follows a segment of the server, as nat_client_says does. */
static __always_inline __u32 nat_server_says(struct nat_session *s, const struct aside *aside, __u64 life)
{
	const struct nat_work *w = &aside->nat;
	__u32 segment = aside->packet.segment, flags = NAT_ANSWERED | NAT_NUMBERED;

	if (segment & SEGMENT_RST) {
		if (nat_blind(life))
			return 0;
		/* Nobody listens: the number is none, and the acknowledgement is of what was sent (RFC 9293 section 3.10.7.3). */
		if (!(life & NAT_NUMBERED) && segment & SEGMENT_ACK)
			return seq_within(w->ack, s->client.acked, s->client.end) ? NAT_RESET : 0;
		return seq_within(w->seq, s->server.acked, s->server.end) ? NAT_RESET : 0;
	}
	if (!(life & NAT_NUMBERED)) {
		nat_numbered(s, aside);
	} else {
		/* The client took an answer that came before the last SYN-ACK, and nobody trusts the numbers of the latter yet: the server says where they are. */
		if (segment & SEGMENT_ACK && !(life & NAT_TRUSTED) && !seq_within(w->seq, s->server.acked, s->server.end)) {
			*(volatile __u32 *)&s->server.end = w->last;
			*(volatile __u32 *)&s->server.acked = w->seq;
		}
		if (seq_after(w->last, s->server.end))
			*(volatile __u32 *)&s->server.end = w->last;
		if (segment & SEGMENT_ACK)
			nat_acked(s, w->ack);
	}
	if (segment & SEGMENT_FIN && seq_after(w->last, s->server.acked)) {
		*(volatile __u32 *)&s->server.fin = w->last;
		flags |= NAT_FINISHING_SERVER;
	}
	if (segment & SEGMENT_ACK && life & NAT_FINISHING_CLIENT && w->ack == s->client.fin)
		flags |= NAT_FIN_CLIENT;
	return flags;
}

#endif
