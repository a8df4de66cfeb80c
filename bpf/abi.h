/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Every struct, enum and limit that the BPF programs and the Go agents share.
 *
 * Go's side is generated from this file (bpf2go reads it back from BTF); nothing here is typed twice.
 * Rules: no unions, no bitfields, explicit zeroed padding; addresses are 16 bytes, IPv4 as ::ffff:a.b.c.d;
 * a field that holds network byte order ends in _be; enum values are append-only. A change that a running
 * program or a pinned map could not live with bumps ABI_VERSION.
 *
 * Publication rule (design section 6): words marked "atomic" are one aligned 64-bit store from Go and one
 * aligned load here. Everything else in a record is immutable while any published word refers to it.
 */
#ifndef SHUNT_ABI_H
#define SHUNT_ABI_H

#include <linux/types.h>

#define SHUNT_ASSERT_SIZE(type, n) _Static_assert(sizeof(type) == (n), #type " has the wrong size")

/* Limits. They are enumerators, not macros, so that they reach BTF and thereby Go. */
enum limit {
	LIMIT_ABI_VERSION = 1,
	/* Slots of the exact-match endpoint table; a power of two, twice the endpoints it may hold. */
	LIMIT_ENDPOINT_SLOTS = 1 << 17,
	LIMIT_ENDPOINTS = 1 << 16,
	/* Slots inspected, from the home bucket on, before a lookup gives up; the agent never places farther, and
	 * refuses what finds no slot. A test fills the table to its highest load, one half. */
	LIMIT_ENDPOINT_PROBES = 32,
	/* Member words of all endpoints together. */
	LIMIT_MEMBERS = 1 << 20,
	LIMIT_BACKENDS = 1 << 18,
	/* 64-bit ring words; four 16-bit slots each: 32 MiB, 16 Mi slots. */
	LIMIT_RING_WORDS = 1 << 22,
	LIMIT_DEVICES = 16,
	/* Ring slots tried after a dead member before the members are scanned in id order. */
	LIMIT_FALLBACK_PROBES = 8,
	/* Ring sizes are 1 << code. */
	LIMIT_RING_CODE_MIN = 6,
	LIMIT_RING_CODE_MAX = 17,
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

/* ---------------------------------------------------------------------------------------------- mux */

/* Why a packet was not simply forwarded (or how it ended). Counted per CPU in the map `reasons`. */
enum mux_reason {
	MUX_REASON_FORWARDED = 0,       /* encapsulated and sent; the sum over all backends */
	MUX_REASON_PASS_NOT_IP = 1,     /* not IPv4 or IPv6: to the kernel */
	MUX_REASON_PASS_NOT_OURS = 2,   /* no VIP of this mux: to the kernel */
	MUX_REASON_ECHO_REPLIED = 3,    /* ICMP echo to a VIP, answered (RFC 792, RFC 4443) */
	MUX_REASON_NO_ENDPOINT = 4,     /* a VIP of ours, but nothing listens on this protocol and port */
	MUX_REASON_NO_BACKEND = 5,      /* the endpoint has no alive member */
	MUX_REASON_NO_NEXTHOP = 6,      /* the way to the backend is not resolved yet */
	MUX_REASON_TOO_BIG = 7,         /* the encapsulated packet would exceed the path MTU */
	MUX_REASON_TRUNCATED = 8,       /* the frame ends before a header that it announces */
	MUX_REASON_IP4_BAD_IHL = 9,     /* IHL below 5 or beyond the packet (RFC 791) */
	MUX_REASON_IP4_BAD_LENGTH = 10, /* total length below the header or beyond the frame */
	MUX_REASON_IP4_OPTIONS = 11,    /* IPv4 options to a VIP: refused */
	MUX_REASON_IP6_BAD_LENGTH = 12, /* payload length beyond the frame, or a jumbogram */
	MUX_REASON_IP6_EXTENSIONS = 13, /* too many or broken extension headers (RFC 8200 section 4) */
	MUX_REASON_FRAGMENT = 14,       /* fragments to a VIP are not supported by this version */
	MUX_REASON_TCP_BAD_OFFSET = 15, /* data offset below 5 or beyond the segment (RFC 9293) */
	MUX_REASON_TCP_BAD_OPTION = 16, /* an option length that is 0, 1 or beyond the header */
	MUX_REASON_UDP_BAD_LENGTH = 17, /* UDP length below 8 or beyond the payload (RFC 768) */
	MUX_REASON_ICMP_IGNORED = 18,   /* ICMP to a VIP that is not an echo request */
	MUX_REASON_PROTOCOL = 19,       /* a protocol to a VIP that no endpoint can have */
	MUX_REASON_TTL_EXPIRED = 20,    /* TTL or hop limit 0 or 1 on arrival: forwarding ends here (RFC 1812) */
	MUX_REASON_NO_HEADROOM = 21,    /* the driver left no room for the outer header */
	MUX_REASON_INTERNAL = 22,       /* a table refers to a record that is not there: a bug */
	MUX_REASON_BAD_CHECKSUM = 23,   /* IPv4 header checksum, or checksum of an ICMP echo to a VIP, is wrong */
	MUX_REASON_FIB_FALLBACK = 24,   /* forwarded, but through the kernel's FIB because the next hop record was empty */
	MUX_REASON_BAD_VERSION = 25,    /* the IP version is not what the Ethernet type says */
	MUX_REASON_PASS_OTHER_MAC = 26, /* sent to another Ethernet address (flooded, broadcast, multicast): to the kernel */
	MUX_REASON_BAD_SOURCE = 27,     /* from a VIP of ours: its answers could go round for ever */
	MUX_REASON_MAX,
};

/* One slot of the exact-match endpoint table: open addressing, two slots a cache line.
 * `key` is vni:24 | protocol:8 | port:16 | family-independent zero:16 (from the top bit down).
 * A VIP as such has a slot with protocol 0 and port 0, so that ping and "a VIP of ours" are one lookup.
 * Readers load `value` first; 0 is never used, 1 is a tombstone, else index of the endpoint + 2.
 * vip and key are written before value; a slot is reused only after a grace period. */
struct endpoint_slot {
	__u8 vip[16];
	__u64 key;
	__u64 value; /* atomic */
};
SHUNT_ASSERT_SIZE(struct endpoint_slot, 32);

enum endpoint_slot_value {
	ENDPOINT_SLOT_EMPTY = 0,
	ENDPOINT_SLOT_TOMBSTONE = 1,
	ENDPOINT_SLOT_FIRST = 2,
};

/* An endpoint: (VNI, VIP, protocol, port). Its index is also that of its counters. Readers load ring before members;
 * the agent publishes members before ring, so that a ring never names a member that is not there. */
struct endpoint {
	__u64 ring;    /* atomic: first ring word:32 | size code:8 | ring key:8 | zero:16, from bit 0 up. 0: no ring */
	__u64 members; /* atomic: first member word:32 | number of member words:32, from bit 0 up */
	__u32 vni;
	__u32 flags;   /* enum endpoint_flag */
	__u64 rsv[5];
};
SHUNT_ASSERT_SIZE(struct endpoint, 64);

enum endpoint_flag {
	ENDPOINT_VIP_ONLY = 1, /* the slot of a VIP itself: answers ping, forwards nothing */
};

/* A member word: what a member id of one endpoint stands for. Atomic.
 * bits 0-31 index of the backend record, 32 alive, 33 choosable (weight above 0), 34 present. */
enum member_bit {
	MEMBER_ALIVE_SHIFT = 32,
	MEMBER_CHOOSABLE_SHIFT = 33,
	MEMBER_PRESENT_SHIFT = 34,
};

/* Where the packets of a member go. Immutable but for `nexthop`. */
struct backend {
	__u8 outer_dst[16];
	__u64 nexthop;   /* atomic: enum nexthop_bit */
	__u32 mtu;       /* of the path to outer_dst: the largest IP packet including the outer header */
	__u32 outer4_be; /* outer_dst as IPv4, when it is one */
	__u32 sum4;      /* folded sum of the constant parts of the outer IPv4 header, host order of 16-bit words as stored */
	__u32 outer_v6;  /* 1: the outer header is IPv6 */
	__u64 rsv[3];
};
SHUNT_ASSERT_SIZE(struct backend, 64);

/* A next hop word: bits 0-47 destination MAC (first octet in the lowest bits), 48-55 device slot,
 * bit 63 valid. 0: unresolved. */
enum nexthop_bit {
	NEXTHOP_DEVICE_SHIFT = 48,
	NEXTHOP_VALID_SHIFT = 63,
};

/* An interface packets leave by. */
struct device {
	__u64 mac; /* bits 0-47: its address, first octet in the lowest bits */
	__u32 ifindex;
	__u32 rsv;
};
SHUNT_ASSERT_SIZE(struct device, 16);

/* SipHash-1-3 key (protocol section 1.6). */
struct siphash_key {
	__u64 k0;
	__u64 k1;
};
SHUNT_ASSERT_SIZE(struct siphash_key, 16);

/* The one element of the map `configs`: what the walk needs beside the tables. */
struct mux_config {
	__u32 abi_version;
	__u32 outer4_base_be;  /* outer IPv4 source = base | (hash & mask) */
	__u32 outer4_mask_be;  /* host bits of the tunnel source prefix */
	__u32 rsv0;
	__u8 outer6_base[16];  /* outer IPv6 source: the first 8 bytes of it, 4 of zero, 4 that vary with the flow */
	struct siphash_key ring_keys[LIMIT_RING_KEYS];
};
SHUNT_ASSERT_SIZE(struct mux_config, 64);

/* Per CPU, per endpoint and per member word. */
struct counter {
	__u64 packets;
	__u64 bytes; /* of the inner IP packet */
};
SHUNT_ASSERT_SIZE(struct counter, 16);

/* --------------------------------------------------------------------------------------------- host */

enum host_limit {
	LIMIT_BINDINGS = 1 << 16,
	/* Flows remembered for their answers: 144 bytes each with the kernel's overhead, 36 MiB. */
	LIMIT_FLOWS = 1 << 18,
	/* Flows that go by a substitute client port. */
	LIMIT_SUBSTITUTES = 1 << 14,
	/* Client ports tried before a colliding flow is refused. */
	LIMIT_PORT_PROBES = 16,
};

/* What the host programs did with a packet. Counted per CPU in the map `host_reasons`. */
enum host_reason {
	HOST_REASON_PASS_NOT_OURS = 0,    /* neither a tunnel packet for a DIP here nor an answer of one */
	HOST_REASON_IN_DELIVERED = 1,     /* decapsulated, translated, delivered */
	HOST_REASON_IN_UNTOUCHED = 2,     /* decapsulated and delivered as it was (the server owns the VIP) */
	HOST_REASON_OUT_RETURNED = 3,     /* an answer, translated back and sent to the client */
	HOST_REASON_IN_BAD_SOURCE = 4,    /* tunnel packet whose outer source is no tunnel source of the plan */
	HOST_REASON_IN_NO_BINDING = 5,    /* tunnel packet for VIP, port and DIP that the plan does not have here */
	HOST_REASON_IN_MALFORMED = 6,     /* truncated or lying inner or outer header */
	HOST_REASON_IN_FRAGMENT = 7,      /* inner or outer fragments are not supported by this version */
	HOST_REASON_IN_NO_PORT = 8,       /* two VIPs share a DIP:port and no substitute client port was free */
	HOST_REASON_IN_STATE_FULL = 9,    /* flow state could not be stored */
	HOST_REASON_IN_ADJUST_FAILED = 10,/* the kernel refused to shrink or to rewrite the packet */
	HOST_REASON_OUT_REWRITE_FAILED = 11, /* the kernel refused to rewrite an answer */
	HOST_REASON_MSS_CLAMPED = 12,     /* counted beside the verdict of the same packet */
	HOST_REASON_CLIENT_PORT_MAPPED = 13, /* counted beside: a client port was substituted (design section 9.8) */
	HOST_REASON_IN_NO_ROUTE = 14,     /* no route to the DIP, or a VIP that its server does not own */
	HOST_REASON_OUT_FRAGMENT = 15,    /* first fragment of an answer: the others could not follow it */
	HOST_REASON_MAX,
};

/* The one element of the map `host_configs`. Prefixes are a value and a mask; a family without a prefix has a value
 * that no address masked with it can have (value bits outside the mask). */
struct host_config {
	__u32 abi_version;
	__u32 rsv;
	__u32 source4_be;
	__u32 source4_mask_be;
	__u64 source6_be[2];
	__u64 source6_mask_be[2];
};
SHUNT_ASSERT_SIZE(struct host_config, 48);

/* Key of a binding: a member of an endpoint as the tunnel names it (design section 9.2). */
struct binding_key {
	__u8 outer_dst[16];
	__u8 vip[16];
	__u32 vni;
	__u16 port_be;
	__u8 protocol;
	__u8 rsv;
};
SHUNT_ASSERT_SIZE(struct binding_key, 40);

/* What a binding does. */
struct binding {
	__u8 dip[16];
	__u16 port_be; /* port at the DIP */
	__u16 mss;     /* largest TCP MSS to let through, host order; 0: leave it */
	__u8 rewrite;  /* 1: VIP:port <-> DIP:port; 0: the server owns the VIP */
	__u8 rsv[3];
	__u32 index;   /* of its counter */
	__u32 rsv1;
};
SHUNT_ASSERT_SIZE(struct binding, 32);

/* Key of a VIP that servers here own (rewrite none): its answers leave with the right source by themselves and only
 * their SYN-ACK is looked at. */
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

/* Key of an answer's flow: as the server sees it. */
struct flow_key {
	__u8 dip[16];
	__u8 client[16];
	__u32 vni;
	__u16 dip_port_be;
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
	__u16 rsv;
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

#endif
