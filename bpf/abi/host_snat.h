/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the host knows of its servers whose connections leave with a VIP (design section 9.9). */
#ifndef SHUNT_ABI_HOST_SNAT_H
#define SHUNT_ABI_HOST_SNAT_H

#include "abi/host.h"

enum host_snat_limit {
	/* DIPs with SNAT on one host. */
	LIMIT_HOST_SNAT_HOLDERS = 1 << 12,
	/* Ranges of all of them together, 8 bytes each, in blocks of a power of two: a million ports. */
	LIMIT_HOST_SNAT_RANGES = 1 << 17,
	/* Prefixes of destinations that are not translated. */
	LIMIT_HOST_SNAT_INSIDE = 1 << 10,
	/* Ports that are tried for a connection: of a server that has no more, all. */
	LIMIT_HOST_SNAT_PROBES = 64,
	/* Of a server that has more, ports that are tried once that many were in use towards the same far end in the same tick. */
	LIMIT_HOST_SNAT_AGAIN = 8,
	/* Far ends that servers have no port left for, of the present tick: 32 KiB. */
	LIMIT_HOST_SNAT_SPENT = 1 << 12,
	/* Ports in use that are passed over before the agent is told that they get scarce: with half of the ports in use towards a far end
	 * that happens once in eight connections. */
	LIMIT_HOST_SNAT_SCARCE = 3,
	/* Packets of a DIP that the agent has at once. */
	LIMIT_HOST_SNAT_WAITING = 64,
	/* Bytes of the ring that tells the agent where ports get scarce: one entry of 16 bytes for each DIP. */
	LIMIT_HOST_SNAT_LOWS = 1 << 16,
	/* What flows with a leased port have in the place of a binding: its idle times, its counters. No binding gets this number. */
	HOST_SNAT_BINDING = LIMIT_BINDINGS - 1,
};

/* A value of the map `snat_addrs`: the index of a DIP in `snat_holders`, or SNAT_VIP for an address that servers here send from. */
enum host_snat_addr {
	SNAT_DIP = 0,
	SNAT_VIP = 1 << 30,
};

/* A DIP whose connections leave with a VIP. */
struct host_snat_holder {
	__u64 ranges;  /* atomic: the first of its block in `snat_ranges`:32 | how many there are:32, from the low bit up; 0: none */
	__u64 handed;  /* packets given to the agent, atomic */
	__u64 dealt;   /* those of them that it has dealt with: the agent's to write */
	__u32 dip;     /* index in flow_addrs */
	__u32 vip;
	__u32 low;     /* 1: the agent was told that ports get scarce; it makes it 0 when it has heard */
	__u16 mss;     /* as in struct binding */
	__u16 rsv;
	__u64 changes; /* how often the agent wrote `ranges`, which it does first; 0 with former agents */
	__u64 rsv1[2];
};
SHUNT_ASSERT_SIZE(struct host_snat_holder, 64);

/* Eight ports of a DIP: those whose number divided by 8 is `range`. */
struct host_snat_range {
	__u32 range;
	__u32 used; /* tick at which a connection last took one of the ports */
};
SHUNT_ASSERT_SIZE(struct host_snat_range, 8);

/* The one element of the map `snat_setups`. */
struct host_snat_setup {
	__u32 holders; /* how many DIPs there are */
	__u32 device;  /* index of the device that packets without a port are given to; 0: they are dropped */
};
SHUNT_ASSERT_SIZE(struct host_snat_setup, 8);

/* Key of the map `snat_inside`. */
struct host_snat_prefix {
	__u32 bits;
	__u32 addr_be;
};
SHUNT_ASSERT_SIZE(struct host_snat_prefix, 8);

#endif
