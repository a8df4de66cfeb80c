/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The clock that carries cookies (protocol section 1.3). internal/cookie holds the same functions in Go, and the reasons; tests prove them equal, and the
 * theorems on the Go ones. n is the number of time bits of a stamp, from 8 to 16. A struct evc here is a copy that nobody else writes. */
#ifndef SHUNT_EVC_H
#define SHUNT_EVC_H

#include <linux/types.h>

#include "abi.h"

/* How long V = T + off goes on before v_sw is moved: differences stay below 1 << 31. */
#define EVC_EPOCH_MOST (1U << 30)

/* What evc_echo says besides a timestamp. */
enum evc_echoed {
	EVC_OURS = 1,    /* the timestamp is what the server is to read */
	EVC_FOREIGN = 0, /* the cookie is not that of the state */
};

/* evc_after tells whether a time is later than another. */
static __always_inline int evc_after(__u32 a, __u32 b)
{
	return (__s32)(a - b) > 0;
}

/* evc_later is the later of two times. */
static __always_inline __u32 evc_later(__u32 a, __u32 b)
{
	return evc_after(b, a) ? b : a;
}

/* evc_half is H: half a turn of the time in a stamp. */
static __always_inline __u32 evc_half(__u32 n)
{
	return 1U << (n - 1);
}

/* evc_side is the half of the clock that a time is in. */
static __always_inline __u32 evc_side(__u32 n, __u32 v)
{
	return v >> (n - 1) & 1;
}

/* evc_cookie is the cookie of a state. */
static __always_inline __u32 evc_cookie(const struct evc *e)
{
	return e->word >> EVC_COOKIE_SHIFT;
}

/* evc_kind is how far it has come: enum evc_flag. */
static __always_inline __u32 evc_kind(const struct evc *e)
{
	return e->word & EVC_KIND;
}

/* evc_word is the word of a state. */
static __always_inline __u32 evc_word(__u32 cookie, __u32 generation, __u32 flags)
{
	return cookie << EVC_COOKIE_SHIFT | generation << EVC_GENERATION_SHIFT | flags;
}

/* evc_flag sets a flag or clears it. */
static __always_inline void evc_flag(struct evc *e, __u32 flag, int on)
{
	e->word = on ? e->word | flag : e->word & ~flag;
}

/* evc_place is the stamp, in host order, of a time and a cookie: never 0. */
static __always_inline __u32 evc_place(__u32 n, __u32 v, __u32 cookie)
{
	__u32 w = evc_side(n, v) << 31 | (cookie << (n - 1) & 0x7fffffff) | (v & (evc_half(n) - 1));

	return w ? w : 1;
}

/* evc_cookie_of is the cookie in a stamp: more than 16 bits if it is none. */
static __always_inline __u32 evc_cookie_of(__u32 n, __u32 w)
{
	return (w & 0x7fffffff) >> (n - 1);
}

/* evc_part is the lowest n bits of the time that a stamp was made of. */
static __always_inline __u32 evc_part(__u32 n, __u32 w)
{
	return w == 1 ? 0 : w >> 31 << (n - 1) | (w & (evc_half(n) - 1));
}

/* evc_unwrap is the time with the lowest bits `part` that is `newest` or the last one before. */
static __always_inline __u32 evc_unwrap(__u32 n, __u32 part, __u32 newest)
{
	return newest - ((newest - part) & (2 * evc_half(n) - 1));
}

/* evc_reach is how far v_last may be ahead of v_echo. */
static __always_inline __u32 evc_reach(__u32 n, __u32 cookie)
{
	return evc_half(n) - 1 - !cookie;
}

/* evc_anchor makes v stand for t from now on. */
static __always_inline void evc_anchor(struct evc *e, __u32 t, __u32 v)
{
	__u32 off = v - t;
	int changed = off != e->off, again = v == e->v_last;

	e->off_prev = v == e->v_sw ? e->off_prev : e->off;
	e->off = off;
	if (v == e->v_sw) {
		if (changed)
			evc_flag(e, EVC_TWICE, 1);
		return;
	}
	e->v_sw_prev = e->v_sw;
	e->v_sw = v;
	evc_flag(e, EVC_TWICE_PREV, e->word & EVC_TWICE);
	evc_flag(e, EVC_TWICE, again && changed);
}

/* evc_most is the latest time that may be sent. */
static __always_inline __u32 evc_most(const struct evc *e, __u32 n, __u32 want)
{
	__u32 cookie = evc_cookie(e), most = e->v_echo + evc_reach(n, cookie && want), end = e->v_sw | (evc_half(n) - 1);

	return e->word & EVC_MINTING && evc_after(most, end) ? end : most;
}

