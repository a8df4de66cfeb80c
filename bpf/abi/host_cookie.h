/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the host knows of the timestamps of connections whose packets carry a cookie (protocol section 1.3). */
#ifndef SHUNT_ABI_HOST_COOKIE_H
#define SHUNT_ABI_HOST_COOKIE_H

#include "abi/limit.h"

enum host_cookie_limit {
	/* VIPs with endpoints whose hosts stamp, and those of the plan before: 1 MiB. */
	LIMIT_HOST_COOKIE_KEYS = 1 << 14,
};

/* The clock of a connection, beside its struct flow_record: internal/cookie's EVC is the same, and says what the fields mean. v_echo and v_last change at any
 * time, v_last by compare and swap; the rest does while `lock` is odd, which who changes it makes it by compare and swap. */
struct evc {
	__u32 off;
	__u32 off_prev;
	__u32 v_sw;
	__u32 v_sw_prev;
	__u32 v_echo;
	__u32 v_last;
	__u32 word; /* cookie:16 | generation:8 | enum evc_flag:8, from the top bit down */
	__u32 lock; /* former cookie:16 | times it was taken, twice:16 */
};
SHUNT_ASSERT_SIZE(struct evc, 32);

/* The lowest bits of struct evc's word. The generation is that of the flow's tag: with another one the state is of a flow that had the place before. */
enum evc_flag {
	EVC_EMPTY = 0,
	EVC_OPENING = 1,
	EVC_LOST = 2,
	EVC_LIVE = 3,
	EVC_KIND = 3,         /* mask of the four above */
	EVC_MINTING = 4,
	EVC_UNSURE = 8,
	EVC_TWICE = 16,
	EVC_TWICE_PREV = 32,
	EVC_FLAGS = 0xff,
	EVC_GENERATION_SHIFT = 8,
	EVC_COOKIE_SHIFT = 16, /* also that of the former cookie in `lock` */
};

/* The keys of a VIP's cookies, by their key id. A key is written only while it is not live. */
struct host_cookie_keys {
	__u64 keys[2][2];
	__u8 vip[16];
	__u32 vni;
	__u32 use; /* atomic: enum host_cookie_use */
	__u64 rsv;
};
SHUNT_ASSERT_SIZE(struct host_cookie_keys, 64);

/* Which of the keys are there. */
enum host_cookie_use {
	HOST_COOKIE_LIVE0 = 1,
	HOST_COOKIE_LIVE1 = 2,
	HOST_COOKIE_SHUFFLED0 = 4, /* member ids under it are shuffled (lib/cookie.h) */
	HOST_COOKIE_SHUFFLED1 = 8,
};

/* What struct binding_flow says of cookies, from the top bit down: id of the key that stamps:1 | upper bits of the member id:3 | number of the VIP's keys + 1:16 |
 * lower bits of the member id:12. 0: its flows have none. */
enum binding_cookie {
	BINDING_COOKIE_MEMBER_BITS = 12, /* the lower ones */
	BINDING_COOKIE_KEYS_BITS = 16,
	BINDING_COOKIE_UPPER_SHIFT = 28,
	BINDING_COOKIE_UPPER_BITS = 3,
	BINDING_COOKIE_MINT_SHIFT = 31,
};

#endif
