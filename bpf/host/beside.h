/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of host.bpf.c: the way of answers to clients on this machine that their servers know by their own address. */

/* Sends a translated answer that came by the device of its server on to its client, past the kernel's look at its source (rp_filter): the VIP is not
 * behind that device. What the FIB does not forward, or what does not fit the way, is the stack's. */
static __noinline int beside_send(struct __sk_buff *skb, const __u8 *vip, const __u8 *client)
{
	struct bpf_fib_lookup fib;

	if (route(skb, &fib, vip, client) != BPF_FIB_LKUP_RET_SUCCESS)
		return VERDICT_NEXT;
	return forward(&fib);
}
