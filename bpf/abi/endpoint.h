/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Endpoints and VIPs of the mux: their slots, port ranges and counters. */
#ifndef SHUNT_ABI_ENDPOINT_H
#define SHUNT_ABI_ENDPOINT_H

#include "abi/limit.h"

/* One slot of the exact-match endpoint table, one cache line: an endpoint (VNI, VIP, protocol, port) with all that its
 * packets need. `key` is vni:24 | protocol:8 | port:16 | port end:16 (from the top bit down); the last is 0 for single
 * ports, and only they are looked up: slots of ranges are found by their index. A VIP as such has a slot with protocol 0
 * and port 0, so that ping and "a VIP of ours" are one lookup.
 *
 * Readers load `value` first; 0 is never used, 1 is a tombstone, else index of the endpoint's counter + 2. All else is
 * written before value; a slot is reused only after a grace period. Readers load ring before members; the agent
 * publishes members before ring, so that a ring never names a member that is not there.
 *
 * In the slot of a VIP as such other words mean something else: ring is the VIP's port ranges, first:32 | number:32 from
 * bit 0 up, members the index + 1 of the slot of its endpoint for any protocol:32, 0 for none | that of its snat_block:32, 0
 * for none (enum snat_shift); the lower half of policy the echo requests answered per second, 0 for LIMIT_PING_RATE. */
struct endpoint_slot {
	__u8 vip[16];
	__u64 key;
	__u64 value;   /* atomic */
	__u64 ring;    /* atomic: first ring word:32 | size code:8 | ring key:8 | keyed:1 | zero:15, from bit 0 up. 0: no ring */
	__u64 members; /* atomic: first member word:32 | number of member words:32, from bit 0 up */
	__u64 policy;  /* atomic: idle ticks of untrusted flows:16 | of trusted:16 | enum endpoint_flag:16 | index of its cookie_set or quic_set + 1, 0 none:16, from bit 0 up */
	__u64 extra;   /* atomic: index of the endpoint_extra record + 1, 0: none */
};
SHUNT_ASSERT_SIZE(struct endpoint_slot, 64);

/* Bits of a slot's ring word above the size code. */
enum ring_word_bit {
	RING_WORD_KEY_SHIFT = 40,
	RING_WORD_KEYED_SHIFT = 48, /* the key's first word is XORed with extra.ring_tweak */
};

enum endpoint_slot_value {
	ENDPOINT_SLOT_EMPTY = 0,
	ENDPOINT_SLOT_TOMBSTONE = 1,
	ENDPOINT_SLOT_FIRST = 2,
};

/* Shifts of the fields of the policy word. A tick is 1 << tick_shift jiffies, about a second. */
enum policy_shift {
	POLICY_UNTRUSTED_SHIFT = 0,
	POLICY_TRUSTED_SHIFT = 16,
	POLICY_FLAGS_SHIFT = 32,
	POLICY_COOKIE_SHIFT = 48,
};

enum endpoint_flag {
	ENDPOINT_VIP_ONLY = 1,          /* the slot of a VIP itself: answers ping, forwards nothing */
	ENDPOINT_FLOW = 2,              /* flows are remembered in the flow table */
	ENDPOINT_SOURCE = 4,            /* a flow is the client's address under extra.source_mask */
	ENDPOINT_ONE_PACKET = 8,        /* every datagram is a flow of its own */
	ENDPOINT_FRAGMENTS_3TUPLE = 16, /* a flow is source, destination and protocol */
	ENDPOINT_ADMIT = 32,            /* limits or a source list apply */
	ENDPOINT_MOVED = 64,            /* extra.members_before is in use */
	ENDPOINT_ANY = 128,             /* takes packets of any protocol: 3-tuple for those without ports */
	ENDPOINT_COOKIE = 256,          /* segments of TCP carry cookies: with ENDPOINT_FLOW, for those that carry none */
	ENDPOINT_QUIC = 512,            /* connection ids name the member: with ENDPOINT_FLOW, for those that name none */
	ENDPOINT_TRACK = 1024,          /* connections whose packets say their member have records (abi/connection.h): with ENDPOINT_COOKIE or ENDPOINT_QUIC */
	ENDPOINT_SCHED = 2048,          /* new flows go where a sequence says (abi/schedule.h), the ring is asked when it is silent */
	ENDPOINT_NAT = 4096,            /* packets are rewritten both ways, and each flow has a session (abi/nat.h) */
	ENDPOINT_FLOWS_FIRST = 8192,    /* flows in the flow table go before cookies and connection ids: with ENDPOINT_COOKIE or ENDPOINT_QUIC */
	ENDPOINT_KEEP_DEAD = 16384,     /* flows stay at members that are present but dead */
	/* Flags that the usual packet does not meet: one branch leads to all of them. */
	ENDPOINT_UNUSUAL = 4 | 8 | 16 | 32 | 64 | 128 | 4096,
};

/* What few endpoints need. Immutable but for members_before and schedule. */
struct endpoint_extra {
	__u64 members_before; /* atomic: the `members` word before the block moved, 0: none */
	__u64 source_mask_hi; /* bits of the client's address that make the flow, both halves as stored */
	__u64 source_mask_lo;
	__u32 source_ticks;   /* idle time of a remembered client */
	__u32 guard;          /* index + 1 of the VIP's vip_guard, 0: none */
	/* Of a VIP as such: index + 1 of the slots of its endpoints that take fragments whose first one is unknown, 0: none. */
	__u32 fragments_tcp;
	__u32 fragments_udp;
	__u64 schedule; /* atomic: enum schedule_shift, 0: none */
	/* Ticks that entries of untrusted flows are old when they are written: they live shorter by these than closing ones do. */
	__u32 untrusted_age;
	__u32 rsv0;
	/* With RING_WORD_KEYED_SHIFT: what makes the VIP's own hash key of the cluster's. Hosts have the result alone, so that one of them
	 * cannot compute where flows of other VIPs go. */
	__u64 ring_tweak;
};
SHUNT_ASSERT_SIZE(struct endpoint_extra, 64);

/* A part of a table of words: first word:32 | number of its elements:32, from bit 0 up. */
enum span_shift {
	SPAN_COUNT_SHIFT = 32,
};

/* A word of the map `port_ranges`: protocol:8 | first port:16 | last port:16 | slot index of the endpoint:24, from the top
 * bit down. The words of a VIP are disjoint, and sorted as numbers. */
enum port_range_shift {
	PORT_RANGE_HIGH_SHIFT = 24,
	PORT_RANGE_LOW_SHIFT = 40,
	PORT_RANGE_PROTOCOL_SHIFT = 56,
};

/* Counters of the mux lie in plain arrays with a region for every possible CPU, and one more that only the agent writes:
 * it keeps what members that moved or went away had counted. Element i of region r has index r * size + i. */

/* Of an endpoint (what found it but went to no member) and of a member word. */
struct counter {
	__u64 packets;
	__u64 bytes; /* of the inner IP packet */
};
SHUNT_ASSERT_SIZE(struct counter, 16);

#endif
