/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The GUE header as muxes write it and hosts read it. */
#ifndef SHUNT_GUE_HEADER_H
#define SHUNT_GUE_HEADER_H

#include <linux/types.h>
#include <bpf/bpf_endian.h>

#include "abi.h"

enum gue {
	GUE_PORT = 6080,       /* UDP destination port */
	GUE_OVERHEAD = 24,     /* bytes of UDP, GUE and its private data */
	/* First octet: version 0, no control message, three words of private data. */
	GUE_VERSION_0 = 0x03,
	/* Member id of packets whose outer destination says it all. */
	GUE_NO_MEMBER = 0xffff,
};

/* GUE version 0 without optional fields, and 12 octets of private data (protocol section 6.1, and the member id).
 *
 *   0        8        16                31
 *   | 0 0  3 | inner  |  flags (0)      |
 *   |hop|flag|  gen   |     prev        |
 *   |          vni             |  zero  |
 *   |     member      |     zero        |
 */
struct gue_header {
	__u8 first;         /* GUE_VERSION_0 */
	__u8 protocol;      /* of the inner packet: IPPROTO_IPIP or IPPROTO_IPV6 */
	__be16 flags_be;    /* 0: no optional fields */
	__u8 hop;           /* upper four bits: hops so far; lower four: flags, 0 */
	__u8 generation;
	__be16 prev_be;     /* id of the member that had the slot before */
	__be32 vni_be;      /* vni:24 | zero:8 */
	__be16 member_be;
	__u16 zero;
};
SHUNT_ASSERT_SIZE(struct gue_header, 16);

#endif
