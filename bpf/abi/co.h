/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Handshakes that the host makes for servers whose own clock carries the cookie (form CO, protocol section 1.4). */
#ifndef SHUNT_ABI_CO_H
#define SHUNT_ABI_CO_H

#include "abi/config.h"
#include "abi/limit.h"
#include "abi/reason_class.h"

/* A timestamp of form CO is the shared clock in milliseconds plus cookie << CO_TIME_BITS: a clock like any other to whoever does not know the key. */
enum co_limit {
	LIMIT_CO_ENDPOINTS = 1 << 12,
	CO_TIME_BITS = 20,
	/* How far, in milliseconds, an echo may seem to be ahead of the clock of whoever reads it: machines' clocks differ, and what is 17.4 minutes
	 * old is not told from it. */
	CO_GUARD = 2000,
	/* Lowest bits of the first timestamp that hold what the SYN offered instead of time. */
	CO_OFFER_BITS = 6,
	/* Classes of maximum segment sizes that a sequence number names. */
	CO_MSS_CLASSES = 8,
};

/* Key of an endpoint whose handshakes the host makes. */
struct co_key {
	__u8 vip[16];
	__u16 port_be;
	__u16 rsv;
};
SHUNT_ASSERT_SIZE(struct co_key, 20);

/* What it needs. A change replaces the element. */
struct co_endpoint {
	struct siphash_key keys[2]; /* of cookies, by key id */
	__u32 vni;
	__u16 member;
	__u16 mss;  /* to announce, for IPv4 or IPv6 as the VIP is */
	__u32 mint; /* key id of new cookies */
	__u32 live; /* enum cookie_live */
	__u64 rsv;
};
SHUNT_ASSERT_SIZE(struct co_endpoint, 56);

/* What SYN-ACKs may offer, by the sysctls of the server's namespace. */
enum co_allow {
	CO_ALLOW_SACK = 1,
	CO_ALLOW_WSCALE = 2,
};

/* The one element of the map `co_setups`. */
struct co_setup {
	struct siphash_key key; /* of sequence numbers; never changed */
	__u64 ahead;            /* atomic: nanoseconds that the shared clock is ahead of CLOCK_MONOTONIC */
	__u32 allow;            /* enum co_allow */
	__u32 wscale;           /* window scale of the server, 0 to 14 */
};
SHUNT_ASSERT_SIZE(struct co_setup, 32);

/* The reasons of the program that makes handshakes. A segment counts at most one, per CPU in the map `co_reasons`. A SYN
 * that is left to the kernel goes on without timestamps, so that no other clock is read as a cookie. */
#define CO_REASONS(R) \
	/* of no handshake that is made here: the kernel's */ \
	R(CO_REASON_PASS_OTHER, 0, PASS) \
	/* a SYN, answered */ \
	R(CO_REASON_ANSWERED, 1, TX) \
	/* the client's acknowledgement: the kernel has the connection */ \
	R(CO_REASON_ACCEPTED, 2, PASS) \
	/* a SYN without timestamps, or with a maximum segment size below the kernel's least: \
	 * the kernel's, without a cookie */ \
	R(CO_REASON_PASS_NO_TIME, 3, PASS) \
	/* no socket listens on the port */ \
	R(CO_REASON_PASS_NO_LISTENER, 4, PASS) \
	/* who listens takes MPTCP, whose connections the kernel alone can begin */ \
	R(CO_REASON_PASS_MPTCP, 5, PASS) \
	/* a SYN of a connection that the kernel still knows */ \
	R(CO_REASON_PASS_OLD, 6, PASS) \
	/* acknowledges a SYN-ACK of this program with another timestamp: its connection would \
	 * be sent to another member */ \
	R(CO_REASON_BAD_ECHO, 7, DROP) \
	/* options that lie about their length */ \
	R(CO_REASON_MALFORMED, 8, DROP) \
	/* the kernel did not take the connection */ \
	R(CO_REASON_REFUSED, 9, DROP) \
	/* no room for the answer */ \
	R(CO_REASON_NO_ROOM, 10, DROP) \
	/* a SYN behind IP options or extension headers */ \
	R(CO_REASON_PASS_HEADERS, 11, PASS)

enum co_reason {
	CO_REASONS(REASON_VALUE)
	CO_REASON_MAX,
};

/* The class of each. */
enum co_reason_class {
	CO_REASONS(REASON_CLASS_VALUE)
};

#endif
