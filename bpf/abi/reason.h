/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What became of packets in the mux. */
#ifndef SHUNT_ABI_REASON_H
#define SHUNT_ABI_REASON_H

#include "abi/limit.h"

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
	MUX_REASON_FIB_FALLBACK = 24,   /* counted beside: forwarded through the kernel's FIB, because the next hop record was empty */
	MUX_REASON_BAD_VERSION = 25,    /* the IP version is not what the Ethernet type says */
	MUX_REASON_PASS_OTHER_MAC = 26, /* sent to another Ethernet address (flooded, broadcast, multicast): to the kernel */
	MUX_REASON_BAD_SOURCE = 27,     /* from a VIP of ours, whose answers could loop, or from an address that no host has (RFC 6890) */
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
	MUX_REASON_SNAT_FORWARDED = 45, /* counted beside: went to the server that has the port of the VIP */
	MUX_REASON_SNAT_NOBODY = 46,    /* a VIP with SNAT: no endpoint takes the packet, and no server has the port */
	MUX_REASON_QUIC_UNROUTABLE = 47, /* counted beside: a connection id of no configuration here, or made without one: by flow table or ring */
	MUX_REASON_QUIC_INVALID = 48,   /* counted beside: a connection id that names no member: by flow table or ring */
	MUX_REASON_QUIC_MALFORMED = 49, /* counted beside: no QUIC header that can be read: by flow table or ring */
	MUX_REASON_COOKIE_ABSENT = 50,  /* counted beside: a segment without a timestamp that could carry a cookie: by flow table or ring */
	MUX_REASON_COOKIE_INVALID = 51, /* counted beside: a timestamp that is no cookie of a member under a live key: by flow table or ring */
	MUX_REASON_NAT_REPLIED = 52,    /* path nat: what a server sent, rewritten and sent to its client */
	MUX_REASON_NAT_FULL = 53,       /* path nat: no port was found for a new session, or no room */
	MUX_REASON_NAT_NO_ADDRESS = 54, /* path nat: the mux has no address of the family to send from */
	MUX_REASON_NAT_FRAGMENT = 55,   /* path nat: a fragment, which has no ports to rewrite or a checksum over what is not there */
	MUX_REASON_NAT_UNKNOWN = 56,    /* path nat: to an address of the mux, of no session; or a client's RST of none */
	MUX_REASON_NAT_EXPIRED = 57,    /* not a packet: a session of path nat ended, idle for too long */
	MUX_REASON_TRACK_FULL = 58,     /* counted beside: no record was free for a connection, or no place to find it by: forwarded as ever */
	MUX_REASON_TRACK_DISPLACED = 59, /* counted beside: a connection's record, or its place, was taken from one on probation */
	MUX_REASON_NAT_DISPLACED = 60,  /* not a packet: a session of path nat that was not trusted yet gave its place to a newcomer */
	MUX_REASON_FLOW_DISPLACED = 61, /* counted in addition: a flow of a VIP over its share of the flow table gave its entry to a new flow of another VIP */
	MUX_REASON_FRAGMENT_LIMITED = 62, /* counted in addition: a first fragment beyond the VIP's rate was forwarded; later fragments of its datagram do not follow it */
	MUX_REASON_MAX,
};

#endif
