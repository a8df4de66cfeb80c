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

/* A pointer argument of a global function that the verifier may take for granted (Linux 6.8). */
#ifndef __arg_nonnull
#define __arg_nonnull __attribute__((btf_decl_tag("arg:nonnull")))
#endif

#define SHUNT_ASSERT_SIZE(type, n) _Static_assert(sizeof(type) == (n), #type " has the wrong size")

/* Limits. They are enumerators, not macros, so that they reach BTF and thereby Go. */
enum limit {
	LIMIT_ABI_VERSION = 2,
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
	/* Words of all VIPs' port ranges together. */
	LIMIT_PORT_RANGES = 1 << 18,
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
	/* Packet-too-big messages per second of a mux, echo replies per second of a VIP whose plan does not say. */
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
	MUX_REASON_FRAGMENT = 14,       /* a fragment that nothing says where to send: its first one was not seen */
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
	MUX_REASON_FLOW_TABLE_FULL = 28, /* counted beside: forwarded by ring, but no room to remember the flow */
	MUX_REASON_FLOW_MOVED = 29,     /* counted beside: a remembered member is gone or dead, another was chosen */
	MUX_REASON_RATE_LIMITED = 30,   /* beyond the VIP's packets per second */
	MUX_REASON_NEW_FLOW_LIMITED = 31, /* beyond the VIP's new flows per second */
	MUX_REASON_SOURCE_DENIED = 32,  /* the service does not take this source */
	MUX_REASON_ICMP_ERROR_FORWARDED = 33, /* counted beside: an ICMP error went to the backend whose packet it quotes */
	MUX_REASON_ICMP_ERROR_UNKNOWN = 34, /* an ICMP error that quotes no packet of an endpoint of ours */
	MUX_REASON_PING_LIMITED = 35,   /* beyond the VIP's echo requests per second */
	MUX_REASON_PTB_SENT = 36,       /* too big for the tunnel: answered with packet too big from the VIP */
	MUX_REASON_PTB_LIMITED = 37,    /* too big for the tunnel, and too many such answers already */
	MUX_REASON_FRAGMENT_FOLLOWED = 38, /* counted beside: a fragment without ports that found its first one */
	MUX_REASON_PROBE_ASKED = 39,    /* a server took a probe's connection: acknowledged, with the request */
	MUX_REASON_PROBE_ENDED = 40,    /* a server's answer to a probe: noted, and the connection reset */
	MUX_REASON_PROBE_RESET = 41,    /* a server reset a probe's connection, or refused it: noted */
	MUX_REASON_PROBE_UNREACHABLE = 42, /* an ICMP error says that a probe's server cannot be reached: noted */
	MUX_REASON_PROBE_IGNORED = 43,  /* a segment of a probe's connection that says nothing */
	MUX_REASON_PROBE_NO_ROOM = 44,  /* the driver left no room for a probe's request: the connection was reset */
	MUX_REASON_MAX,
};

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
 * bit 0 up, members the index + 1 of the slot of its endpoint for any protocol, 0 for none; the lower half of policy the
 * echo requests answered per second, 0 for LIMIT_PING_RATE. */
struct endpoint_slot {
	__u8 vip[16];
	__u64 key;
	__u64 value;   /* atomic */
	__u64 ring;    /* atomic: first ring word:32 | size code:8 | ring key:8 | zero:16, from bit 0 up. 0: no ring */
	__u64 members; /* atomic: first member word:32 | number of member words:32, from bit 0 up */
	__u64 policy;  /* atomic: idle ticks of untrusted flows:16 | of trusted:16 | enum endpoint_flag:32, from bit 0 up */
	__u64 extra;   /* atomic: index of the endpoint_extra record + 1, 0: none */
};
SHUNT_ASSERT_SIZE(struct endpoint_slot, 64);

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
	/* Flags that the usual packet does not meet: one branch leads to all of them. */
	ENDPOINT_UNUSUAL = 4 | 8 | 16 | 32 | 64 | 128,
};

/* What few endpoints need. Immutable but for members_before. */
struct endpoint_extra {
	__u64 members_before; /* atomic: the `members` word before the block moved, 0: none */
	__u64 source_mask_hi; /* bits of the client's address that make the flow, both halves as stored */
	__u64 source_mask_lo;
	__u32 source_ticks;   /* idle time of a remembered client */
	__u32 guard;          /* index + 1 of the VIP's vip_guard, 0: none */
	/* Of a VIP as such: index + 1 of the slots of its endpoints that take fragments whose first one is unknown, 0: none. */
	__u32 fragments_tcp;
	__u32 fragments_udp;
	__u64 rsv[3];
};
SHUNT_ASSERT_SIZE(struct endpoint_extra, 64);

