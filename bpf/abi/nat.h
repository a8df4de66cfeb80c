/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Sessions of path nat: the mux rewrites packets both ways, and remembers each flow (mux/nat.h). */
#ifndef SHUNT_ABI_NAT_H
#define SHUNT_ABI_NAT_H

#include "abi/limit.h"

enum nat_limit {
	/* Sessions of a mux: 1.3 GiB. */
	LIMIT_NAT_SESSIONS = 1 << 22,
	/* Addresses of each family that a mux sends from to servers. */
	LIMIT_NAT_ADDRESSES = 16,
	/* Ports that are tried for a new session, the second half of them at the next address. */
	LIMIT_NAT_PROBES = 32,
};

/* One direction of a flow. Addresses are two halves as stored, IPv4 mapped; ports in host order. */
struct nat_key {
	__u64 src_hi;
	__u64 src_lo;
	__u64 dst_hi;
	__u64 dst_lo;
	__u16 sport;
	__u16 dport;
	__u8 protocol;
	__u8 rsv[3];
};
SHUNT_ASSERT_SIZE(struct nat_key, 40);

/* A session, found by the client's direction: client, VIP. The map `nat_ports` has this key by the server's direction: server, address of the mux.
 * Packets of both directions write to it at once: flags only by atomic operations, the rest by stores of whole words. */
struct nat_session {
	__u64 lip_hi; /* address of the mux */
	__u64 lip_lo;
	__u64 dip_hi; /* server */
	__u64 dip_lo;
	__u64 way;    /* MAC address that the client's last packet came from, as in struct device: answers go there */
	__u64 mac;    /* and to which of ours */
	__u64 tags;   /* with these tags (lib/vlan.h) */
	__u32 ifindex; /* by this interface */
	__u32 flags;  /* enum nat_flag */
	__u32 stamp;  /* tick of the last packet */
	__u32 newest; /* with NAT_CLOCK: newest TSval of the server */
	__u32 slot;   /* index of the endpoint's slot */
	__u16 member; /* id */
	__u16 cookie; /* with NAT_STAMPS: in the timestamps that the client gets (lib/split.h) */
	__u16 lport;  /* host order */
	__u16 dport;  /* of the server */
	__u32 rsv;
};
SHUNT_ASSERT_SIZE(struct nat_session, 88);

enum nat_flag {
	NAT_ANSWERED = 1,    /* the server sent something other than a RST */
	NAT_TRUSTED = 2,     /* of TCP: and the client went on after that */
	NAT_FIN_CLIENT = 4,
	NAT_FIN_SERVER = 8,
	NAT_RESET = 16,      /* one side reset the connection */
	NAT_STAMPS = 32,     /* the server's timestamps get a cookie */
	NAT_RESTORES = 64,   /* and the server its own back: form SPLIT-R, else SPLIT-Z */
	NAT_CLOCK = 128,     /* a timestamp of the server was seen */
};

/* An address that the mux sends from to servers. */
struct nat_address {
	__u64 hi; /* as stored */
	__u64 lo;
	__u16 low; /* first and last port, host order */
	__u16 high;
	__u32 rsv;
};
SHUNT_ASSERT_SIZE(struct nat_address, 24);

/* The word `nat` of struct mux_config says which of `nat_addresses` count: number of IPv4:8 | of IPv6:8 | half:1, from bit 0 up. A half has
 * LIMIT_NAT_ADDRESSES of IPv4, then as many of IPv6. The other half is written before the word changes. */
enum nat_shift {
	NAT_COUNT6_SHIFT = 8,
	NAT_HALF_SHIFT = 16,
};

#endif
