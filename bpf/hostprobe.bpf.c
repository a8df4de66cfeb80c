/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The client of a host's probes by packets: a tcx program on the ingress of each device that has checked servers behind it.
 *
 * It takes what acknowledges the sequence number of a probe's round, from the server's address and port to those of the probe, and
 * ICMP errors that quote the round's SYN. Everything else is TCX_NEXT: untouched, and not counted.
 *
 * Not here: tunnels, and frames with a VLAN tag, which are of another device.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "lib/count.h"
#include "lib/probe.h"
#include "lib/quote.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* What numbers of rules are mixed with: 20 bits. */
const volatile __u64 host_probe_key = 0;

/* 1: the time of results is host_probe_now. */
const volatile __u32 host_probe_clock = 0;
volatile __u64 host_probe_now = 0;

/* ---- maps: of this process, no older and no younger, but for the counters */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct probe_rule);
	__uint(max_entries, 64);
} probe_rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct probe_result);
	__uint(max_entries, 64);
} probe_results SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct probe_text);
	__uint(max_entries, 64);
} probe_texts SEC(".maps");

/* That of host.bpf.c. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, enum host_reason);
	__type(value, __u64);
	__uint(max_entries, LIMIT_REASONS);
} host_reasons SEC(".maps");

/* ---- parts; each uses those above it */

#include "host/verdict.h"
#include "hostprobe/note.h"
#include "hostprobe/reply.h"
#include "hostprobe/segment.h"
#include "hostprobe/error.h"

SEC("tcx/ingress")
int host_probe(struct __sk_buff *skb)
{
	struct ip_view v = {};

	if (skb->vlan_present || frame_ip(skb, &v) || v.fragment)
		return VERDICT_NEXT;
	if (v.protocol == IPPROTO_TCP)
		return segment(skb, &v);
	if (quote_protocol(&v))
		return error(skb, &v);
	return VERDICT_NEXT;
}
