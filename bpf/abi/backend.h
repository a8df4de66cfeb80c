/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Members, and the ways of their packets. */
#ifndef SHUNT_ABI_BACKEND_H
#define SHUNT_ABI_BACKEND_H

#include "abi/limit.h"

/* A member word: what a member id of one endpoint stands for. Atomic.
 * bits 0-31 index of the backend record, 32 alive, 33 choosable (weight above 0), 34 present. */
enum member_bit {
	MEMBER_ALIVE_SHIFT = 32,
	MEMBER_CHOOSABLE_SHIFT = 33,
	MEMBER_PRESENT_SHIFT = 34,
};

/* Where the packets of a member go. Immutable but for `nexthop`. */
struct backend {
	__u8 outer_dst[16];
	__u64 nexthop;   /* atomic: enum nexthop_bit */
	__u32 mtu;       /* of the path to outer_dst: the largest IP packet including the outer header */
	__u32 outer4_be; /* outer_dst as IPv4, when it is one */
	__u32 sum4;      /* folded sum of the constant parts of the outer IPv4 header, host order of 16-bit words as stored */
	__u32 outer_v6;  /* 1: the outer header is IPv6 */
	__u32 overhead;  /* enum overhead: bytes of the outer headers, which tell the form of the tunnel too */
	__u32 port;      /* of path nat: of the server, 0: the one that the packet came to */
	__u64 rsv[2];
};
SHUNT_ASSERT_SIZE(struct backend, 64);

/* Forms of tunnels, by the bytes in front of the inner packet. */
enum overhead {
	OVERHEAD_NAT = 0, /* path nat: none */
	OVERHEAD_IP4 = 20,
	OVERHEAD_IP6 = 40,
	OVERHEAD_GUE4 = 44, /* UDP, GUE and its private data behind an IPv4 header (lib/gue_header.h) */
	OVERHEAD_GUE6 = 64,
};

/* A next hop word: bits 0-47 destination MAC (first octet in the lowest bits), 48-55 device slot,
 * bit 63 valid. 0: unresolved. */
enum nexthop_bit {
	NEXTHOP_DEVICE_SHIFT = 48,
	NEXTHOP_VALID_SHIFT = 63,
};

/* An interface packets leave by. */
struct device {
	__u64 mac; /* bits 0-47: its address, first octet in the lowest bits */
	__u32 ifindex; /* of the interface that frames leave by; with DEVICE_TAGGED they get the tag `vlan` */
	__u32 vlan;    /* TPID and TCI as stored (lib/vlan.h), 0: none */
};
SHUNT_ASSERT_SIZE(struct device, 16);

enum device_bit {
	DEVICE_TAGGED_SHIFT = 31, /* of ifindex: that of no interface then, so that a usual packet meets one comparison */
};

#endif
