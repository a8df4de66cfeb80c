/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of host.bpf.c: the time. */

/* Nanoseconds; tests set them. */
static __always_inline __u64 host_now(void)
{
	return host_test_clock ? host_test_now : bpf_ktime_get_coarse_ns();
}

/* The present tick of flow tags. */
static __always_inline __u64 host_tick(void)
{
	return host_now() >> FLOW_TAG_TICK_SHIFT;
}
