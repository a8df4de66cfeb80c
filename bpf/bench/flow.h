/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Flows of the data-plane benchmark: a flow number becomes a client address, a source port and a VIP number.
 * internal/dataplane/benchrun/flow.go says the same in Go; a test holds the two together. */
#ifndef SHUNT_BENCH_FLOW_H
#define SHUNT_BENCH_FLOW_H

#include <linux/types.h>

/* One flow, host byte order. */
struct flow_ids {
	__u32 client; /* low 17 bits of an address in 198.18.0.0/15, or of one in 2001:2::/48 (RFC 2544, RFC 5180) */
	__u32 spread; /* 32 more bits for the interface part of an IPv6 address */
	__u32 vip;    /* below the number of VIPs */
	__u16 port;   /* 1024 or above */
	__u16 rsv;
};

/* flow_ids_of fills ids for flow number n of `vips` VIPs. (client, port) differs for all n below 2^32: the client is
 * a bijection of n's low 17 bits, the port one of its high 15 bits for each client. */
static __attribute__((always_inline)) inline void flow_ids_of(__u32 n, __u32 vips, struct flow_ids *ids)
{
	__u32 mixed = n * 0x2c1b3c6dU;

	mixed ^= mixed >> 15;
	mixed *= 0x297a2d39U;
	ids->client = (n * 0x1d8afU) & 0x1ffff;
	ids->port = 1024 + (((n >> 17) * 0x4d35U + ids->client) & 0x7fff);
	ids->spread = mixed;
	ids->vip = (__u32)(((__u64)mixed * vips) >> 32);
	ids->rsv = 0;
}

/* flow_member_of is the member that flow number n belongs to where packets say it. */
static __attribute__((always_inline)) inline __u32 flow_member_of(__u32 n, __u32 members)
{
	return (__u64)(n * 0x9e3779b1U) * members >> 32;
}

#endif
