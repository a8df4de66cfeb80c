/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* GUE version 0 over UDP (gue_header.h), as a mux writes it. */
#ifndef SHUNT_GUE_H
#define SHUNT_GUE_H

#include <linux/types.h>
#include <bpf/bpf_endian.h>

#include "gue_header.h"

/* Source ports vary with the flow over a quarter of all. */
enum gue_source {
	GUE_SOURCE_PORT = 0xc000,
	GUE_SOURCE_MASK = 0x3fff,
};

/* gue_write writes the GUE_OVERHEAD bytes in front of an inner packet of `len` bytes: its protocol (4 or 41), the member
 * that it is for, bits of the flow's hash. The UDP checksum is 0: the inner packet has its own, and RFC 6935 lets tunnels
 * do without over IPv6 too. There was no member before, and the VNI is 0. */
static __always_inline void gue_write(void *udp, __u32 len, __u32 protocol, __u16 member, __u32 hash)
{
	__u32 *w = udp;

	w[0] = bpf_htonl((GUE_SOURCE_PORT | (hash & GUE_SOURCE_MASK)) << 16 | GUE_PORT);
	w[1] = bpf_htons(GUE_OVERHEAD + len);
	w[2] = GUE_VERSION_0 | protocol << 8;
	w[3] = (__u32)bpf_htons(GUE_NO_MEMBER) << 16;
	w[4] = 0;
	w[5] = bpf_htons(member);
}

#endif
