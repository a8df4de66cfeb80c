/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Endpoints that no exact lookup finds: port ranges, all ports, any protocol. */
#ifndef SHUNT_MUX_WILDCARD_H
#define SHUNT_MUX_WILDCARD_H

#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "lib/parse.h"
#include "lib/ports.h"
#include "mux/find.h"
#include "mux/tables.h"

/* wildcard_look searches the ranges of the VIP with this slot, then takes its endpoint for any protocol: index of the
 * slot + 1, or 0. */
static __always_inline __u32 wildcard_look(const struct endpoint_slot *vip, __u32 protocol, __u32 port)
{
	__u32 found = 0;

	if (protocol == PROTOCOL_TCP || protocol == PROTOCOL_UDP)
		found = ports_find(&port_ranges, *(volatile __u64 *)&vip->ring, protocol, port);
	return found ? found : (__u32)*(volatile __u64 *)&vip->members;
}

/* find_wildcard returns the index + 1 of the slot of the endpoint that takes (protocol, port) of a VIP although no
 * endpoint has just them, or 0. Of protocols without ports the port is 0. Exact before range before all ports before any
 * protocol.
 *
 * While endpoints change, a packet may look for the new one before it is there and for the old one after it is gone. The
 * agent publishes all that is new before it takes anything away, and no packet meets two changes: so a second look finds
 * what the first one missed. */
__attribute__((noinline)) __u32 find_wildcard(__u64 vip_hi, __u64 vip_lo, __u32 protocol, __u32 port)
{
	__u64 key = endpoint_key(0, protocol, port);
	__u32 vip = find_vip(vip_hi, vip_lo), found = 0;
	const struct endpoint_slot *s = vip ? slot_at(vip - 1) : 0, *e;

	if (!s)
		return 0;
	for (int look = 0; look < 2; look++) {
		if (look && port)
			found = find_exact(vip_hi, vip_lo, key);
		if (!found)
			found = wildcard_look(s, protocol, port);
		e = found ? slot_at(found - 1) : 0;
		if (e && *(volatile __u64 *)&e->value >= ENDPOINT_SLOT_FIRST)
			return found;
		found = 0;
	}
	return 0;
}

/* find_taker returns the index + 1 of the slot of the endpoint that takes a packet, or 0. For the slower ways. */
static __always_inline __u32 find_taker(const struct packet *p)
{
	__u32 found = 0;

	if (has_ports(p))
		found = find_exact(p->dst_hi, p->dst_lo, endpoint_key(0, p->protocol, p->dport));
	return found ? found : find_wildcard(p->dst_hi, p->dst_lo, p->protocol, p->dport);
}

#endif
