/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Flows and datagrams in fragments that the host remembers. */
#ifndef SHUNT_ABI_HOST_FLOW_H
#define SHUNT_ABI_HOST_FLOW_H

#include "abi/limit.h"
#include "abi/config.h"

/* One cache line of the host's flow table: a tag for each of the eight records of a bucket, whose record is number bucket * 8 + way.
 * 0: empty. A flow is in one of two buckets (lib/tag.h). */
struct flow_tags {
	__u64 tags[LIMIT_FLOW_BUCKET]; /* atomic: enum flow_tag */
};
SHUNT_ASSERT_SIZE(struct flow_tags, 64);

/* A tag, from bit 0 up: tick until which the flow lives:18 | enum flow_class:2 | busy:1 | zero:3 | generation:8 | fingerprint:32. A tick is
 * 2^30 nanoseconds of CLOCK_MONOTONIC. While busy is set its record is being written. The generation counts the flows that had the
 * place: a reader takes what it read of the record for the flow's when all but time and class of the tag are as before. */
enum flow_tag {
	FLOW_TAG_TICK_SHIFT = 30, /* nanoseconds to ticks */
	FLOW_TAG_UNTIL_BITS = 18,
	/* Longest idle time, in ticks: 39 hours. What is left of a time is less, or it is over. */
	FLOW_TAG_IDLE_MAX = (1 << 17) - 1,
	FLOW_TAG_CLASS_SHIFT = 18,
	FLOW_TAG_BUSY_SHIFT = 20,
	FLOW_TAG_GENERATION_SHIFT = 24,
	FLOW_TAG_FINGERPRINT_SHIFT = 32,
};

/* What a record is. */
enum flow_kind {
	FLOW_INBOUND = 0, /* of a client to a VIP */
	/* Of a server to somebody else, who is its client: what leaves has the VIP and vip_port_be, a port leased to the DIP. The port may be
	 * an identifier of ICMP echo, which has none at the other end. */
	FLOW_SNAT = 1,
	/* Leads from the client's own words to the substitute port of a flow that collides with another: dip and its port are the
	 * VIP's, peer_port_be the client's; vip and its port are the DIP's, client_port_be is the substitute. */
	FLOW_ALIAS = 2,
	/* Leads from the words of the far end back to a FLOW_SNAT: dip and its port are the VIP's, vip and its port the DIP's. */
	FLOW_BACK = 3,
	/* FLOW_INBOUND of a client on the server's own machine: the server knows the VIP as its client, and is what the flow is found
	 * by; `client` is whom its answers go to. */
	FLOW_HAIRPIN = 4,
};

enum flow_record_flag {
	FLOW_OPENED = 1,   /* its connection began with a SYN: an answer alone does not show that the client is there */
	FLOW_SEQ_OUT = 2,  /* seq_out is known */
	FLOW_ACK_IN = 4,   /* ack_in is known */
	FLOW_SEQ_IN = 8,   /* seq_in is known */
	FLOW_ACK_OUT = 16, /* ack_out is known */
	FLOW_FIN_IN = 32,  /* the client sent a FIN that the server's kernel accepts */
	FLOW_FIN_OUT = 64, /* the server did */
	FLOW_FIN_LATE = 256, /* struct flow_note has the number behind a FIN that came before data in front of it */
	FLOW_BESIDE = 128, /* its answers are host_serve's: the client is on this machine, behind another device */
};

/* A flow of this host. Its key is as the server sees it: scope, client (of FLOW_HAIRPIN vip), dip, dip_port_be, peer_port_be and kind; that
 * and what answers become is written while its tag is busy, and does not change. Everything from `stamped` on does, without order. */