/* evc_hold is the time of a segment whose own would be too late. */
static __always_inline __u32 evc_hold(struct evc *e, __u32 t, __u32 most)
{
	__u32 v = e->v_last + evc_after(most, e->v_last);

	if (v == e->v_last && v == e->v_sw)
		evc_flag(e, EVC_TWICE, 1);
	else
		evc_anchor(e, t, v);
	return v;
}

/* evc_remint gives the flow another cookie if the clock is where that may be, and returns the time of this segment. */
static __always_inline __u32 evc_remint(struct evc *e, __u32 n, __u32 t, __u32 v, __u32 most, __u32 want)
{
	__u32 next = (e->v_last | (evc_half(n) - 1)) + 1;

	if (want > evc_cookie(e)) {
		if (evc_after(e->v_last, v) || evc_after(v, most) || evc_side(n, v) != evc_side(n, e->v_last))
			return v;
	} else {
		if (evc_after(next, most))
			return v;
		if (evc_after(next, v) || evc_after(v, most))
			v = next;
	}
	evc_anchor(e, t, v);
	e->lock = evc_cookie(e) << EVC_COOKIE_SHIFT | (e->lock & 0xffff);
	e->word = want << EVC_COOKIE_SHIFT | (e->word & 0xffff) | EVC_MINTING;
	return v;
}

/* evc_settle begins the clock of a state that was lost. */
static __always_inline void evc_settle(struct evc *e, __u32 t)
{
	e->off = e->off_prev = e->v_last - t;
	e->v_sw = e->v_sw_prev = e->v_last;
	e->word = (e->word & ~(__u32)EVC_KIND) | EVC_LIVE | EVC_UNSURE | EVC_TWICE | EVC_TWICE_PREV;
}

/* evc_answer stamps a SYN-ACK that the server sent at t; again: it repeats the one before. */
static __always_inline __u32 evc_answer(struct evc *e, __u32 n, __u32 t, __u32 cookie, __u32 generation, int again)
{
	if (!again || evc_kind(e) == EVC_EMPTY)
		e->v_sw = t;
	e->off = e->off_prev = e->v_sw_prev = e->v_echo = 0;
	e->v_last = t;
	e->lock &= 0xffff;
	e->word = evc_word(cookie, generation, EVC_OPENING);
	return evc_place(n, t, cookie);
}

/* evc_stamp stamps any other segment that the server sent at t, of a state that is not empty. want is the cookie that the flow should have. */
static __always_inline __u32 evc_stamp(struct evc *e, __u32 n, __u32 t, __u32 want)
{
	__u32 v, most;

	if (evc_kind(e) == EVC_OPENING) {
		e->v_last = evc_later(e->v_last, t);
		return evc_place(n, t, evc_cookie(e));
	}
	if (evc_kind(e) == EVC_LOST)
		evc_settle(e, t);
	v = t + e->off;
	if (evc_after(e->v_sw, v)) {
		v = e->v_sw;
		evc_flag(e, EVC_TWICE, 1);
	} else if (v - e->v_sw >= EVC_EPOCH_MOST) {
		evc_anchor(e, t, v);
	}
	most = evc_most(e, n, want);
	if (want != evc_cookie(e) && !(e->word & (EVC_MINTING | EVC_UNSURE)) && evc_side(n, e->v_echo) == evc_side(n, e->v_last)) {
		v = evc_remint(e, n, t, v, most, want);
		most = evc_most(e, n, want);
	}
	if (evc_after(v, most))
		v = evc_hold(e, t, most);
	e->v_last = evc_later(e->v_last, v);
	return evc_place(n, v, evc_cookie(e));
}

/* evc_sent is the server's time of the segment that a time was sent with, 0 when there were several or it is not known. */
static __always_inline __u32 evc_sent(const struct evc *e, __u32 v)
{
	if (evc_after(v, e->v_sw))
		return v - e->off;
	if (v == e->v_sw)
		return e->word & EVC_TWICE ? 0 : v - e->off;
	if (evc_after(e->v_sw_prev, v) || (v == e->v_sw_prev && e->word & EVC_TWICE_PREV))
		return 0;
	return v - e->off_prev;
}

/* evc_rebuild makes a state of the echo w alone, whose cookie is the flow's. */
static __always_inline void evc_rebuild(struct evc *e, __u32 n, __u32 w, __u32 generation)
{
	__u32 cookie = evc_cookie_of(n, w);

	e->off = e->off_prev = e->v_sw = e->v_sw_prev = 0;
	e->v_echo = evc_part(n, w);
	e->v_last = e->v_echo + evc_reach(n, cookie);
	e->lock &= 0xffff;
	e->word = evc_word(cookie, generation, EVC_LOST);
}

