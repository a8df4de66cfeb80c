/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the slower ways of the walk know of a packet beside what it says itself. On the usual way there is none, and what
 * asks for it costs nothing. */
#ifndef SHUNT_MUX_ASIDE_H
#define SHUNT_MUX_ASIDE_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "lib/parse.h"
#include "lib/vlan.h"
#include "mux/tables.h"
#include "mux/verdict.h"

enum aside_how {
	ASIDE_FIRST = 1, /* a first fragment: those behind it shall follow */
	ASIDE_LATER = 2, /* a later fragment: no ICMP error about it over IPv4 (RFC 1122 section 3.2.2) */
	ASIDE_ERROR = 4, /* an ICMP error: no error is about it */
	ASIDE_KNOWN = 8, /* the member is known already: `first` and `word` */
	ASIDE_SNAT = 16, /* to a port that a server sends from: the slot is the VIP's own, and tunnels name no member */
};

/* A segment to be sent to a probe's server. */
struct turn {
	__u32 number; /* of the rule */
	__u32 seq_be;
	__u32 ack_be;
	__u32 len;    /* bytes of the request in it; 0: it is a RST */
};

enum nat_what {
	NAT_FROM_CLIENT = 1,
	NAT_FROM_SERVER = 2,
	NAT_ERROR_IN = 3,  /* an ICMP error from the client's side */
	NAT_ERROR_OUT = 4, /* from the server's */
};

/* What is to be done with a packet of path nat. */
struct nat_work {
	__u32 what; /* enum nat_what */
	__u32 slot; /* index of the endpoint's, of what comes from the client's side */
	struct nat_key key;  /* of the session */
	struct nat_key port; /* of its port */
	struct nat_key to;   /* what source and destination become */
	struct nat_session session; /* that is being made */
	struct nat_name name; /* of a session that begins */
	struct nat_name old;  /* and of one that may end for it */
	struct nat_key spare; /* whose port this is */
	__u32 seq;  /* of TCP, in host order: number of the segment's first octet, SYN included */
	__u32 last; /* and that behind its last one, FIN included */
	__u32 ack;
	__u32 rsv;
};

struct aside {
	__u64 tags; /* taken off the frame (lib/vlan.h): what goes back out of the same interface gets them again */
	__u64 how;  /* enum aside_how */
	struct packet packet;
	struct packet flow; /* of an ICMP error: the packet that what it quotes answers */
	struct fragment_key fragment;
	struct fragment first; /* with ASIDE_KNOWN: which member, and its word */
	__u64 word;
	struct turn turn;
	struct nat_work nat;
};

/* One for every CPU, which walks one packet at a time: on the stack it would not fit. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct aside);
} asides SEC(".maps");

/* aside_how is what is special about a packet. */
static __always_inline __u32 aside_how(const struct aside *aside)
{
	return aside ? aside->how : 0;
}

/* aside_checked says whether a packet may be from a VIP: an answer to a server of ours, or a later fragment, whose first one was
 * looked at. */
static __always_inline int aside_checked(const struct aside *aside)
{
	__u32 how = aside_how(aside);

	return how & ASIDE_SNAT || (how & ASIDE_LATER && how & ASIDE_KNOWN);
}

/* answer sends a frame that was turned round back the way it came, counted as `reason`. */
static __always_inline int answer(struct xdp_md *ctx, const struct aside *aside, enum mux_reason reason)
{
	if (aside && aside->tags && !vlan_push(ctx, aside->tags))
		return drop(MUX_REASON_NO_HEADROOM);
	note(reason);
	return bounce(ctx);
}

#endif
