/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What became of packets in the mux. */
#ifndef SHUNT_ABI_REASON_H
#define SHUNT_ABI_REASON_H

#include "abi/limit.h"
#include "abi/reason_class.h"

/* The reasons of the mux program. A packet counts exactly one whose class is not INFO, per CPU in the map `reasons`. */
#define MUX_REASONS(R) \
	/* encapsulated and sent; the sum over all backends */ \
	R(MUX_REASON_FORWARDED, 0, TX) \
	/* not IPv4 or IPv6: to the kernel */ \
	R(MUX_REASON_PASS_NOT_IP, 1, PASS) \
	/* no VIP of this mux: to the kernel */ \
	R(MUX_REASON_PASS_NOT_OURS, 2, PASS) \
	/* ICMP echo to a VIP, answered (RFC 792, RFC 4443) */ \
	R(MUX_REASON_ECHO_REPLIED, 3, TX) \
	/* a VIP of ours, but nothing listens on this protocol and port */ \
	R(MUX_REASON_NO_ENDPOINT, 4, DROP) \
	/* the endpoint has no alive member */ \
	R(MUX_REASON_NO_BACKEND, 5, DROP) \
	/* the way to the backend is not resolved yet */ \
	R(MUX_REASON_NO_NEXTHOP, 6, DROP) \
	/* the encapsulated packet would exceed the path MTU */ \
	R(MUX_REASON_TOO_BIG, 7, DROP) \
	/* the frame ends before a header that it announces */ \
	R(MUX_REASON_TRUNCATED, 8, DROP) \
	/* IHL below 5 or beyond the packet (RFC 791) */ \
	R(MUX_REASON_IP4_BAD_IHL, 9, DROP) \
	/* total length below the header or beyond the frame */ \
	R(MUX_REASON_IP4_BAD_LENGTH, 10, DROP) \
	/* IPv4 options to a VIP: refused */ \
	R(MUX_REASON_IP4_OPTIONS, 11, DROP) \
	/* payload length beyond the frame, or a jumbogram */ \
	R(MUX_REASON_IP6_BAD_LENGTH, 12, DROP) \
	/* too many or broken extension headers (RFC 8200 section 4) */ \
	R(MUX_REASON_IP6_EXTENSIONS, 13, DROP) \
	/* a fragment that nothing says where to send: its first one was not seen */ \
	R(MUX_REASON_FRAGMENT, 14, DROP) \
	/* data offset below 5 or beyond the segment (RFC 9293) */ \
	R(MUX_REASON_TCP_BAD_OFFSET, 15, DROP) \
	/* an option length that is 0, 1 or beyond the header */ \
	R(MUX_REASON_TCP_BAD_OPTION, 16, DROP) \
	/* UDP length below 8 or beyond the payload (RFC 768) */ \
	R(MUX_REASON_UDP_BAD_LENGTH, 17, DROP) \
	/* ICMP to a VIP that is not an echo request */ \
	R(MUX_REASON_ICMP_IGNORED, 18, DROP) \
	/* a protocol to a VIP that no endpoint can have */ \
	R(MUX_REASON_PROTOCOL, 19, DROP) \
	/* TTL or hop limit 0 or 1 on arrival: forwarding ends here (RFC 1812) */ \
	R(MUX_REASON_TTL_EXPIRED, 20, DROP) \
	/* the driver left no room for the outer header */ \
	R(MUX_REASON_NO_HEADROOM, 21, DROP) \
	/* a table refers to a record that is not there: a bug */ \
	R(MUX_REASON_INTERNAL, 22, DROP) \
	/* IPv4 header checksum, or checksum of an ICMP echo to a VIP, is wrong */ \
	R(MUX_REASON_BAD_CHECKSUM, 23, DROP) \
	/* forwarded through the kernel's FIB, because the next hop record was empty */ \
	R(MUX_REASON_FIB_FALLBACK, 24, INFO) \
	/* the IP version is not what the Ethernet type says */ \
	R(MUX_REASON_BAD_VERSION, 25, DROP) \
	/* sent to another Ethernet address (flooded, broadcast, multicast): to the kernel */ \
	R(MUX_REASON_PASS_OTHER_MAC, 26, PASS) \
	/* from a VIP of ours, whose answers could loop, or from an address that no host has \
	 * (RFC 6890) */ \
	R(MUX_REASON_BAD_SOURCE, 27, DROP) \
	/* forwarded by ring, but no room to remember the flow */ \
	R(MUX_REASON_FLOW_TABLE_FULL, 28, INFO) \
	/* a remembered member is gone or dead, another was chosen */ \
	R(MUX_REASON_FLOW_MOVED, 29, INFO) \
	/* beyond the VIP's packets per second */ \
	R(MUX_REASON_RATE_LIMITED, 30, DROP) \
	/* beyond the VIP's new flows per second */ \
	R(MUX_REASON_NEW_FLOW_LIMITED, 31, DROP) \
	/* the service does not take this source */ \
	R(MUX_REASON_SOURCE_DENIED, 32, DROP) \
	/* an ICMP error that quotes a packet of an endpoint of ours: for its backend */ \
	R(MUX_REASON_ICMP_ERROR_FORWARDED, 33, INFO) \
	/* an ICMP error that quotes no packet of an endpoint of ours */ \
	R(MUX_REASON_ICMP_ERROR_UNKNOWN, 34, DROP) \
	/* beyond the VIP's echo requests per second */ \
	R(MUX_REASON_PING_LIMITED, 35, DROP) \
	/* too big for the tunnel: answered with packet too big from the VIP */ \
	R(MUX_REASON_PTB_SENT, 36, TX) \
	/* too big for the tunnel, and too many such answers already */ \
	R(MUX_REASON_PTB_LIMITED, 37, DROP) \
	/* a fragment without ports that found its first one */ \
	R(MUX_REASON_FRAGMENT_FOLLOWED, 38, INFO) \
	/* a server took a probe's connection: acknowledged, with the request */ \
	R(MUX_REASON_PROBE_ASKED, 39, CONSUMED) \
	/* a server's answer to a probe: noted, and the connection reset */ \
	R(MUX_REASON_PROBE_ENDED, 40, CONSUMED) \
	/* a server reset a probe's connection, or refused it: noted */ \
	R(MUX_REASON_PROBE_RESET, 41, CONSUMED) \
	/* an ICMP error says that a probe's server cannot be reached: noted */ \
	R(MUX_REASON_PROBE_UNREACHABLE, 42, CONSUMED) \
	/* a segment of a probe's connection that says nothing */ \
	R(MUX_REASON_PROBE_IGNORED, 43, CONSUMED) \
	/* the driver left no room for a probe's request: the connection was reset */ \
	R(MUX_REASON_PROBE_NO_ROOM, 44, CONSUMED) \
	/* went to the server that has the port of the VIP */ \
	R(MUX_REASON_SNAT_FORWARDED, 45, INFO) \
	/* a VIP with SNAT: no endpoint takes the packet, and no server has the port */ \
	R(MUX_REASON_SNAT_NOBODY, 46, DROP) \
	/* a connection id of no configuration here, or made without one: by flow table or ring \
	 * */ \
	R(MUX_REASON_QUIC_UNROUTABLE, 47, INFO) \
	/* a connection id that names no member: by flow table or ring */ \
	R(MUX_REASON_QUIC_INVALID, 48, INFO) \
	/* no QUIC header that can be read: by flow table or ring */ \
	R(MUX_REASON_QUIC_MALFORMED, 49, INFO) \
	/* a segment without a timestamp that could carry a cookie: by flow table or ring */ \
	R(MUX_REASON_COOKIE_ABSENT, 50, INFO) \
	/* a timestamp that is no cookie of a member under a live key: by flow table or ring */ \
	R(MUX_REASON_COOKIE_INVALID, 51, INFO) \
	/* path nat: what a server sent, rewritten and sent to its client */ \
	R(MUX_REASON_NAT_REPLIED, 52, TX) \
	/* path nat: no port was found for a new session, or no room */ \
	R(MUX_REASON_NAT_FULL, 53, DROP) \
	/* path nat: the mux has no address of the family to send from */ \
	R(MUX_REASON_NAT_NO_ADDRESS, 54, DROP) \
	/* path nat: a fragment, which has no ports to rewrite, or a checksum that covers other \
	 * fragments */ \
	R(MUX_REASON_NAT_FRAGMENT, 55, DROP) \
	/* path nat: to an address of the mux, of no session; or a client's RST of none */ \
	R(MUX_REASON_NAT_UNKNOWN, 56, DROP) \
	/* not a packet: a session of path nat ended, idle for too long */ \
	R(MUX_REASON_NAT_EXPIRED, 57, INFO) \
	/* no record was free for a connection, or no place to find it by: forwarded as ever */ \
	R(MUX_REASON_TRACK_FULL, 58, INFO) \
	/* a connection's record, or its place, was taken from one on probation */ \
	R(MUX_REASON_TRACK_DISPLACED, 59, INFO) \
	/* not a packet: a session of path nat that was not trusted yet gave its place to a \
	 * newcomer */ \
	R(MUX_REASON_NAT_DISPLACED, 60, INFO) \
	/* a flow of a VIP over its share of the flow table gave its entry to a new flow of \
	 * another VIP */ \
	R(MUX_REASON_FLOW_DISPLACED, 61, INFO) \
	/* a first fragment beyond the VIP's rate was forwarded; later fragments of its datagram \
	 * do not follow it */ \
	R(MUX_REASON_FRAGMENT_LIMITED, 62, INFO)

enum mux_reason {
	MUX_REASONS(REASON_VALUE)
	MUX_REASON_MAX,
};

/* The class of each. */
enum mux_reason_class {
	MUX_REASONS(REASON_CLASS_VALUE)
};

#endif
