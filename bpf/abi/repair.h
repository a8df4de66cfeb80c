/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the host knows of former owners of an endpoint's flows (design section 9.4). */
#ifndef SHUNT_ABI_REPAIR_H
#define SHUNT_ABI_REPAIR_H

#include "abi/limit.h"

enum repair_limit {
	/* Endpoints from which something was displaced lately, and those of the change before. */
	LIMIT_REPAIRS = 1 << 13,
	/* Slots of all of them together, 4 bytes each: 8 MiB. */
	LIMIT_REPAIR_SLOTS = 1 << 21,
	/* Member ids of all of them together, 32 bytes each: 4 MiB. */
	LIMIT_REPAIR_TARGETS = 1 << 17,
	/* Hosts that packets are repaired by. */
	LIMIT_PEERS = 1 << 16,
	/* Members of an endpoint that one host spreads the packets of switches over. */
	LIMIT_SPREAD = 64,
};

/* A slot: current owner in the lower half, the last owner that was another in the upper half. */
enum repair_slot {
	REPAIR_FORMER_SHIFT = 16,
	REPAIR_NONE = 0xffff, /* there is none */
};

/* An endpoint, immutable; bindings name it by index + 1. Of packets from switches (struct binding.spread) the current owner of a slot is
 * a target's number, and the other half of it REPAIR_NONE. */
struct repair {
	__u64 key[2];       /* of the ring's hash: struct siphash_key */
	__u64 mask[2];      /* bits of the client's address that count, both halves as stored */
	__u8 source[16];    /* outer source of what this host sends on; its family is that of all targets that can be used */
	__u32 slots;        /* first slot */
	__u32 targets;      /* first target */
	__u32 count;        /* targets: member ids are below */
	__u16 port;         /* of the endpoint's identity with REPAIR_CLIENT, host order */
	__u8 code;          /* slots are 1 << code */
	__u8 flow;          /* enum repair_flow */
};
SHUNT_ASSERT_SIZE(struct repair, 64);

/* What makes a flow: as in endpoints of a mux. */
enum repair_flow {
	REPAIR_PORTS = 0,  /* addresses and ports */
	REPAIR_CLIENT = 1, /* the client's address under mask */
	REPAIR_3TUPLE = 2, /* addresses and protocol */
};

/* Who a flow may belong to. */
struct repair_target {
	__u8 outer_dst[16];
	__u32 use; /* enum repair_use; 0: no packet is sent on to it */
	__u32 member; /* with packets from switches: as in struct binding_key */
	__u32 rsv[2];
};
SHUNT_ASSERT_SIZE(struct repair_target, 32);

enum repair_use {
	REPAIR_AWAY = 1,  /* another host */
	REPAIR_HERE = 2,  /* this host */
};

#endif
