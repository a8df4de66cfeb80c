/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What makes a flow: the usual five values, or what an endpoint says. */
#ifndef SHUNT_MUX_IDENTITY_H
#define SHUNT_MUX_IDENTITY_H

#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "lib/hash.h"
#include "lib/parse.h"
#include "mux/tables.h"

/* What is hashed of a packet beside its destination. */
struct identity {
	__u64 src_hi;
	__u64 src_lo;
	__u64 word; /* flow_word */
};

/* Where the VNI is in the word of an identity: there is none but 0 in it yet, and what else tells flows apart has its place. */
#define IDENTITY_VNI_SHIFT 8
#define IDENTITY_VNI (0xffffffULL << IDENTITY_VNI_SHIFT)

/* identity_of is the usual identity of a packet. */
static __always_inline struct identity identity_of(const struct packet *p)
{
	struct identity id = { p->src_hi, p->src_lo, flow_word(0, p->sport, p->dport, p->protocol) };

	return id;
}

/* identity_endpoint is the word of an identity that is the same for all packets of a client to an endpoint: its own
 * protocol and port, which of a range is the first. */
static __always_inline __u64 identity_endpoint(__u64 key)
{
	return flow_word(0, 0, key >> 16, key >> 32);
}

/* identity_datagram is a word that no other datagram of this CPU has for the next 2^40: it counts in source port and VNI. */
static __always_inline __u64 identity_datagram(const struct packet *p)
{
	__u32 index = bpf_get_smp_processor_id() * LIMIT_DATAGRAM_REGION;
	__u64 *count = bpf_map_lookup_elem(&datagrams, &index), n;

	if (!count)
		return flow_word(0, p->sport, p->dport, p->protocol);
	n = (*count)++;
	return flow_word(n >> 16 & 0xffffff, n, p->dport, p->protocol);
}

/* identity_client makes an identity that of the client as an endpoint with ENDPOINT_SOURCE sees it. */
static __always_inline void identity_client(struct identity *id, const struct endpoint_slot *s)
{
	__u32 index = (__u32)*(const volatile __u64 *)&s->extra - 1;
	const struct endpoint_extra *e = bpf_map_lookup_elem(&endpoint_extras, &index);

	if (!e)
		return;
	id->src_hi &= e->source_mask_hi;
	id->src_lo &= e->source_mask_lo;
	id->word = identity_endpoint(s->key);
}

/* identity_narrow makes an identity what an endpoint with one of ENDPOINT_UNUSUAL in its flags says. */
static __always_inline void identity_narrow(struct identity *id, const struct packet *p, const struct endpoint_slot *s,
					    __u32 flags)
{
	if (flags & ENDPOINT_FRAGMENTS_3TUPLE)
		id->word = flow_word(0, 0, 0, p->protocol);
	if (flags & ENDPOINT_ONE_PACKET)
		id->word = identity_datagram(p);
	/* With a flow table the ring is asked about clients, the table about flows first: see remembered. */
	if ((flags & (ENDPOINT_SOURCE | ENDPOINT_FLOW)) == ENDPOINT_SOURCE)
		identity_client(id, s);
}

/* identity_ring is the ring hash of an identity. */
static __always_inline __u64 identity_ring(const struct siphash_key *key, const struct packet *p, const struct identity *id)
{
	if (p->family == 4)
		return flow_hash4(key, bpf_ntohl(id->src_lo >> 32), bpf_ntohl(p->dst_lo >> 32), id->word);
	return flow_hash6(key, id->src_hi, id->src_lo, p->dst_hi, p->dst_lo, id->word);
}

/* identity_hash is the flow table's hash of an identity. */
static __always_inline __u64 identity_hash(const struct siphash_key *key, const struct packet *p, const struct identity *id)
{
	if (p->family == 4)
		return table_hash4(key, bpf_ntohl(id->src_lo >> 32), bpf_ntohl(p->dst_lo >> 32), id->word);
	return table_hash6(key, id->src_hi, id->src_lo, p->dst_hi, p->dst_lo, id->word);
}

#endif