/* evc_open takes the first echo. */
static __always_inline __u32 evc_open(struct evc *e, __u32 n, __u32 w)
{
	__u32 first = e->v_sw, last = e->v_last, part = evc_part(n, w), t = evc_unwrap(n, part, last), cookie = evc_cookie(e);

	if (last - first >= 2 * evc_half(n) && t != last) {
		t = first;
		if (evc_unwrap(n, part, first) != first) {
			evc_rebuild(e, n, w, e->word >> EVC_GENERATION_SHIFT & 0xff);
			return 0;
		}
	}
	if (w == 1 && t + 1 == first)
		t = first;
	if (evc_after(first, t))
		return 0;
	e->off = e->off_prev = 0;
	e->v_sw_prev = first;
	e->v_echo = t;
	if (last - t > evc_reach(n, cookie))
		e->v_last = t + evc_reach(n, cookie);
	e->word = evc_word(cookie, e->word >> EVC_GENERATION_SHIFT & 0xff, EVC_LIVE);
	return w == 1 ? 0 : t;
}

/* evc_relate takes an echo from which nothing was sent yet. */
static __always_inline void evc_relate(struct evc *e, __u32 n, __u32 w)
{
	e->v_echo = evc_later(e->v_echo, evc_unwrap(n, evc_part(n, w), e->v_echo + evc_half(n) - 1));
	e->v_last = e->v_echo + evc_reach(n, evc_cookie(e));
}

/* evc_heard takes an echo into a live state whose cookie, or the former one, it has. */
static __always_inline __u32 evc_heard(struct evc *e, __u32 n, __u32 w)
{
	__u32 v = evc_unwrap(n, evc_part(n, w), e->v_last), cookie = evc_cookie_of(n, w), old = e->v_echo - v;

	e->v_echo = evc_later(e->v_echo, v);
	if (cookie == evc_cookie(e)) {
		e->word &= ~(__u32)EVC_MINTING;
		if (!evc_after(e->v_sw, v))
			e->word &= ~(__u32)EVC_UNSURE;
	} else if (cookie > evc_cookie(e) && !evc_after(e->v_sw, v)) {
		e->word = cookie << EVC_COOKIE_SHIFT | (e->word & 0xffff & ~(__u32)EVC_MINTING);
	}
	if ((__s32)old >= (__s32)evc_half(n) || w == 1)
		return 0;
	return evc_sent(e, v);
}

/* evc_echo takes the stamp w that the client echoes, not 0: *t is what the server is to read, 0 for no echo. Returns enum evc_echoed. */
static __always_inline int evc_echo(struct evc *e, __u32 n, __u32 w, __u32 *t)
{
	__u32 cookie = evc_cookie_of(n, w), kind = evc_kind(e);

	*t = 0;
	if (kind == EVC_EMPTY)
		return EVC_FOREIGN;
	if (cookie != evc_cookie(e) && !(e->word & EVC_MINTING && cookie == e->lock >> EVC_COOKIE_SHIFT))
		return kind == EVC_LIVE && !(e->word & EVC_UNSURE);
	if (kind == EVC_OPENING)
		*t = evc_open(e, n, w);
	else if (kind == EVC_LOST)
		evc_relate(e, n, w);
	else
		*t = evc_heard(e, n, w);
	return EVC_OURS;
}

/* evc_steady says whether a state is live, has a cookie that is not 0, and none of the flags `but`: whether the two functions below may take it as it lies, with
 * its word read before. */
static __always_inline int evc_steady(__u32 word, __u32 generation, __u32 but)
{
	return (word & (0xff << EVC_GENERATION_SHIFT | EVC_KIND | but)) == (generation << EVC_GENERATION_SHIFT | EVC_LIVE) && word >> EVC_COOKIE_SHIFT;
}

/* evc_stamp_steady is evc_stamp where nothing but v_last changes, which becomes *v if that is later: 0 when more would. The state is steady and not minting, and
 * has the cookie that it should have. */
static __always_inline __u32 evc_stamp_steady(const struct evc *e, __u32 word, __u32 n, __u32 t, __u32 *v)
{
	*v = t + e->off;
	if (*v - e->v_sw >= EVC_EPOCH_MOST || evc_after(*v, *(const volatile __u32 *)&e->v_echo + evc_half(n) - 1))
		return 0;
	return evc_place(n, *v, word >> EVC_COOKIE_SHIFT);
}

/* evc_heard_steady is evc_heard where nothing but v_echo changes, which becomes *v if that is later. The state is steady, neither minting nor unsure, and has the
 * cookie of the echo w. */
static __always_inline __u32 evc_heard_steady(const struct evc *e, __u32 n, __u32 w, __u32 *v)
{
	*v = evc_unwrap(n, evc_part(n, w), *(const volatile __u32 *)&e->v_last);
	return (__s32)(*(const volatile __u32 *)&e->v_echo - *v) >= (__s32)evc_half(n) ? 0 : evc_sent(e, *v);
}

#endif
