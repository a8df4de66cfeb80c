// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Handshakes of servers whose own clock carries the cookie (form CO, protocol section 1.4): a tcx program on the ingress of the uplink, behind host_in.
 *
 * It answers SYNs to endpoints whose server owns the VIP on this very machine, and keeps nothing of them. The client's acknowledgement becomes the kernel's
 * connection by bpf_sk_assign_tcp_reqsk (Linux 6.9), whose timestamps then go on from the one that was sent: all later packets carry the cookie, and nobody
 * rewrites any. What the kernel has to decide itself is TCX_NEXT.
 *
 * Not here: congestion notification and MPTCP are not negotiated; frames with a VLAN tag.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "lib/count.h"
#include "lib/handshake_cookie.h"
#include "lib/hash.h"
#include "lib/short_cookie.h"
#include "lib/view.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* 1: time is co_test_now, in nanoseconds of CLOCK_MONOTONIC. */
const volatile __u32 co_test_clock = 0;
volatile __u64 co_test_now = 0;

/* Of no use but that these enums reach BTF. */
const volatile enum co_limit co_limit_known = LIMIT_CO_ENDPOINTS;
const volatile enum co_allow co_allow_known = CO_ALLOW_SACK;
const volatile enum co_reason_class co_reason_class_known = 0;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct co_key);
	__type(value, struct co_endpoint);
	__uint(max_entries, LIMIT_CO_ENDPOINTS);
} co_endpoints SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct co_setup);
	__uint(max_entries, 1);
} co_setups SEC(".maps");

/* Keyed by an enum so that the enum reaches BTF and thereby Go. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, enum co_reason);
	__type(value, __u64);
	__uint(max_entries, LIMIT_REASONS);
} co_reasons SEC(".maps");
_Static_assert((int)CO_REASON_MAX <= (int)LIMIT_REASONS, "a reason without a counter");

#include "hostco/name.h"

/* The segment that is looked at, and its answer: too large for the stack. Not pinned. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct co_scratch);
	__uint(max_entries, 1);
} co_scratches SEC(".maps");

/* ---- parts; each uses those above it */

#include "hostco/segment.h"
#include "hostco/answer.h"
#include "hostco/accept.h"

SEC("tcx/ingress")
int host_co(struct __sk_buff *skb)
{
	const struct co_endpoint *e;
	struct co_scratch *to;
	__u32 zero = 0;

	to = bpf_map_lookup_elem(&co_scratches, &zero);
	if (skb->vlan_present || !to || !co_read(skb, &to->segment))
		return CO_NEXT;
	e = co_endpoint_of(&to->segment);
	if (!e)
		return CO_NEXT;
	if (to->segment.t.bits == TCP_BIT_SYN)
		return co_answer(skb, to, e);
	if ((to->segment.t.bits & (TCP_BIT_ACK | TCP_BIT_SYN | TCP_BIT_RST)) == TCP_BIT_ACK)
		return co_accept(skb, &to->segment, e);
	return CO_NEXT;
}