/* Flow hashes: the lowest bits are the bucket, bits 36-38 the home (the entry taken if it is free), 39-63 the
 * fingerprint. */
enum flow_hash_shift {
	FLOW_HOME_SHIFT = 36,
};

/* A flow entry: a remembered flow in one atomic word. Bits 0-15 stamp (tick of the last packet that refreshed it),
 * 16-17 enum flow_class, 18-38 index of the member word, 39-63 fingerprint. 0: empty. */
enum flow_bit {
	FLOW_CLASS_SHIFT = 16,
	FLOW_MEMBER_SHIFT = 18,
	FLOW_FINGERPRINT_SHIFT = 39,
	/* Of endpoints with ENDPOINT_SOURCE this bit of the fingerprint is 1 in the entries of clients, 0 in those of flows. */
	FLOW_CLIENT_SHIFT = 39,
};

enum flow_class {
	FLOW_CLASS_EMPTY = 0,
	FLOW_CLASS_UNTRUSTED = 1, /* only first packets were seen */
	FLOW_CLASS_TRUSTED = 2,   /* TCP: a later segment with ACK; else a second packet */
	FLOW_CLASS_CLOSING = 3,   /* FIN or RST was seen */
};

/* One cache line of the flow table. */
struct flow_bucket {
	__u64 entries[LIMIT_FLOW_BUCKET]; /* atomic */
};
SHUNT_ASSERT_SIZE(struct flow_bucket, 64);

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
	__u32 overhead;  /* enum overhead: bytes of the outer headers, which tell the form of the tunnel too */
	__u32 rsv0;
	__u64 rsv[2];
};
SHUNT_ASSERT_SIZE(struct backend, 64);

/* Forms of tunnels, by the bytes in front of the inner packet. */
enum overhead {
	OVERHEAD_IP4 = 20,
	OVERHEAD_IP6 = 40,
	OVERHEAD_GUE4 = 44, /* UDP, GUE and its private data behind an IPv4 header (lib/gue_header.h) */
	OVERHEAD_GUE6 = 64,
};

/* A next hop word: bits 0-47 destination MAC (first octet in the lowest bits), 48-55 device slot,
 * bit 63 valid. 0: unresolved. */
enum nexthop_bit {
	NEXTHOP_DEVICE_SHIFT = 48,
	NEXTHOP_VALID_SHIFT = 63,
};

/* An interface packets leave by. */
struct device {
	__u64 mac; /* bits 0-47: its address, first octet in the lowest bits */
	__u32 ifindex; /* of the interface that frames leave by; with DEVICE_TAGGED they get the tag `vlan` */
	__u32 vlan;    /* TPID and TCI as stored (lib/vlan.h), 0: none */
};
SHUNT_ASSERT_SIZE(struct device, 16);

enum device_bit {
	DEVICE_TAGGED_SHIFT = 31, /* of ifindex: that of no interface then, so that a usual packet meets one comparison */
};

/* Key of a remembered fragment: what all fragments of a packet share. Addresses are two halves as stored. */
struct fragment_key {
	__u64 src_hi;
	__u64 src_lo;
	__u64 dst_hi;
	__u64 dst_lo;
	__u32 id;    /* as stored */
	__u32 scope; /* vni:24 | protocol:8 from the top bit down; the protocol of IPv6 is 0, for it need not be in all */
};
SHUNT_ASSERT_SIZE(struct fragment_key, 40);

/* Where the first fragment of a packet went. */
struct fragment {
	__u32 slot;   /* index of the endpoint's slot */
	__u32 member; /* index of the member word; a miss when it is not within the slot's members any more */
	__u32 hash;   /* low half of the hash that the outer source varies with */
	__u32 time;   /* jiffies, low half */
};
SHUNT_ASSERT_SIZE(struct fragment, 16);

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
	struct siphash_key flow_key; /* of the flow table: made with the tables, never changed */
	__u64 idle;                  /* atomic: the longest idle ticks of all endpoints, as in their policy words */
	__u64 rsv[5];
};
SHUNT_ASSERT_SIZE(struct mux_config, 128);

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

