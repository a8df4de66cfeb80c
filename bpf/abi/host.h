/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The host's configuration, and what became of packets there. */
#ifndef SHUNT_ABI_HOST_H
#define SHUNT_ABI_HOST_H

#include "abi/limit.h"
#include "abi/reason_class.h"

enum host_limit {
	/* Of the host's maps, apart from the mux's. Version 1 knew neither members nor ranges, version 2 had flows in maps of the
	 * kernel, version 3 neither programs on the devices of servers nor counts of servers and connections. */
	LIMIT_HOST_ABI_VERSION = 4,
	LIMIT_BINDINGS = 1 << 16,
	/* Prefixes of ports that the bindings of ranges are made of: at most 30 each. */
	LIMIT_BINDING_PREFIXES = 1 << 17,
	/* Tunnel sources beyond those of struct host_config: twice what a plan may have, old and new ones are there together. */
	LIMIT_TUNNEL_SOURCES = 128,
	/* Prefixes of the plan's Networks, and senders behind devices: twice what there may be, old and new ones are there together. */
	LIMIT_NETWORKS = 1 << 16,
	LIMIT_SENDERS = 1 << 19,
	/* Flows that the table may have room for: 104 bytes each. What it is made with is a power of two between them. */
	LIMIT_HOST_FLOWS_MIN = 1 << 13,
	LIMIT_HOST_FLOWS = 1 << 23,
	/* Addresses of DIPs and VIPs that flows name, those of bindings that left included: 4 MiB. */
	LIMIT_FLOW_ADDRS = 1 << 18,
	/* Notes about flows: 384 KiB. */
	LIMIT_FLOW_NOTES = 1 << 14,
	/* Times that a packet tries to begin a flow that another CPU begins too. */
	LIMIT_FLOW_CLAIMS = 4,
	/* Client ports tried before a colliding flow is refused. */
	LIMIT_PORT_PROBES = 16,
	/* Datagrams in fragments under way, both directions, and for how long they are remembered. */
	LIMIT_DATAGRAMS = 1 << 16,
	LIMIT_DATAGRAM_SECONDS = 5,
};

/* The reasons of the host programs. A packet counts exactly one whose class is not INFO each time that a program
 * handles it, per CPU in the map `host_reasons`: a packet that waited for a port, or that the program which makes handshakes
 * handles after it was delivered, counts again. */
