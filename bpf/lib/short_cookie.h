/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Cookies of 12 bits: key id:1 | P:11, made as longer ones are (cookie.h), modulo a prime of 11 bits (protocol section 1.4: where 20 bits of a timestamp are
 * time). internal/cookie holds the same functions in Go. */
#ifndef SHUNT_SHORT_COOKIE_H
#define SHUNT_SHORT_COOKIE_H

#include "cookie.h"

enum short_cookie_bit {
	SHORT_COOKIE_KID_SHIFT = 11,
	SHORT_COOKIE_BITS = 12,
	SHORT_COOKIE_MAX_ID = 2038, /* SHORT_COOKIE_PRIME - 1 */
};

/* The largest prime below 1 << SHORT_COOKIE_KID_SHIFT. */
#define SHORT_COOKIE_PRIME 2039

/* short_cookie_encode is the cookie of a member id, at most SHORT_COOKIE_MAX_ID, under key `kid`, whose hash of the flow is `prf` (cookie_prf4, cookie_prf6); `secret` as for
 * cookie_encode. */
static __always_inline __u32 short_cookie_encode(__u64 prf, __u32 kid, __u32 id, __u64 secret)
{
	__u32 y = cookie_rest(cookie_shuffled(secret, id, SHORT_COOKIE_KID_SHIFT, SHORT_COOKIE_PRIME), SHORT_COOKIE_PRIME);

	return kid << SHORT_COOKIE_KID_SHIFT | cookie_write(prf, y, SHORT_COOKIE_KID_SHIFT, SHORT_COOKIE_PRIME);
}

/* short_cookie_decode is the member id that a cookie names, whatever its key id; COOKIE_NONE when it names none. */
static __always_inline __u32 short_cookie_decode(__u64 prf, __u32 cookie, __u64 secret)
{
	__u32 x = cookie & ((1U << SHORT_COOKIE_KID_SHIFT) - 1), y = cookie_read(prf, x, SHORT_COOKIE_KID_SHIFT, SHORT_COOKIE_PRIME);

	return x < SHORT_COOKIE_PRIME ? cookie_ordered(secret, y, SHORT_COOKIE_KID_SHIFT, SHORT_COOKIE_PRIME) : COOKIE_NONE;
}

/* short_cookie_kid is the key id of a cookie. */
static __always_inline __u32 short_cookie_kid(__u32 cookie)
{
	return cookie >> SHORT_COOKIE_KID_SHIFT & 1;
}

/* co_place is the timestamp of form CO that says `clock`, in milliseconds, and carries a cookie. */
static __always_inline __u32 co_place(__u32 clock, __u32 cookie)
{
	return clock + (cookie << CO_TIME_BITS);
}

/* co_cookie is the cookie in a timestamp of form CO that was made at most 2^CO_TIME_BITS - CO_GUARD milliseconds ago, by a clock that is at most CO_GUARD
 * ahead of `clock`. */
static __always_inline __u32 co_cookie(__u32 stamp, __u32 clock)
{
	return (stamp - clock - CO_GUARD + (1U << CO_TIME_BITS) - 1) >> CO_TIME_BITS;
}

/* co_clock_of is the clock in such a timestamp. */
static __always_inline __u32 co_clock_of(__u32 stamp, __u32 clock)
{
	return stamp - (co_cookie(stamp, clock) << CO_TIME_BITS);
}

#endif