/* A list of source prefixes (lib/source.h). Immutable. */
struct source_list {
	__u8 digest[32]; /* of the wanted list: equal lists are one */
	__u64 turns4;    /* span of IPv4 turns: two to a word, the first in the low half */
	__u64 turns6;    /* span of IPv6 turns: two words each, high half first; host order */
	__u32 denies;    /* 1: addresses below the first turn are denied */
	__u32 rsv[3];
};
SHUNT_ASSERT_SIZE(struct source_list, 64);

/* What a VIP lets through. Intervals are the time of one token in 2^-24 jiffies, 0 for no limit; the words of their
 * buckets (lib/bucket.h) are on a line of their own, since every packet writes them. */
struct vip_guard {
	__u64 sources; /* atomic: index of the source_list + 1, 0: every source */
	__u64 packets_interval; /* atomic, as the next */
	__u64 flows_interval;
	__u64 rsv0[5];
	__u64 packets_spent; /* written by the walk */
	__u64 flows_spent;
	__u64 rsv1[6];
};
SHUNT_ASSERT_SIZE(struct vip_guard, 128);

/* Counters of the mux lie in plain arrays with a region for every possible CPU, and one more that only the agent writes:
 * it keeps what members that moved or went away had counted. Element i of region r has index r * size + i. */

/* Of an endpoint (what found it but went to no member) and of a member word. */
struct counter {
	__u64 packets;
	__u64 bytes; /* of the inner IP packet */
};
SHUNT_ASSERT_SIZE(struct counter, 16);

/* ------------------------------------------------------------------------------------------- probes */

enum probe_limit {
	/* Rules: their numbers have 20 bits in sequence numbers, with room to spare. */
	LIMIT_PROBE_RULES = 1 << 18,
	/* Lines of texts (requests, outer headers) of all rules together, and bytes of a line. */
	LIMIT_PROBE_TEXTS = 1 << 19,
	LIMIT_PROBE_LINE = 64,
	/* Bytes of a request. Below 2048: what acknowledges it then carries the rule's number still. And with all headers it
	 * fits in the 1472 bytes that drivers leave to a frame in half a page. */
	LIMIT_PROBE_REQUEST = 1024,
	/* Source ports of probes: outside of the kernel's usual ephemeral ones. The attempts of a round have consecutive ports. */
	LIMIT_PROBE_PORT_FIRST = 61440,
	LIMIT_PROBE_ATTEMPTS = 4,
	/* TCP window of probes, bytes: two segments of the 536 bytes that a server sends to who names no MSS (RFC 9293 section
	 * 3.7.1). Nobody reads more than a status line. */
	LIMIT_PROBE_TCP_WINDOW = 1072,
};

/* What is asked of a server. */
enum probe_kind {
	PROBE_TCP = 0,  /* a SYN-ACK is the answer */
	PROBE_HTTP = 1, /* the status of the first line of its answer is */
};

/* A probe to be made, one cache line. Its number n is found again in what the server acknowledges: a round's initial sequence
 * number is (n ^ key) << 12 | random:11, bit 11 zero, and requests have less than 2048 bytes. The agent writes a record while its
 * round is 0. A reader that met it in between can only note a result of a round that nobody waits for. */
struct probe_rule {
	__u8 peer[16];  /* who answers: the server, through a tunnel the VIP */
	__u8 local[16]; /* our own address */
	__u64 nexthop;  /* atomic: enum nexthop_bit, to the peer or the tunnel's end */
	__u64 round;    /* atomic: initial sequence number:32 | source port of the first attempt:16, from bit 0 up; 0: none */
	__u32 request;  /* first line of the request */
	__u32 outer;    /* line of the outer headers of segments without data; that of the request's is the next */
	__u16 request_len;
	__u16 request_sum; /* folded sum of the request (lib/csum.h) */
	__u16 port_be;     /* of the peer */
	__u8 kind;         /* enum probe_kind */
	__u8 outer_len;    /* bytes of the outer headers, enum overhead; 0: no tunnel */
};
SHUNT_ASSERT_SIZE(struct probe_rule, 64);

enum probe_round_shift {
	PROBE_ROUND_PORT_SHIFT = 32,
	/* Of the rule's number in an initial sequence number. */
	PROBE_NUMBER_SHIFT = 12,
	/* Of the words of `probe_key`: key:20, and this bit when there are probes. */
	PROBE_ON_SHIFT = 63,
};

