// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Shows cookie.h and options.h to prog-run tests: they set `in`, run the program, and read `out`. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "lib/cookie.h"
#include "lib/options.h"

/* What is to be computed. */
struct cookie_in {
	struct siphash_key key;
	__u64 client_hi; /* as stored */
	__u64 client_lo;
	__u16 sport;
	__u16 dport;
	__u32 kid;
	__u32 id;
	__u32 cookie; /* to be decoded */
	__u32 time;
	__u32 stamp;  /* to be taken apart */
	struct tcp_options options;
	__u32 shuffled;
};

struct cookie_out {
	__u64 prf4;
	__u64 prf6;
	__u32 encoded;
	__u32 decoded;
	__u32 kid;
	__u32 placed;
	__u32 unplaced;
	__u32 of;
	__u32 tsval_at;
	__u32 tsval;
};

struct cookie_in in;
struct cookie_out out;

/* cookie computes everything; cookies are those of the IPv6 flow. */
SEC("xdp")
int cookie(struct xdp_md *ctx)
{
	struct siphash_key key = in.key;

	(void)ctx;
	out.prf4 = cookie_prf4(&key, bpf_ntohl(in.client_lo >> 32), in.sport, in.dport);
	out.prf6 = cookie_prf6(&key, in.client_hi, in.client_lo, in.sport, in.dport);
	out.encoded = cookie_encode(out.prf6, in.kid, in.id, in.shuffled ? cookie_secret(&key) : 0);
	out.decoded = cookie_decode(out.prf6, in.cookie, in.shuffled ? cookie_secret(&key) : 0);
	out.kid = cookie_kid(in.cookie);
	out.placed = cookie_place(in.time, in.cookie);
	out.unplaced = cookie_unplace(in.stamp);
	out.of = cookie_of(in.stamp);
	out.tsval_at = options_timestamps(&in.options);
	out.tsval = options_word(&in.options, out.tsval_at);
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
