/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Sessions of path nat: their tables, and which packets are theirs. */
#ifndef SHUNT_MUX_NAT_FIND_H
#define SHUNT_MUX_NAT_FIND_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "lib/icmp.h"
#include "lib/parse.h"
#include "lib/quoted.h"
#include "mux/aside.h"
#include "mux/tables.h"
#include "mux/verdict.h"

/* Returned instead of a verdict: aside->nat says what is to be done with the packet. Rewriting is no part of the walk, whose stack has no room for it. */
#define NAT_DUE (-2)

/* Returned instead of a verdict: the packet, untouched, is of no session. */
#define NAT_NONE (-3)

/* nat_word is the word `nat` of the configuration; 0: this mux sends from no address. */
static __always_inline __u64 nat_word(void)
{
	__u32 zero = 0;
	const struct mux_config *c = bpf_map_lookup_elem(&configs, &zero);

	return c ? *(const volatile __u64 *)&c->nat : 0;
}

/* nat_count is how many addresses of a family there are. */
static __always_inline __u32 nat_count(__u64 word, int is6)
{
	return word >> (is6 ? NAT_COUNT6_SHIFT : 0) & 0xff;
}

/* nat_address_at is address i of a family. */
static __always_inline const struct nat_address *nat_address_at(__u64 word, int is6, __u32 i)
{
	__u32 index = (word >> NAT_HALF_SHIFT & 1) * 2 * LIMIT_NAT_ADDRESSES + (is6 ? LIMIT_NAT_ADDRESSES : 0) + i;

	return bpf_map_lookup_elem(&nat_addresses, &index);
}

/* nat_own says whether an address is one that this mux sends from to servers. */
__attribute__((noinline)) int nat_own(__u64 hi, __u64 lo)
{
	__u64 word = nat_word();
	int is6 = !is_mapped(hi, lo);
	__u32 count = nat_count(word, is6);

	for (__u32 i = 0; i < LIMIT_NAT_ADDRESSES && i < count; i++) {
		const struct nat_address *a = nat_address_at(word, is6, i);

		if (a && a->hi == hi && a->lo == lo)
			return 1;
	}
	return 0;
}

/* nat_key_of is the key of a packet. */
static __always_inline void nat_key_of(struct nat_key *k, const struct packet *p)
{
	k->src_hi = p->src_hi;
	k->src_lo = p->src_lo;
	k->dst_hi = p->dst_hi;
	k->dst_lo = p->dst_lo;
	k->sport = p->sport;
	k->dport = p->dport;
	k->protocol = p->protocol;
	k->rsv[0] = k->rsv[1] = k->rsv[2] = 0;
}

/* nat_is says whether a session is the one whose server and port these are. */
static __always_inline int nat_is(const struct nat_session *s, const struct nat_key *port)
{
	return s->lport == port->dport && s->lip_lo == port->dst_lo && s->lip_hi == port->dst_hi && s->dport == port->sport &&
	       s->dip_lo == port->src_lo && s->dip_hi == port->src_hi;
}

/* nat_give has a packet to the endpoint of slot `index` rewritten: on the usual way, where aside is null, it is noted with all that is known of it. */
static __noinline int nat_give(const struct packet *p, __u32 index, struct aside *aside)
{
	__u32 zero = 0;

	if (!aside) {
		aside = bpf_map_lookup_elem(&asides, &zero);
		if (!aside)
			return drop(MUX_REASON_INTERNAL);
		aside->tags = 0;
		aside->how = 0;
		aside->packet = *p;
	}
	if (aside->how & (ASIDE_FIRST | ASIDE_LATER))
		return drop(MUX_REASON_NAT_FRAGMENT);
	aside->nat.slot = index;
	aside->nat.what = aside->how & ASIDE_ERROR ? NAT_ERROR_IN : NAT_FROM_CLIENT;
	return NAT_DUE;
}

/* nat_returned finds out whether the packet of aside, at which parsing ended with `reason`, is a server's answer, or an ICMP error about what a server was
 * sent: NAT_DUE then; a verdict when it may not be translated, NAT_NONE when it is of no session. */
__attribute__((noinline)) int nat_returned(struct xdp_md *ctx, int reason)
{
	const void *data = (const void *)(long)ctx->data, *end = (const void *)(long)ctx->data_end;
	__u32 zero = 0;
	struct aside *aside = bpf_map_lookup_elem(&asides, &zero);
	const struct packet *p;
	const struct nat_name *name;
	const __u8 *type;

	if (!aside)
		return NAT_NONE;
	p = &aside->packet;
	if (reason == MUX_REASON_FRAGMENT)
		return nat_own(p->dst_hi, p->dst_lo) ? drop(MUX_REASON_NAT_FRAGMENT) : NAT_NONE;
	if (reason)
		return NAT_NONE;
	aside->nat.what = NAT_FROM_SERVER;
	if (!has_ports(p)) {
		type = data + (p->l4 & 0x7fff);
		if (p->protocol != (p->family == 4 ? PROTOCOL_ICMP : PROTOCOL_ICMPV6) || p->l4 + ICMP_HEADER > ETH_HLEN + p->l3_len ||
		    type + 1 > (const __u8 *)end || !quoted_announced(p, *type) || !nat_own(p->dst_hi, p->dst_lo))
			return NAT_NONE;
		if (!quoted_read(ctx, p, &aside->flow) || !has_ports(&aside->flow))
			return NAT_NONE;
		aside->nat.what = NAT_ERROR_OUT;
		p = &aside->flow;
	}
	nat_key_of(&aside->nat.port, p);
	name = bpf_map_lookup_elem(&nat_ports, &aside->nat.port);
	if (!name)
		return NAT_NONE;
	aside->nat.key = name->client;
	return NAT_DUE;
}

#endif