/* What a round came to. Later ones replace earlier ones up to PROBE_FINAL; the first one from there on stays. */
enum probe_state {
	PROBE_SILENT = 0,
	PROBE_UNREACHABLE = 1, /* an ICMP error said so */
	PROBE_CONNECTED = 2,   /* SYN-ACK; the request was sent */
	PROBE_ANSWERED = 3,    /* SYN-ACK to PROBE_TCP */
	PROBE_STATUS = 4,      /* a status line */
	PROBE_ODD = 5,         /* data that begins with no whole status line, or with that of an interim answer */
	PROBE_CLOSED = 6,      /* connected, then closed without data */
	PROBE_REFUSED = 7,     /* RST to the SYN */
	PROBE_BROKEN = 8,      /* connected, then RST */
	PROBE_STUCK = 9,       /* connected, but this machine could not send the request */
	PROBE_FINAL = PROBE_ANSWERED,
};

/* The result of the rule of the same number. */
struct probe_result {
	__u64 word; /* atomic: initial sequence number:32 | status:16 | enum probe_state:8 | attempt, from 0:8, from bit 0 up */
	__u64 time; /* of that, CLOCK_MONOTONIC, nanoseconds; written before word */
};
SHUNT_ASSERT_SIZE(struct probe_result, 16);

enum probe_result_shift {
	PROBE_RESULT_STATUS_SHIFT = 32,
	PROBE_RESULT_STATE_SHIFT = 48,
	PROBE_RESULT_ATTEMPT_SHIFT = 56,
};

/* A line of a text: requests, outer headers. What is behind a text's end is zero. */
struct probe_text {
	__u8 bytes[LIMIT_PROBE_LINE];
};
SHUNT_ASSERT_SIZE(struct probe_text, 64);

/* ------------------------------------------------------------------------------------- bursts of probes */

enum burst_limit {
	/* Frames of a burst: 6 MiB. */
	LIMIT_BURST_FRAMES = 1 << 15,
	/* Bytes of a frame: two headers of IPv6, one of them with GUE, a tag and a TCP header, and what makes its record whole
	 * cache lines. The frames that the kernel runs the program with have as many. */
	LIMIT_BURST_BYTES = 168,
	/* Bytes that all frames are copied with; longer ones are copied whole. */
	LIMIT_BURST_SHORT = 64,
	/* Probes under way at once at most. */
	LIMIT_BURST_WINDOW = 256,
	/* Places of the window that are looked at in one turn. */
	LIMIT_BURST_LOOKS = 8,
};

/* A frame to be sent, written by the agent before its burst. */
struct burst_frame {
	__u64 at;       /* when it was, CLOCK_MONOTONIC, nanoseconds; written by the program before burst_state.next */
	__u32 number;   /* of its probe's rule */
	__u32 isn;      /* of its probe's round */
	__u32 ifindex;  /* of the device that it leaves by */
	__u32 length;
	__u8 bytes[LIMIT_BURST_BYTES];
};
SHUNT_ASSERT_SIZE(struct burst_frame, 192);

/* A burst under way; the agent writes it before, and reads it meanwhile. */
struct burst_state {
	__u32 count;  /* frames */
	__u32 window; /* probes under way at most, 1 to LIMIT_BURST_WINDOW */
	__u64 young;  /* nanoseconds after which a probe without an answer leaves the window */
	__u32 next;   /* frames before this one were sent */
	__u32 turns;  /* of the program, waiting ones too */
	__u32 cursor; /* place of the window to look at next */
	__u32 rsv;
	__u32 slots[LIMIT_BURST_WINDOW]; /* the window: frame + 1 of a probe that may be under way, 0 none */
};
SHUNT_ASSERT_SIZE(struct burst_state, 1056);

/* --------------------------------------------------------------------------------------------- host */

