/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The choice of a member by the cookie that a segment's timestamp carries (protocol sections 1.3 and 6.1): no ring, no flow table, nothing written. */
#ifndef SHUNT_MUX_COOKIE_H
#define SHUNT_MUX_COOKIE_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/tcp.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include "abi.h"
#include "lib/cookie.h"
#include "lib/options.h"
#include "lib/parse.h"
#include "lib/ring.h"
#include "lib/short_cookie.h"
#include "mux/flows.h"
#include "mux/identity.h"
#include "mux/tables.h"
#include "mux/verdict.h"

/* cookie_options finds the timestamps among the options of the TCP header at `at`, of which the frame has `limit` bytes in all: TSval:32 | TSecr:32 in host
 * order, 0 when there are none. */
__attribute__((noinline)) __u64 cookie_options(struct xdp_md *ctx, __u32 at, __u32 limit)
{
	struct tcp_options o = {};
	__u32 len;
	__u8 offset;

	if (bpf_xdp_load_bytes(ctx, (at & 0x7fff) + 12, &offset, sizeof(offset)))
		return 0;
	len = (offset >> 4) * 4 - sizeof(struct tcphdr);
	if (at + sizeof(struct tcphdr) + len > limit)
		len = limit - at - sizeof(struct tcphdr);
	if (!len || len > LIMIT_TCP_OPTIONS)
		return 0;
	if (bpf_xdp_load_bytes(ctx, (at & 0x7fff) + sizeof(struct tcphdr), o.bytes, len))
		return 0;
	o.len = len;
	at = options_timestamps(&o);
	return at ? (__u64)options_word(&o, at) << 32 | options_word(&o, at + 4) : 0;
}

/* cookie_echo is the echo of a timestamp that a segment carries, in host order: 0 when it carries none. Without ACK the field means nothing (RFC 7323
 * section 3.2). */
static __always_inline __u32 cookie_echo(struct xdp_md *ctx, const struct packet *p)
{
	if (!(p->segment & SEGMENT_ACK))
		return 0;
	return p->echo_be ? bpf_ntohl(p->echo_be) : cookie_options(ctx, p->l4, ETH_HLEN + p->l3_len);
}

/* cookie_hash is the hash that cookies of a packet's flow are made with. */
static __always_inline __u64 cookie_hash(const struct siphash_key *key, const struct packet *p)
{
	if (p->family == 4)
		return cookie_prf4(key, bpf_ntohl(p->src_lo >> 32), p->sport, p->dport);
	return cookie_prf6(key, p->src_hi, p->src_lo, p->sport, p->dport);
}

/* set_secret is the cookie_secret of a set's key, 0 where member ids are in order. */
static __always_inline __u64 set_secret(const struct cookie_set *s, __u32 kid)
{
	return s->live >> (kid + COOKIE_SHUFFLED_SHIFT) & 1 ? cookie_secret(&s->keys[kid]) : 0;
}

/* cookie_clock is the shared clock of form CO, in milliseconds. */
static __always_inline __u32 cookie_clock(void)
{
	__u32 zero = 0;
	const struct mux_config *c = bpf_map_lookup_elem(&configs, &zero);

	return c ? (bpf_ktime_get_ns() + *(const volatile __u64 *)&c->ahead) / 1000000 : 0;
}

/* cookie_offset is the member id that a timestamp of form CO names, COOKIE_NONE when it names none; and the hash of the flow. A function of its own, for the
 * usual form's sake. */
__attribute__((noinline)) __u32 cookie_offset(const struct packet *p __arg_nonnull, __u32 index, __u32 stamp, __u64 *hash __arg_nonnull)
{
	const struct cookie_set *s = bpf_map_lookup_elem(&cookie_sets, &index);
	__u32 cookie = co_cookie(stamp, cookie_clock()), kid = short_cookie_kid(cookie);

	if (!p || !hash || !s || !(s->live >> kid & 1))
		return COOKIE_NONE;
	*hash = cookie_hash(&s->keys[kid], p);
	return short_cookie_decode(*hash, cookie, set_secret(s, kid));
}

/* cookie_member finds the member whose cookie a timestamp carries, among `range` of an endpoint with this policy word: FLOW_FOUND | the index of its word,
 * which it gives, and the hash of the flow; else the reason that counts it. */
static __always_inline __u64 cookie_member(const struct packet *p, __u64 policy, __u64 range, __u32 stamp, __u64 *word, __u64 *hash)
{
	__u32 index = (policy >> POLICY_COOKIE_SHIFT) - 1, cookie = cookie_of(stamp), kid = cookie_kid(cookie), id;
	const struct cookie_set *s = bpf_map_lookup_elem(&cookie_sets, &index);

	if (!s)
		return MUX_REASON_COOKIE_INVALID;
	if (s->form == COOKIE_FORM_EVC) {
		if (!(s->live >> kid & 1))
			return MUX_REASON_COOKIE_INVALID;
		*hash = cookie_hash(&s->keys[kid], p);
		id = cookie_decode(*hash, cookie, set_secret(s, kid));
	} else {
		/* A variable of its own: the usual form's hash need not be in memory then. */
		__u64 other = 0;

		id = cookie_offset(p, index, stamp, &other);
		*hash = other;
	}
	if (id >= range >> 32)
		return MUX_REASON_COOKIE_INVALID;
	*word = member_word((__u32)range + id);
	if (member_keeps(*word, policy >> POLICY_FLAGS_SHIFT))
		return FLOW_FOUND | ((__u32)range + id);
	return *word >> MEMBER_PRESENT_SHIFT & 1 ? MUX_REASON_FLOW_MOVED : MUX_REASON_COOKIE_INVALID;
}

/* by_cookie is cookie_member of a segment to the endpoint, 0 of a SYN, which carries none. What is no cookie is counted. */
static __always_inline __u64 by_cookie(struct xdp_md *ctx, const struct packet *p, __u64 policy, __u64 range, __u64 *word, __u64 *hash)
{
	__u64 answer;
	__u32 echo = bpf_ntohl(p->echo_be);

	if (!echo || (p->segment & (SEGMENT_SYN | SEGMENT_ACK)) != SEGMENT_ACK) {
		if (p->segment & SEGMENT_SYN)
			return 0;
		echo = cookie_echo(ctx, p);
	}
	answer = echo ? cookie_member(p, policy, range, echo, word, hash) : MUX_REASON_COOKIE_ABSENT;
	if (!(answer & FLOW_FOUND))
		note(answer);
	return answer;
}

#endif
