/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Answers to what servers send from ports of a VIP: they go to the server that has the port (protocol section 5.2). Endpoints
 * were asked first. Source lists are of endpoints: a server may open connections to any address. The VIP's limit of packets applies (admit_answer). */
#ifndef SHUNT_MUX_OUTBOUND_H
#define SHUNT_MUX_OUTBOUND_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include "abi.h"
#include "lib/hash.h"
#include "lib/icmp.h"
#include "lib/parse.h"
#include "mux/aside.h"
#include "mux/fragments.h"
#include "mux/identity.h"
#include "mux/martian.h"
#include "mux/snat.h"
#include "mux/tables.h"

/* outbound gives a packet to `port` of the VIP whose slot has index `vip` to the server that has the port: index of the slot + 1
 * (aside knows the member then), or the reason for refusal, shifted by 32 bits. 0: the VIP has no SNAT. */
static __noinline __u64 outbound(const struct packet *p, __u32 vip, __u32 port, struct aside *aside)
{
	__u64 found = snat_member(vip, port), hash, *word;
	__u32 zero = 0, member = found;
	struct mux_config *c = bpf_map_lookup_elem(&configs, &zero);
	struct identity id = { p->src_hi, p->src_lo, flow_word(0, p->sport, port, p->protocol) };

	if (!(found & SNAT_FOUND))
		return found ? (__u64)MUX_REASON_SNAT_NOBODY << 32 : 0;
	if (is_martian(p))
		return (__u64)MUX_REASON_BAD_SOURCE << 32;
	word = bpf_map_lookup_elem(&members, &member);
	if (!c || !word)
		return (__u64)MUX_REASON_INTERNAL << 32;
	hash = identity_hash(&c->flow_key, p, &id);
	if (aside->how & ASIDE_FIRST)
		fragment_remember(aside, vip, member, hash);
	aside->how |= ASIDE_KNOWN | ASIDE_SNAT;
	aside->first.member = member;
	aside->first.hash = hash;
	aside->word = *(volatile __u64 *)word;
	return vip + 1;
}

/* outbound_echo is outbound for an ICMP message that is an echo reply, whose identifier is the port (RFC 5508 section 3); 0 for
 * any other. */
static __noinline __u64 outbound_echo(struct xdp_md *ctx, __u32 vip, struct aside *aside)
{
	const void *data = (const void *)(long)ctx->data, *end = (const void *)(long)ctx->data_end;
	const struct packet *p = &aside->packet;
	const __u8 *icmp = data + (p->l4 & 0x7fff);

	if (p->family != 4 || p->l4 + ICMP_HEADER > ETH_HLEN + p->l3_len || icmp + ICMP_HEADER > (const __u8 *)end)
		return 0;
	if (icmp[0] != ICMP_TYPE_REPLY4)
		return 0;
	return outbound(p, vip, bpf_ntohs(*(const __u16 *)(icmp + 4)), aside);
}

/* outbound_quoted is the port that the packet was sent from which the ICMP error of aside->flow quotes; 0 when it had none. */
static __always_inline __u32 outbound_quoted(struct xdp_md *ctx, const struct aside *aside)
{
	__u32 at = aside->packet.l4 + ICMP_HEADER;
	__u8 ihl, echo[ICMP_HEADER];

	if (has_ports(&aside->flow))
		return aside->flow.dport;
	if (aside->flow.protocol != PROTOCOL_ICMP || bpf_xdp_load_bytes(ctx, at, &ihl, sizeof(ihl)))
		return 0;
	if (bpf_xdp_load_bytes(ctx, at + (ihl & 15) * 4, echo, sizeof(echo)) || echo[0] != ICMP_TYPE_REQUEST4)
		return 0;
	return (__u32)echo[4] << 8 | echo[5];
}

/* outbound_error is outbound for the ICMP error of aside->flow. */
static __always_inline __u64 outbound_error(struct xdp_md *ctx, __u32 vip, struct aside *aside)
{
	return aside->flow.family == 4 ? outbound(&aside->flow, vip, outbound_quoted(ctx, aside), aside) : 0;
}

#endif
