/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Flows and datagrams in fragments that the host remembers. */
#ifndef SHUNT_ABI_HOST_FLOW_H
#define SHUNT_ABI_HOST_FLOW_H

#include "abi/limit.h"

/* Key of an answer's flow: as the server sees it. */
struct flow_key {
	__u8 dip[16];
	__u8 client[16];
	__u32 vni;
	__u16 dip_port_be;    /* 0 without ports */
	__u16 client_port_be; /* as the server sees it: possibly a substitute */
	__u8 protocol;
	__u8 rsv[7];
};
SHUNT_ASSERT_SIZE(struct flow_key, 48);

/* How to make the answer the client's again. */
struct flow {
	__u8 vip[16];
	__u16 vip_port_be;
	__u16 client_port_be; /* as the client knows it */
	__u16 mss;            /* as in struct binding */
	__u16 binding;        /* index of the counters of the binding that its last packet came by */
};
SHUNT_ASSERT_SIZE(struct flow, 24);

/* Key of a flow whose client port was taken: the flow as the client knows it, and the VIP it came by. */
struct substitute_key {
	struct flow_key flow;
	__u8 vip[16];
	__u16 vip_port_be;
	__u8 rsv[6];
};
SHUNT_ASSERT_SIZE(struct substitute_key, 72);

/* The client port such a flow goes by. */
struct substitute {
	__u16 client_port_be;
	__u16 rsv;
};
SHUNT_ASSERT_SIZE(struct substitute, 4);

/* Key of a datagram that travels in fragments, either direction. */
struct datagram_key {
	__u8 src[16];
	__u8 dst[16];
	__u32 vni;
	__u32 id;      /* as it lies in the header */
	__u8 protocol; /* 0 with IPv6, where fragments of one datagram need not agree (RFC 8200 section 4.5) */
	__u8 rsv[7];
};
SHUNT_ASSERT_SIZE(struct datagram_key, 48);

/* What became of its first fragment. */
struct datagram {
	__u8 addr[16]; /* inbound the DIP, else the VIP */
	__u64 born;    /* nanoseconds */
	__u32 index;   /* of the binding's counter */
	__u8 rewrite;  /* 1: the address is replaced by addr */
	__u8 rsv[3];
};
SHUNT_ASSERT_SIZE(struct datagram, 32);

#endif
