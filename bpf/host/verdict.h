/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of host.bpf.c: the ends that a packet can come to, and their counters. */

/* Verdicts of tcx programs (Linux 6.6): the next program decides, or the packet goes its way at once. */
enum verdict {
	VERDICT_NEXT = -1,
	VERDICT_PASS = 0,
	VERDICT_DROP = 2,
	/* Of parts, never of a program: somebody else is to decide. */
	VERDICT_OPEN = 256,
};

/* What bpf_map_update_elem says of a key that is there (errno.h does not go with BPF). */
enum map_error {
	MAP_EXISTS = -17,
};

static __always_inline void count(enum host_reason reason)
{
	count_reason(&host_reasons, reason);
}

static __always_inline int drop(enum host_reason reason)
{
	count(reason);
	return VERDICT_DROP;
}

static __always_inline int not_ours(void)
{
	count(HOST_REASON_PASS_NOT_OURS);
	return VERDICT_NEXT;
}

static __always_inline enum host_reason parse_reason(int result)
{
	return result == PARSE_FRAGMENT ? HOST_REASON_IN_FRAGMENT : HOST_REASON_IN_MALFORMED;
}
