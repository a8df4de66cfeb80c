/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What cookies are read with in the mux (lib/cookie.h). */
#ifndef SHUNT_ABI_COOKIE_H
#define SHUNT_ABI_COOKIE_H

#include "abi/config.h"
#include "abi/limit.h"

/* Where a timestamp has its cookie. */
enum cookie_form {
	COOKIE_FORM_EVC = 0, /* between the time's bits (lib/cookie.h) */
	COOKIE_FORM_CO = 1,  /* on top of the shared clock (lib/short_cookie.h) */
	/* As EVC, but with fewer bits of cookie (lib/split.h), put there by the mux. The server gets its own timestamps back, or none. */
	COOKIE_FORM_SPLIT_R = 2,
	COOKIE_FORM_SPLIT_Z = 3,
};

/* What counts of a set of keys: bit k, keys[k] is there; bit k + COOKIE_SHUFFLED_SHIFT, member ids under it are shuffled (lib/cookie.h). */
enum cookie_live {
	COOKIE_SHUFFLED_SHIFT = 2,
};

/* The keys of cookies, one cache line, which all endpoints with these keys share. Immutable while the policy word of an endpoint names it, and until
 * nobody reads it any more: another key is another record. A key that does not count is zero. */
struct cookie_set {
	struct siphash_key keys[LIMIT_COOKIE_KEYS]; /* by the key id of cookies */
	__u64 live;                                 /* enum cookie_live */
	__u64 form;                                 /* enum cookie_form */
	__u64 mint;                                 /* of forms SPLIT: id of the key that cookies are made with */
	__u64 rsv;
};
SHUNT_ASSERT_SIZE(struct cookie_set, 64);

#endif
