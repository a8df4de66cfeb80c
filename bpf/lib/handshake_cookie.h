/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What a host that keeps nothing of a SYN has to remember of it (RFC 4987 section 3.6): in the sequence number that it answers with the class of the maximum
 * segment size, in the lowest bits of its timestamp the other options. The sequence number is a hash of all of it under the host's own key. */
#ifndef SHUNT_HANDSHAKE_COOKIE_H
#define SHUNT_HANDSHAKE_COOKIE_H

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <linux/types.h>

#include "abi.h"
#include "hash.h"
#include "options.h"

/* Kinds of options that options.h does not name (RFC 7323 section 2.2, RFC 2018). */
enum handshake_option {
	HANDSHAKE_WSCALE = 3,
	HANDSHAKE_SACK = 4,
};

/* What a SYN offers. */
struct offer {
	__u32 tsval;  /* host order; 0 without timestamps as well */
	__u16 mss;    /* host order, 0: none */
	__u8 wscale;  /* OFFER_NO_WSCALE: none */
	__u8 sack;
	__u8 stamped; /* timestamps are there */
	__u8 broken;  /* an option lies about its length */
	__u8 rsv[2];
};

enum offer_limit {
	OFFER_WSCALE_MAX = 14,
	OFFER_NO_WSCALE = 15,
};

/* Where the walk through a SYN's options stands. */
struct offer_walk {
	const struct tcp_options *options;
	struct offer *offer;
	__u32 at;
	__u32 rsv;
};

/* offer_byte is a byte of the options, 0 beyond. */
static __always_inline __u32 offer_byte(const struct tcp_options *o, __u32 at)
{
	return at < LIMIT_TCP_OPTIONS ? o->bytes[at] : 0;
}

/* offer_step looks at one option (bpf_loop); 1 ends the walk. Options of a wrong length are as if they were not there. */
static long offer_step(__u64 n, void *context)
{
	struct offer_walk *w = context;
	const struct tcp_options *o = w->options;
	__u32 i = w->at, kind, len;

	(void)n;
	if (i >= o->len || i >= LIMIT_TCP_OPTIONS)
		return 1;
	kind = o->bytes[i];
	if (kind == TCP_OPTION_END)
		return 1;
	w->at = i + 1;
	if (kind == TCP_OPTION_NOP)
		return 0;
	len = offer_byte(o, i + 1);
	if (len < 2 || i + len > o->len) {
		w->offer->broken = 1;
		return 1;
	}
	w->at = i + len;
	if (kind == TCP_OPTION_MSS && len == 4)
		w->offer->mss = offer_byte(o, i + 2) << 8 | offer_byte(o, i + 3);
	if (kind == HANDSHAKE_WSCALE && len == 3) {
		w->offer->wscale = offer_byte(o, i + 2);
		if (w->offer->wscale > OFFER_WSCALE_MAX)
			w->offer->wscale = OFFER_WSCALE_MAX;
	}
	if (kind == HANDSHAKE_SACK && len == 2)
		w->offer->sack = 1;
	if (kind == TCP_OPTION_TIMESTAMPS && len == OPTIONS_TIMESTAMPS_LEN) {
		w->offer->tsval = options_word(o, i + 2);
		w->offer->stamped = 1;
	}
	return 0;
}

/* offer_read reads the options of a SYN. */
static __always_inline void offer_read(const struct tcp_options *o, struct offer *offer)
{
	struct offer_walk w = { .options = o, .offer = offer };

	__builtin_memset(offer, 0, sizeof(*offer));
	offer->wscale = OFFER_NO_WSCALE;
	bpf_loop(LIMIT_TCP_OPTIONS, offer_step, &w, 0);
}

/* offer_bits are the CO_OFFER_BITS of an offer: wscale:4 | sack:1 | zero:1, from bit 0 up. */
static __always_inline __u32 offer_bits(const struct offer *o)
{
	return (o->wscale & 15) | (__u32)!!o->sack << 4;
}

/* offer_class is the class of a maximum segment size: the largest one that is not above it. Below the first, which is the least of its family, there is
 * none: CO_MSS_CLASSES. */
static __always_inline __u32 offer_class(int is6, __u32 mss)
{
	const __u16 four[CO_MSS_CLASSES] = { 536, 1220, 1300, 1360, 1400, 1420, 1440, 1460 };
	const __u16 six[CO_MSS_CLASSES] = { 1220, 1260, 1300, 1340, 1360, 1380, 1400, 1440 };
	__u32 class = CO_MSS_CLASSES;

#pragma unroll
	for (__u32 i = 0; i < CO_MSS_CLASSES; i++)
		if (mss >= (is6 ? six[i] : four[i]))
			class = i;
	return class;
}

/* offer_mss is the maximum segment size of a class. */
static __always_inline __u32 offer_mss(int is6, __u32 class)
{
	const __u16 four[CO_MSS_CLASSES] = { 536, 1220, 1300, 1360, 1400, 1420, 1440, 1460 };
	const __u16 six[CO_MSS_CLASSES] = { 1220, 1260, 1300, 1340, 1360, 1380, 1400, 1440 };
	__u32 mss = 0;

#pragma unroll
	for (__u32 i = 0; i < CO_MSS_CLASSES; i++)
		if (class == i)
			mss = is6 ? six[i] : four[i];
	return mss;
}

/* What a sequence number is made of. Addresses as their two halves as stored. */
struct handshake {
	__u64 src_hi;
	__u64 src_lo;
	__u64 dst_hi;
	__u64 dst_lo;
	__u16 sport; /* host order */
	__u16 dport;
	__u32 seq;   /* of the SYN */
	__u32 age;   /* of the clock: units of 65.536 s */
	__u32 class; /* of the maximum segment size */
	__u32 bits;  /* offer_bits */
	__u32 rsv;
};

/* handshake_seq is the sequence number that answers a SYN: hash:27 | age:2 | class:3. */
static __always_inline __u32 handshake_seq(const struct siphash_key *key, const struct handshake *h)
{
	__u64 words[7] = {
		h->src_hi, h->src_lo, h->dst_hi, h->dst_lo, (__u64)h->sport << 48 | (__u64)h->dport << 32 | h->seq,
		(__u64)h->age << 32 | h->class << 8 | h->bits, SIPHASH_LENGTH(6),
	};

	return (__u32)(siphash13(key, words, 7) >> 32) << 5 | (h->age & 3) << 3 | (h->class & 7);
}

/* handshake_known says whether a sequence number is what answered a SYN at `age` or one unit before; h->class and h->age are set from it. */
static __always_inline int handshake_known(const struct siphash_key *key, struct handshake *h, __u32 seq, __u32 age)
{
	h->class = seq & 7;
	h->age = (seq >> 3 & 3) == (age & 3) ? age : age - 1;
	return handshake_seq(key, h) == seq;
}

#endif
