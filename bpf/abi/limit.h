/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Sizes and bounds of the mux's tables, and what every room of the ABI begins with. */
#ifndef SHUNT_ABI_LIMIT_H
#define SHUNT_ABI_LIMIT_H

#include <linux/types.h>

/* A pointer argument of a global function that the verifier may take for granted (Linux 6.8). Former ones want to see that it is not 0: a function looks, and the
 * look is gone from the program where the verifier knows. */
#ifndef __arg_nonnull
#define __arg_nonnull __attribute__((btf_decl_tag("arg:nonnull")))
#endif

#define SHUNT_ASSERT_SIZE(type, n) _Static_assert(sizeof(type) == (n), #type " has the wrong size")

/* Limits. They are enumerators, not macros, so that they reach BTF and thereby Go. */
enum limit {
	LIMIT_ABI_VERSION = 4,
	/* The largest tables; what they are made with is the agent's choice, always a power of two. The endpoint table has
	 * two slots for every endpoint that it may hold, VIPs included. */
	LIMIT_ENDPOINTS = 1 << 17,
	LIMIT_ENDPOINT_SLOTS = 1 << 18,
	/* Slots inspected, from the home slot on, before a lookup gives up; the agent never places farther, and refuses
	 * what finds no slot. A test fills the table to its highest load, one half. */
	LIMIT_ENDPOINT_PROBES = 32,
	/* Member words of all endpoints together: their indices have 21 bits in flow entries. */
	LIMIT_MEMBERS = 1 << 21,
	LIMIT_BACKENDS = 1 << 20,
	/* 64-bit ring words; four 16-bit slots each: 256 MiB, 128 Mi slots. */
	LIMIT_RING_WORDS = 1 << 25,
	/* Flow entries, 8 bytes each: 512 KiB to 512 MiB. */
	LIMIT_FLOW_ENTRIES_MIN = 1 << 16,
	LIMIT_FLOW_ENTRIES = 1 << 26,
	/* Flow entries of a bucket (one cache line), and how many of them may be untrusted or closing. */
	LIMIT_FLOW_BUCKET = 8,
	LIMIT_FLOW_UNTRUSTED = 4,
	/* Cold records of endpoints that need one. */
	LIMIT_ENDPOINT_EXTRAS = 1 << 17,
	LIMIT_DEVICES = 16,
	/* VIPs whose ports are leased to servers: 256 MiB. `snat_blocks` has one element more, so that one can change. */
	LIMIT_SNAT_VIPS = 1 << 14,
	/* Words of such a VIP's ports: four ranges of 8 ports each. */
	LIMIT_SNAT_WORDS = 1 << 11,
	/* Words of all VIPs' port ranges together. */
	LIMIT_PORT_RANGES = 1 << 18,
	/* Sets by which QUIC connection ids are read, twice as many as endpoints may have one, so that all can change. Policy words have 16 bits for the number of
	 * one, and 0 says that there is none. */
	LIMIT_QUIC_SETS = 1 << 15,
	/* Sets of cookie keys: policy words have 16 bits for the number of one, and 0 says that there is none. */
	LIMIT_COOKIE_SETS = (1 << 16) - 1,
	/* Live cookie keys of a set, told apart by one bit of cookies. */
	LIMIT_COOKIE_KEYS = 2,
	/* VIPs with limits or a source list. */
	LIMIT_VIP_GUARDS = 1 << 16,
	/* Words of a CPU's region of `datagrams`: a cache line. */
	LIMIT_DATAGRAM_REGION = 8,
	/* Tokens that a limit's bucket holds at least. */
	LIMIT_BURST_MIN = 16,
	LIMIT_SOURCE_LISTS = 1 << 14,
	/* Words of all source lists together: 16 MiB. A list of n IPv4 prefixes has at most n words, one of IPv6 prefixes 4n. */
	LIMIT_SOURCE_WORDS = 1 << 21,
	/* Interfaces that packets arrive by. */
	LIMIT_INTERFACES = 8,
	/* Packets whose first fragment is remembered, and for how many seconds. */
	LIMIT_FRAGMENTS = 1 << 16,
	LIMIT_FRAGMENT_SECONDS = 5,
	/* First fragments of a VIP that are remembered per second: for LIMIT_FRAGMENT_SECONDS they are 5/8 of LIMIT_FRAGMENTS. */
	LIMIT_FRAGMENT_RATE = 1 << 13,
	/* Packet-too-big messages per second of a VIP, echo replies per second of a VIP whose plan sets no limit. */
	LIMIT_PTB_RATE = 1000,
	LIMIT_PING_RATE = 1000,
	/* Ring slots tried after a dead member before the members are scanned in id order. */
	LIMIT_FALLBACK_PROBES = 8,
	/* Ring sizes are 1 << code. */
	LIMIT_RING_CODE_MIN = 6,
	LIMIT_RING_CODE_MAX = 20,
	/* IPv6 extension headers followed before a packet is refused. */
	LIMIT_IP6_EXTENSIONS = 6,
	/* TCP options followed before a packet is refused; 40 bytes hold no more. */
	LIMIT_TCP_OPTIONS = 40,
	/* Live ring hash keys: the present one and the one before. */
	LIMIT_RING_KEYS = 2,
	/* Elements of the maps `reasons` and `host_reasons`, with room for reasons to come: pinned tables then serve
	 * programs that know more. */
	LIMIT_REASONS = 64,
};

#endif