#define HOST_REASONS(R) \
	/* neither a tunnel packet for a DIP here nor an answer of one */ \
	R(HOST_REASON_PASS_NOT_OURS, 0, PASS) \
	/* decapsulated, translated, delivered */ \
	R(HOST_REASON_IN_DELIVERED, 1, TX) \
	/* decapsulated and delivered as it was (the server owns the VIP) */ \
	R(HOST_REASON_IN_UNTOUCHED, 2, TX) \
	/* an answer, translated back and sent to the client */ \
	R(HOST_REASON_OUT_RETURNED, 3, TX) \
	/* tunnel packet whose outer source is no tunnel source of the plan, or is another \
	 * host's that never sends such a packet on; or whose inner source is a tunnel source or an \
	 * address that no host has */ \
	R(HOST_REASON_IN_BAD_SOURCE, 4, DROP) \
	/* tunnel packet for VIP, port and DIP that the plan does not have here */ \
	R(HOST_REASON_IN_NO_BINDING, 5, DROP) \
	/* truncated or lying inner or outer header */ \
	R(HOST_REASON_IN_MALFORMED, 6, DROP) \
	/* an inner fragment whose first one was not seen, or a fragment of a tunnel packet */ \
	R(HOST_REASON_IN_FRAGMENT, 7, DROP) \
	/* two VIPs share a DIP:port and no substitute client port was free; or a protocol \
	 * without ports from a client on the server's own machine */ \
	R(HOST_REASON_IN_NO_PORT, 8, DROP) \
	/* flow state could not be stored */ \
	R(HOST_REASON_IN_STATE_FULL, 9, DROP) \
	/* the kernel refused to shrink or to rewrite the packet */ \
	R(HOST_REASON_IN_ADJUST_FAILED, 10, DROP) \
	/* the kernel refused to rewrite an answer */ \
	R(HOST_REASON_OUT_REWRITE_FAILED, 11, DROP) \
	/* the MSS option of a SYN or SYN-ACK was lowered to fit the tunnel */ \
	R(HOST_REASON_MSS_CLAMPED, 12, INFO) \
	/* a client port was substituted, because two VIPs share the DIP:port */ \
	R(HOST_REASON_CLIENT_PORT_MAPPED, 13, INFO) \
	/* no route to the DIP, or a VIP that its server does not own */ \
	R(HOST_REASON_IN_NO_ROUTE, 14, DROP) \
	/* first fragment of an answer that the others could not follow: no room to note it */ \
	R(HOST_REASON_OUT_FRAGMENT, 15, DROP) \
	/* GUE control message, or a version, length, flags or fields that we do not know */ \
	R(HOST_REASON_IN_GUE_UNKNOWN, 16, DROP) \
	/* an ICMP error about an answer, translated and delivered to the server */ \
	R(HOST_REASON_IN_ICMP_DELIVERED, 17, TX) \
	/* an ICMP error that quotes no answer of a flow here */ \
	R(HOST_REASON_IN_ICMP_UNKNOWN, 18, DROP) \
	/* a server's ICMP error, translated back and sent to the client */ \
	R(HOST_REASON_OUT_ICMP_RETURNED, 19, TX) \
	/* a fragment without ports that found its first one */ \
	R(HOST_REASON_FRAGMENT_FOLLOWED, 20, INFO) \
	/* a server took a probe's connection: acknowledged, with the request */ \
	R(HOST_REASON_PROBE_ASKED, 21, CONSUMED) \
	/* a server's answer to a probe: noted, and the connection reset */ \
	R(HOST_REASON_PROBE_ENDED, 22, CONSUMED) \
	/* a server reset a probe's connection, or refused it: noted */ \
	R(HOST_REASON_PROBE_RESET, 23, CONSUMED) \
	/* an ICMP error says that a probe's server cannot be reached: noted */ \
	R(HOST_REASON_PROBE_UNREACHABLE, 24, CONSUMED) \
	/* a segment of a probe's connection that says nothing */ \
	R(HOST_REASON_PROBE_IGNORED, 25, CONSUMED) \
	/* the kernel had no room for a probe's request: the connection was reset */ \
	R(HOST_REASON_PROBE_NO_ROOM, 26, CONSUMED) \
	/* of a flow that is not known here: sent on to the host that had it before a change */ \
	R(HOST_REASON_REPAIRED_AWAY, 27, TX) \
	/* of such a flow, given to another member of this host */ \
	R(HOST_REASON_REPAIRED_HERE, 28, INFO) \
	/* sent on by another host, and taken whatever it is */ \
	R(HOST_REASON_REPAIR_ARRIVED, 29, INFO) \
	/* of a flow that is not known here, and no host had it before */ \
	R(HOST_REASON_REPAIR_NOBODY, 30, INFO) \
	/* the kernel refused to readdress a packet, or it was sent on too often */ \
	R(HOST_REASON_REPAIR_FAILED, 31, DROP) \
	/* an ICMP error that quotes what its flow has not sent, or what its client has */ \
	R(HOST_REASON_IN_ICMP_WINDOW, 32, DROP) \
	/* a new flow took the place of an untrusted or closing one */ \
	R(HOST_REASON_FLOW_EVICTED, 33, INFO) \
	/* other CPUs began the same flow; with in_state_full: until it gave up */ \
	R(HOST_REASON_FLOW_CONTENDED, 34, INFO) \
	/* a server sent a frame whose IP header is cut or lies, or that has too many VLAN tags \
	 * */ \
	R(HOST_REASON_SENT_MALFORMED, 35, DROP) \
	/* from or to a client on the server's own machine, which its server knows by the VIP */ \
	R(HOST_REASON_CLIENT_HERE, 36, INFO) \
	/* a server sent from an address that the machine does not reach by its device */ \
	R(HOST_REASON_SENT_BAD_SOURCE, 37, DROP) \
	/* a server sent from a VIP what belongs to no endpoint that it owns */ \
	R(HOST_REASON_SENT_VIP_SOURCE, 38, DROP) \
	/* a server sent a tunnel packet to the underlay */ \
	R(HOST_REASON_SENT_TUNNEL, 39, DROP) \
	/* a packet of a connection that a server opened, sent from a VIP and a port leased to \
	 * the server */ \
	R(HOST_REASON_OUT_SNAT, 40, TX) \
	/* what came back for such a connection, decapsulated, translated, delivered */ \
	R(HOST_REASON_IN_SNAT, 41, TX) \
	/* of such a connection, without a free port: given to the agent, which sends it again \
	 * when there is one */ \
	R(HOST_REASON_OUT_SNAT_WAITS, 42, CONSUMED) \
	/* of such a connection: no port is free, and too many packets of the server wait \
	 * already */ \
	R(HOST_REASON_OUT_SNAT_NO_PORT, 43, DROP) \
	/* of such a connection: the flow table has no room */ \
	R(HOST_REASON_OUT_SNAT_FULL, 44, DROP) \
	/* to a VIP that servers here send from, and of no connection of theirs */ \
	R(HOST_REASON_IN_SNAT_UNKNOWN, 45, DROP) \
	/* from a switch; this host chose the member */ \
	R(HOST_REASON_SPREAD, 46, INFO) \
	/* with in_no_binding: from a switch, of a new flow, and no member here takes any */ \
	R(HOST_REASON_SPREAD_NOBODY, 47, INFO) \
	/* a client echoed the stamp of its server's SYN-ACK */ \
	R(HOST_REASON_COOKIE_BEGUN, 48, INFO) \
	/* the clock of a flow that was not known here, made of a client's echo */ \
	R(HOST_REASON_COOKIE_REBUILT, 49, INFO) \
	/* a flow got the cookie of another key */ \
	R(HOST_REASON_COOKIE_REMINTED, 50, INFO) \
	/* a client's echo without the cookie of its flow's member */ \
	R(HOST_REASON_COOKIE_FOREIGN, 51, INFO) \
	/* another CPU changed the flow's clock at the same time */ \
	R(HOST_REASON_COOKIE_CONTENDED, 52, INFO) \
	/* with in_state_full or out_snat_full: the VIP's trusted flows are more than its share \
	 * of the flow table */ \
	R(HOST_REASON_FLOW_OVER_SHARE, 53, INFO)

