/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* How the connection ids of an endpoint's QUIC servers are read (protocol section 3.2). */
#ifndef SHUNT_ABI_QUIC_H
#define SHUNT_ABI_QUIC_H

#include "abi/limit.h"

/* Bits of a word of `heads`: what a connection id is whose first three bits are the word's index. 0: none that names a member. */
enum quic_head {
	QUIC_KIND_SHIFT = 0,   /* 8 bits: enum quic_kind */
	QUIC_LENGTH_SHIFT = 8, /* 8 bits: octets that it must have at least */
	QUIC_FIELD_SHIFT = 16, /* 8 bits: of QUIC_CLEAR, how far its first eight octets, as a number, are shifted for the 12 bits of the id */
	QUIC_PLAIN_SHIFT = 16, /* 8 bits: of QUIC_FOUR_PASS, octets of server id and nonce */
};

enum quic_kind {
	QUIC_CLEAR = 1,     /* in clear */
	QUIC_SINGLE = 2,    /* one block of AES-128 */
	QUIC_FOUR_PASS = 3, /* four Feistel rounds of AES-128 */
};

/* Round keys of AES-128, made by the agent: with QUIC_SINGLE those of the equivalent inverse cipher (FIPS 197 section 5.3.5), with QUIC_FOUR_PASS those
 * of encryption. Words as they are loaded: the first octet is the lowest. */
struct aes_schedule {
	__u32 keys[44];
};
SHUNT_ASSERT_SIZE(struct aes_schedule, 176);

/* A configuration of servers. */
struct quic_config {
	struct aes_schedule schedule;
	__u64 rsv[2];
};
SHUNT_ASSERT_SIZE(struct quic_config, 192);

/* How the connection ids of one endpoint are read: immutable while the policy word of a slot names it. The first line says whether, and how, an id is
 * read; a configuration is three more. */
struct quic_set {
	__u64 heads[8];
	struct quic_config configs[7]; /* by the id's first three bits; 0b111 is no configuration's */
};
SHUNT_ASSERT_SIZE(struct quic_set, 64 + 7 * 192);

#endif