struct flow_record {
	__u8 client[16];
	__u32 dip; /* index in flow_addrs */
	__u32 vip; /* index in flow_addrs */
	__u16 dip_port_be;    /* 0 without ports */
	__u16 peer_port_be;   /* the client's as the server sees it: possibly a substitute */
	__u16 vip_port_be;
	__u16 client_port_be; /* as the client knows it */
	__u32 scope;          /* vni:24 | protocol:8, from the top bit down */
	__u8 kind;            /* enum flow_kind */
	__u8 stamped;         /* 1: it has a struct evc; becomes so, and never again 0 */
	__u16 mss;     /* as in struct binding */
	__u16 binding; /* index of the counters of the binding that its last packet came by */
	__u16 flags;   /* enum flow_record_flag */
	/* TCP, each the number of the byte after: what the server sent, what the client acknowledged, what the client sent without a gap, what
	 * the server acknowledged. */
	__u32 seq_out;
	__u32 ack_in;
	__u32 seq_in;
	__u32 ack_out;
	__u32 seen; /* tick of the last packet, or of one up to a 64th of the idle time before */
};
SHUNT_ASSERT_SIZE(struct flow_record, 64);

/* Rare facts about a flow, in element `place % LIMIT_FLOW_NOTES` of flow_notes. Flows share an element: a fact is valid for the flow at `…_of` - 1, and for
 * none if that is 0, the initial value. */
struct flow_note {
	/* The last SYN to the server's own address and port that came without a tunnel: the numbers after the SYN and after its data. */
	__u32 direct_of;
	__u32 direct_first;
	__u32 direct_last;
	/* With FLOW_FIN_LATE: the number after the client's FIN. */
	__u32 fin_of;
	__u32 fin;
	__u32 rsv;
};
SHUNT_ASSERT_SIZE(struct flow_note, 24);

/* Classes of idle times. */
enum idle_class {
	IDLE_ESTABLISHED = 0, /* TCP, trusted */
	IDLE_OPENING = 1,     /* TCP, untrusted */
	IDLE_CLOSING = 2,     /* TCP, after a RST or both FINs */
	IDLE_UDP = 3,
	IDLE_OTHER = 4,       /* protocols without ports */
	IDLE_CLASSES = 5,
};

/* What flows have from the binding of this index. */
struct binding_flow {
	__u32 dip; /* index in flow_addrs */
	__u32 vip;
	__u32 idle[IDLE_CLASSES]; /* ticks, 1 to FLOW_TAG_IDLE_MAX / 2 */
	__u32 cookie; /* enum binding_cookie */
};
SHUNT_ASSERT_SIZE(struct binding_flow, 32);

/* The one element of the map `flow_setups`. The key is made with the table and never changed: programs have a copy. */
struct flow_setup {
	struct siphash_key key;
	__u64 aliases; /* atomic: not 0 while there may be records of FLOW_ALIAS; the sweep asks for them by making it 2 */
};
SHUNT_ASSERT_SIZE(struct flow_setup, 24);

/* Key of a datagram that travels in fragments, either direction. */
struct datagram_key {
	__u8 src[16];
	__u8 dst[16];
	__u32 vni;
	__u32 id;      /* as it lies in the header */
	__u8 protocol; /* 0 with IPv6, where fragments of one datagram need not agree (RFC 8200 section 4.5) */
	__u8 out;      /* 1: an answer; a question of a client on this machine passes its uplink too */
	__u8 rsv[6];
};
SHUNT_ASSERT_SIZE(struct datagram_key, 48);

/* What became of its first fragment. */
struct datagram {
	__u8 addr[16]; /* inbound the DIP, else the VIP; of a hairpin's answer the client */
	__u64 born;    /* nanoseconds */
	__u32 index;   /* of the binding's counter; of an answer the server's in flow_addrs */
	__u8 rewrite;  /* 1: the address is replaced by addr */
	__u8 hairpin;  /* 1: addr replaces the destination, which replaces the source */
	__u8 beside;   /* 1: of an answer of a flow with FLOW_BESIDE */
	__u8 rsv;
};
SHUNT_ASSERT_SIZE(struct datagram, 32);

#endif
