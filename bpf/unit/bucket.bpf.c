// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Shows bucket.h to prog-run tests: they set the clock and rates, run the program, and read what was taken. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "lib/bucket.h"

__u64 bucket_word;
__u64 bucket_now;
__u64 bucket_interval;
__u64 bucket_window;
__u64 bucket_taken;
__u32 bucket_asked;
__u32 bucket_pad;

/* bucket asks for tokens, at most 1024 at a time. */
SEC("xdp")
int bucket(struct xdp_md *ctx)
{
	(void)ctx;
	for (__u32 i = 0; i < 1024 && i < bucket_asked; i++) {
		if (bucket_take(&bucket_word, bucket_now, bucket_interval, bucket_window))
			bucket_taken++;
	}
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
