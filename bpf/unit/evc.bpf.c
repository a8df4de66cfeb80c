// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Shows evc.h to prog-run tests: they set the steps, run the program, and read what became of the state after each. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "lib/evc.h"

enum evc_unit_limit {
	EVC_UNIT_STEPS = 512,
};

enum evc_unit_step {
	EVC_UNIT_ANSWER = 1,
	EVC_UNIT_STAMP = 2,
	EVC_UNIT_ECHO = 3,
	EVC_UNIT_REBUILD = 4,
	EVC_UNIT_EMPTY = 5,
};

struct evc_unit {
	__u32 step; /* enum evc_unit_step */
	__u32 in;   /* timestamp or stamp */
	__u32 want; /* cookie; of a SYN-ACK with 1 << 16: again */
	__u32 out;  /* stamp or timestamp */
	__u32 ours;
	__u32 steady; /* 1: the short way gave the same, 2: another result */
	struct evc after;
};

__u32 evc_unit_bits;
__u32 evc_unit_count;
__u8 evc_unit_generation;
__u8 evc_unit_rsv[7];
struct evc evc_unit_state;
/* Of no use but that the enum reaches BTF. */
enum evc_flag evc_unit_flags;
__u32 evc_unit_rsv1;
struct evc_unit evc_unit_steps[EVC_UNIT_STEPS];

/* Compares the short ways, where they may be taken, with what came of a step. */
static __always_inline void steady(struct evc_unit *s, const struct evc *before, __u32 n)
{
	__u32 out = 0, v = 0;
	struct evc e = *before;

	if (s->step == EVC_UNIT_STAMP && evc_steady(e.word, evc_unit_generation, EVC_MINTING) && s->want == evc_cookie(&e)) {
		out = evc_stamp_steady(before, e.word, n, s->in, &v);
		if (!out)
			return;
		e.v_last = evc_later(e.v_last, v);
	} else if (s->step == EVC_UNIT_ECHO && evc_steady(e.word, evc_unit_generation, EVC_MINTING | EVC_UNSURE) && evc_cookie_of(n, s->in) == evc_cookie(&e)) {
		out = evc_heard_steady(before, n, s->in, &v);
		e.v_echo = evc_later(e.v_echo, v);
	} else {
		return;
	}
	s->steady = out == s->out && !((e.v_last ^ s->after.v_last) | (e.v_echo ^ s->after.v_echo) | (e.word ^ s->after.word) | (e.off ^ s->after.off) |
				       (e.v_sw ^ s->after.v_sw) | (e.off_prev ^ s->after.off_prev) | (e.v_sw_prev ^ s->after.v_sw_prev)) ? 1 : 2;
}

/* Global, so that the verifier looks at it once. */
__noinline int take(__u32 i)
{
	__u32 n = evc_unit_bits & 31;
	struct evc_unit *s = &evc_unit_steps[i & (EVC_UNIT_STEPS - 1)];
	struct evc e = evc_unit_state;

	s->ours = EVC_OURS;
	s->steady = 0;
	switch (s->step) {
	case EVC_UNIT_ANSWER:
		s->out = evc_answer(&e, n, s->in, s->want & 0xffff, evc_unit_generation, s->want >> 16);
		break;
	case EVC_UNIT_STAMP:
		s->out = evc_kind(&e) == EVC_EMPTY ? s->in : evc_stamp(&e, n, s->in, s->want);
		break;
	case EVC_UNIT_ECHO:
		s->ours = evc_echo(&e, n, s->in, &s->out);
		break;
	case EVC_UNIT_REBUILD:
		evc_rebuild(&e, n, s->in, evc_unit_generation);
		break;
	case EVC_UNIT_EMPTY:
		__builtin_memset(&e, 0, sizeof(e));
		break;
	}
	s->after = e;
	steady(s, &evc_unit_state, n);
	evc_unit_state = e;
	return 0;
}

SEC("xdp")
int evc(struct xdp_md *ctx)
{
	(void)ctx;
	for (__u32 i = 0; i < EVC_UNIT_STEPS && i < evc_unit_count; i++)
		take(i);
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