enum host_limit {
	/* Of the host's maps, apart from the mux's. Version 1 knew neither members nor ranges. */
	LIMIT_HOST_ABI_VERSION = 2,
	LIMIT_BINDINGS = 1 << 16,
	/* Prefixes of ports that the bindings of ranges are made of: at most 30 each. */
	LIMIT_BINDING_PREFIXES = 1 << 17,
	/* Tunnel sources beyond those of struct host_config: twice what a plan may have, old and new ones are there together. */
	LIMIT_TUNNEL_SOURCES = 128,
	/* Flows remembered for their answers: 144 bytes each with the kernel's overhead, 36 MiB. */
	LIMIT_FLOWS = 1 << 18,
	/* Flows that go by a substitute client port. */
	LIMIT_SUBSTITUTES = 1 << 14,
	/* Client ports tried before a colliding flow is refused. */
	LIMIT_PORT_PROBES = 16,
	/* Datagrams in fragments under way, both directions, and for how long they are remembered. */
	LIMIT_DATAGRAMS = 1 << 16,
	LIMIT_DATAGRAM_SECONDS = 5,
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
	HOST_REASON_IN_FRAGMENT = 7,      /* an inner fragment whose first one was not seen, or a fragment of a tunnel packet */
	HOST_REASON_IN_NO_PORT = 8,       /* two VIPs share a DIP:port and no substitute client port was free */
	HOST_REASON_IN_STATE_FULL = 9,    /* flow state could not be stored */
	HOST_REASON_IN_ADJUST_FAILED = 10,/* the kernel refused to shrink or to rewrite the packet */
	HOST_REASON_OUT_REWRITE_FAILED = 11, /* the kernel refused to rewrite an answer */
	HOST_REASON_MSS_CLAMPED = 12,     /* counted beside the verdict of the same packet */
	HOST_REASON_CLIENT_PORT_MAPPED = 13, /* counted beside: a client port was substituted (design section 9.8) */
	HOST_REASON_IN_NO_ROUTE = 14,     /* no route to the DIP, or a VIP that its server does not own */
	HOST_REASON_OUT_FRAGMENT = 15,    /* first fragment of an answer that the others could not follow: no room to note it */
	HOST_REASON_IN_GUE_UNKNOWN = 16,  /* GUE control message, or a version, length, flags or fields that we do not know */
	HOST_REASON_IN_ICMP_DELIVERED = 17, /* an ICMP error about an answer, translated and delivered to the server */
	HOST_REASON_IN_ICMP_UNKNOWN = 18, /* an ICMP error that quotes no answer of a flow here */
	HOST_REASON_OUT_ICMP_RETURNED = 19, /* a server's ICMP error, translated back and sent to the client */
	HOST_REASON_FRAGMENT_FOLLOWED = 20, /* counted beside: a fragment without ports that found its first one */
	HOST_REASON_MAX,
};

/* What of the bindings there is, so that nobody looks for the rest. */
enum host_flag {
	HOST_RANGES = 1,
	HOST_ANY = 2,
	HOST_SOURCES = 4, /* tunnel sources beyond one prefix of each family: those of other Networks */
};

/* The one element of the map `host_configs`. Prefixes are a value and a mask; a family without a prefix has a value
 * that no address masked with it can have (value bits outside the mask). */
struct host_config {
	__u32 abi_version;
	__u32 flags; /* enum host_flag */
	__u32 source4_be;
	__u32 source4_mask_be;
	__u64 source6_be[2];
	__u64 source6_mask_be[2];
};
SHUNT_ASSERT_SIZE(struct host_config, 48);

/* Key of a tunnel source beyond those of struct host_config; IPv4 as ::ffff:a.b.c.d/96+length. */
struct tunnel_source {
	__u32 bits;
	__u8 addr[16];
};
SHUNT_ASSERT_SIZE(struct tunnel_source, 20);

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
	__u8 rsv;
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
	__u8 rsv[3];
	__u32 index;   /* of its counter */
	__u32 rsv1;
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

/* What the TCP connections that clients tried came to, of one binding that rewrites. */
struct handshakes {
	__u64 asked;    /* SYNs delivered */
	__u64 accepted; /* SYN-ACKs returned */
	__u64 refused;  /* RSTs that answer a SYN returned */
};
SHUNT_ASSERT_SIZE(struct handshakes, 24);

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

/* ---------------------------------------------------------------------------------------------- captures */

enum watch_limit {
	LIMIT_WATCH_BYTES = 2048,   /* of one frame in an event */
	LIMIT_WATCH_RING = 4 << 20, /* bytes of the ring buffer */
};

/* What became of one captured packet. `data` holds the frame as it came, then the frame as it was sent. */
struct watch_event {
	__u64 time;          /* CLOCK_MONOTONIC, nanoseconds */
	__u64 reasons;       /* bit n: enum mux_reason n was counted */
	__u32 verdict;       /* XDP action */
	__u32 ifindex;       /* it came in by */
	__u32 length;        /* of the frame as it came */
	__u32 captured;      /* its bytes in data */
	__u32 sent_length;   /* of the frame as it was sent; 0 when it was not */
	__u32 sent_captured; /* its bytes in data */
	__u8 data[2 * LIMIT_WATCH_BYTES];
};
SHUNT_ASSERT_SIZE(struct watch_event, 40 + 2 * LIMIT_WATCH_BYTES);
_Static_assert((int)LIMIT_REASONS <= 64, "a reason without a bit in watch_event");

#endif