enum host_reason {
	HOST_REASONS(REASON_VALUE)
	HOST_REASON_MAX,
};

/* The class of each. */
enum host_reason_class {
	HOST_REASONS(REASON_CLASS_VALUE)
};

/* What of the bindings there is, so that nobody looks for the rest, and what is asked of senders. */
enum host_flag {
	HOST_RANGES = 1,
	HOST_ANY = 2,
	HOST_SOURCES = 4, /* tunnel sources beyond one prefix of each family: those of other Networks */
	HOST_GUARD = 8,   /* what servers send is held against the plan's Networks */
	HOST_STRICT = 16, /* and against the routes, whatever its source */
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

/* Who tunnels from a source: values of the map `tunnel_sources`. */
enum host_source {
	HOST_SOURCE_MUX = 1,
	HOST_SOURCE_SWITCH = 2,
};

/* Key of a tunnel source beyond those of struct host_config; IPv4 as ::ffff:a.b.c.d/96+length. */
struct tunnel_source {
	__u32 bits;
	__u8 addr[16];
};
SHUNT_ASSERT_SIZE(struct tunnel_source, 20);

/* Key of a prefix of the plan's Networks; IPv4 as ::ffff:a.b.c.d/96+length. The longest one decides. */
struct network_prefix {
	__u32 bits;
	__u8 addr[16];
};
SHUNT_ASSERT_SIZE(struct network_prefix, 20);

/* What a prefix of the Networks holds. */
enum network_kind {
	NETWORK_UNDERLAY = 1, /* nodes, hosts, DIPs */
	NETWORK_VIP = 2,
	NETWORK_SOURCE = 3,   /* outer sources of tunnels */
};

/* Key of an address that servers behind a device may send from: with protocol and port 0 of the address as such, else of an endpoint
 * whose VIP it is: port 0 stands for all ports of ranges together, protocol 255 for any. */
struct sender_key {
	__u8 addr[16];
	__u32 ifindex;
	__u16 port_be;
	__u8 protocol;
	__u8 rsv;
};
SHUNT_ASSERT_SIZE(struct sender_key, 24);

/* What the sender may send. */
enum sender_use {
	SENDER_ALL = 1,       /* anything: a DIP */
	SENDER_ENDPOINTS = 2, /* what belongs to endpoints with a key of their own, fragments and ICMP: a VIP that it owns */
};

#endif
