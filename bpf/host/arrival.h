/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of host.bpf.c: the packet that came through a tunnel, and what is to be written into its options. */

/* What is to be written into the options of a segment. */
struct stamp {
	struct timestamp ts;  /* as it came */
	__u32 at;             /* of a timestamp, from the beginning of the TCP header; 0: nothing is */
	__be32 value;
	__u32 sum;            /* the difference that all of it makes to the checksum */
	__u32 mptcp;          /* of a byte; 0: none */
	__u8 flags;           /* that byte */
	__u8 rsv[7];
};

/* A packet that came through a tunnel. */
struct arrival {
	struct ip_view outer;      /* payload: of the inner packet */
	struct ip_view inner;
	struct transport_view t;   /* of the inner packet */
	struct quote q;            /* in it, if it is an ICMP error */
	enum host_tunnel kind;
	__u32 vni;
	__u16 member;              /* GUE_NO_MEMBER with IPIP */
	__u8 by;                   /* 1: from a switch, until a member is chosen */
	__u8 spread;               /* 1: this host chose the member */
	__u8 router[16];
	/* Of what came from a switch. */
	__u8 host[16];             /* outer destination */
	__be16 sought_be;          /* port and protocol of the endpoint */
	__u8 sought;
	__u8 rsv[5];
	/* Not cleared before: of a packet whose flow was looked for. */
	struct flow_name name;
	struct flow_record want;
	struct flow_found flow;
	struct flow_spare spare;
	struct stamp stamp; /* of a segment of a flow with a cookie */
	struct evc clock;   /* of that flow before it, and after: too large for the stack */
	struct evc after;
};
