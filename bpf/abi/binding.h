/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Bindings of the host: which packets of the tunnel are whose. */
#ifndef SHUNT_ABI_BINDING_H
#define SHUNT_ABI_BINDING_H

#include "abi/limit.h"

/* The protocol of bindings for all protocols: reserved by IANA. */
enum binding_protocol {
	BINDING_ANY = 255,
};

/* Kinds of tunnels, and what the map `outers` says of an outer destination: the kinds that lead to bindings there. */
enum host_tunnel {
	HOST_TUNNEL_IPIP = 1,
	HOST_TUNNEL_GUE = 2,
};

/* Key of a binding: a member of an endpoint as the tunnel names it (design section 9.2). An endpoint for all protocols
 * has protocol 255 and port 0. */
struct binding_key {
	__u8 outer_dst[16];
	__u8 vip[16];
	__u32 vni;
	__u16 member; /* id with GUE, else 0xffff */
	__u8 protocol;
	__u8 by;      /* 1: for packets from switches; the binding is of all members of the endpoint here */
	__u16 port_be;
	__u16 rsv1;
};
SHUNT_ASSERT_SIZE(struct binding_key, 44);

/* Key of a part of a binding's range of ports: those that begin like port_be. Longer prefixes are found first, so that
 * a range goes before "all ports", which is the prefix without bits. */
struct binding_prefix {
	__u32 bits; /* of key that count: PREFIX_BITS and those of the port */
	struct binding_key key;
};
SHUNT_ASSERT_SIZE(struct binding_prefix, 48);

enum binding_prefix_bits {
	PREFIX_BITS = 8 * 40,
	PREFIX_PORT_BITS = 16,
};

/* What a binding does. */
struct binding {
	__u8 dip[16];
	__u16 port_be; /* port at the DIP; 0: the port stays */
	__u16 mss;     /* largest TCP MSS to let through, host order; 0: leave it */
	__u8 rewrite;  /* 1: VIP:port <-> DIP:port; 0: the server owns the VIP */
	__u8 spread;   /* 1: of all members of the endpoint here: the targets of `repair`, and nothing else counts but `rewrite` */
	__u16 member;  /* id in the endpoint */
	__u32 index;   /* of its counter */
	__u32 repair;  /* index of the endpoint's struct repair + 1; 0: nothing was displaced from it lately */
};
SHUNT_ASSERT_SIZE(struct binding, 32);

/* Key of a VIP that servers here own (rewrite none): its answers leave with the right source by themselves and only
 * their SYN-ACK is looked at. Port 0 stands for all ports of ranges together. */
struct owned_key {
	__u8 vip[16];
	__u32 vni;
	__u16 port_be;
	__u8 protocol;
	__u8 rsv;
};
SHUNT_ASSERT_SIZE(struct owned_key, 24);

/* What is done to a SYN-ACK of an owned VIP. */
struct owned {
	__u16 mss; /* as in struct binding; of several bindings the least */
	__u16 rsv;
};
SHUNT_ASSERT_SIZE(struct owned, 4);

/* What the TCP connections that clients tried came to, of one binding that rewrites. Of a binding for UDP its new flows are asked, and the first answers to them
 * accepted, as long as the host has no binding for all protocols. */
struct handshakes {
	__u64 asked;    /* SYNs delivered */
	__u64 accepted; /* SYN-ACKs returned */
	__u64 refused;  /* RSTs that answer a SYN returned */
};
SHUNT_ASSERT_SIZE(struct handshakes, 24);

#endif
