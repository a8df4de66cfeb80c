/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the host counts for each of its servers. */
#ifndef SHUNT_ABI_METER_H
#define SHUNT_ABI_METER_H

#include "abi/limit.h"

enum meter_limit {
	/* Servers that are metered: those whose number in flow_addrs is below. Numbers are given from 1 up, and given again. */
	LIMIT_METERS = 1 << 13,
};

/* Which way a packet goes; of a flow, who began it. */
enum meter_direction {
	METER_IN = 0,  /* to the server */
	METER_OUT = 1, /* from it */
	METER_DIRECTIONS = 2,
};

/* What a server got and sent. Bytes are of IP packets as the server sees them; a packet that the kernel made of several counts as those
 * it was made of. */
struct server_traffic {
	__u64 packets;
	__u64 bytes;
	__u64 flows; /* begun */
};
SHUNT_ASSERT_SIZE(struct server_traffic, 24);

struct server_meter {
	struct server_traffic of[METER_DIRECTIONS];
};
SHUNT_ASSERT_SIZE(struct server_meter, 48);

/* Established flows of clients, of one binding: how many came to be and how many are no more, but for those that a sweep took out. Both
 * wrap around. */
struct flow_count {
	__u64 opened; /* atomic */
	__u64 closed; /* atomic */
};
SHUNT_ASSERT_SIZE(struct flow_count, 16);

#endif
