/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Sessions of path nat: the mux rewrites packets both ways, and remembers each flow (mux/nat.h). */
#ifndef SHUNT_ABI_NAT_H
#define SHUNT_ABI_NAT_H

#include "abi/limit.h"

enum nat_limit {
	/* Sessions of a mux: 2 GiB. */
	LIMIT_NAT_SESSIONS = 1 << 22,
	/* Addresses of each family that a mux sends from to servers. */
	LIMIT_NAT_ADDRESSES = 16,
	/* Ports that are tried for a new session, the second half of them at the next address. */
	LIMIT_NAT_PROBES = 32,
	/* Of those that wait for trust, how many a newcomer without room looks at. */
	LIMIT_NAT_WAITING = 32,
	/* How often a word `life` that others change meanwhile is tried to be changed. */
	LIMIT_NAT_TRIES = 4,
	/* Seconds that the port of a connection which is over rests towards its server: twice the maximum segment lifetime that Linux has for
	 * TIME-WAIT (RFC 9293 section 3.6.1). */
	LIMIT_NAT_REST = 60,
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

/* Names a session: by its client's direction, and by the number in its word `life`, which distinguishes it from those that had or will have this direction. A session
 * that waits for trust keeps its number, also when another connection begins in it, so that it has one place among those that wait. */
struct nat_name {
	struct nat_key client;
	__u32 number;
	__u32 rsv;
};
SHUNT_ASSERT_SIZE(struct nat_name, 48);

/* What is known of the sequence numbers of one side of a TCP connection (RFC 9293 section 3.4). */
struct nat_side {
	__u32 acked; /* what the other side acknowledged */
	__u32 end;   /* behind the last octet that this side sent */
	__u32 fin;   /* with NAT_FINISHING_…: behind its FIN */
};
SHUNT_ASSERT_SIZE(struct nat_side, 12);

/* A session, found by the client's direction: client, VIP. The map `nat_ports` names it by the server's direction: server, address of the mux.
 * Packets of both directions write to it at once: `life` only by compare and swap, the rest by stores of whole words. Who takes it out of the map has
 * set NAT_ENDING before: its memory may be another session's at once, and has another number in `life` then. Another connection in the same session
 * has another count there. */
struct nat_session {
	__u64 lip_hi; /* address of the mux */
	__u64 lip_lo;
	__u64 dip_hi; /* server */
	__u64 dip_lo;
	__u64 way;    /* MAC address that the client's last packet came from, as in struct device: answers go there */
	__u64 mac;    /* and to which of ours */
	__u64 tags;   /* with these tags (lib/vlan.h) */
	__u64 life;   /* atomic: enum nat_flag:16 | count of connections:16 | number:32, from bit 0 up */
	__u32 ifindex; /* by this interface */
	__u32 stamp;  /* tick of the last packet */
	__u32 newest; /* with NAT_CLOCK: newest TSval of the server */
	__u32 slot;   /* index of the slot of the endpoint that the client's last packet found */
	__u16 member; /* id */
	__u16 cookie; /* with NAT_STAMPS: in the timestamps that the client gets (lib/split.h) */
	__u16 lport;  /* host order */
	__u16 dport;  /* of the server */
	struct nat_side client;
	struct nat_side server;
	__u32 isn;    /* with NAT_NUMBERED: of the server's SYN */
	__u32 rsv;
};
SHUNT_ASSERT_SIZE(struct nat_session, 120);

enum nat_flag {
	NAT_ANSWERED = 1,    /* the server sent something other than a RST */
	NAT_TRUSTED = 2,     /* and the client went on after that: of TCP, acknowledged what the server sent */
	NAT_FIN_CLIENT = 4,  /* the server acknowledged a FIN of the client */
	NAT_FIN_SERVER = 8,  /* and the client one of the server */
	NAT_RESET = 16,      /* one side reset the connection, with a sequence number that says so */
	NAT_STAMPS = 32,     /* the server's timestamps get a cookie */
	NAT_RESTORES = 64,   /* and the server its own back: form SPLIT-R, else SPLIT-Z */
	NAT_CLOCK = 128,     /* a timestamp of the server was seen */
	NAT_NUMBERED = 256,  /* the server told where its sequence numbers are, and by its acknowledgement where the client's */
	NAT_FINISHING_CLIENT = 512, /* a FIN was sent */
	NAT_FINISHING_SERVER = 1024,
	NAT_ENDING = 2048,   /* somebody is taking the session out of the map */
	NAT_RESTS = 4096,    /* a connection before this one was over: the port rests when the session ends */
};

enum nat_life_shift {
	NAT_CONNECTION_SHIFT = 16,
	NAT_NUMBER_SHIFT = 32,
};

/* What the program nat_expire is asked: to end the session of `client` if it is as it was read, and no packet came since. */
struct nat_expiry {
	struct nat_key client;
	__u64 life;
	__u32 stamp;
	__u32 rsv;
};
SHUNT_ASSERT_SIZE(struct nat_expiry, 56);

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
