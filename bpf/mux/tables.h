/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The mux's maps and variables. The agent makes the maps at the sizes that it was told, and the variables that say so. */
#ifndef SHUNT_MUX_TABLES_H
#define SHUNT_MUX_TABLES_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "lib/bucket.h"
#include "lib/encap.h"
#include "lib/gue.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LIMIT_ENDPOINT_SLOTS);
	__type(key, __u32);
	__type(value, struct endpoint_slot);
} endpoint_slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LIMIT_ENDPOINT_EXTRAS);
	__type(key, __u32);
	__type(value, struct endpoint_extra);
} endpoint_extras SEC(".maps");

/* Ring slots, four to a word. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LIMIT_RING_WORDS);
	__type(key, __u32);
	__type(value, __u64);
} rings SEC(".maps");

/* Member words (enum member_bit). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LIMIT_MEMBERS);
	__type(key, __u32);
	__type(value, __u64);
} members SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LIMIT_BACKENDS);
	__type(key, __u32);
	__type(value, struct backend);
} backends SEC(".maps");

/* The flow table. Written by the walk and by the agent's sweep. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LIMIT_FLOW_ENTRIES / LIMIT_FLOW_BUCKET);
	__type(key, __u32);
	__type(value, struct flow_bucket);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LIMIT_DEVICES);
	__type(key, __u32);
	__type(value, struct device);
} devices SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct mux_config);
} configs SEC(".maps");

/* Intervals of ports (lib/ports.h). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LIMIT_PORT_RANGES);
	__type(key, __u32);
	__type(value, __u64);
} port_ranges SEC(".maps");

/* How QUIC connection ids are read, by the number in policy words. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LIMIT_QUIC_SETS);
	__type(key, __u32);
	__type(value, struct quic_set);
} quic_sets SEC(".maps");

/* What cookies are read with, by the number in policy words. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LIMIT_COOKIE_SETS);
	__type(key, __u32);
	__type(value, struct cookie_set);
} cookie_sets SEC(".maps");

/* What VIPs let through. The walk writes the words of its buckets. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LIMIT_VIP_GUARDS);
	__type(key, __u32);
	__type(value, struct vip_guard);
} vip_guards SEC(".maps");

/* Lists of source prefixes, and the addresses at which their answers turn (lib/source.h). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LIMIT_SOURCE_LISTS);
	__type(key, __u32);
	__type(value, struct source_list);
} source_lists SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LIMIT_SOURCE_WORDS);
	__type(key, __u32);
	__type(value, __u64);
} source_words SEC(".maps");

/* Who has which ports of VIPs with SNAT. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LIMIT_SNAT_VIPS + 1);
	__type(key, __u32);
	__type(value, struct snat_block);
} snat_blocks SEC(".maps");

/* Datagrams to endpoints with ENDPOINT_ONE_PACKET, in regions of one cache line. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LIMIT_DATAGRAM_REGION);
	__type(key, __u32);
	__type(value, __u64);
} datagrams SEC(".maps");

/* By reason, in regions (abi.h). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LIMIT_REASONS);
	__type(key, __u32);
	__type(value, __u64);
} reasons SEC(".maps");
_Static_assert((int)MUX_REASON_MAX <= (int)LIMIT_REASONS, "a reason without a counter");

/* By index of the endpoint, in regions: packets that found the endpoint but went to no member. Endpoint totals are this
 * and its members'. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LIMIT_ENDPOINTS);
	__type(key, __u32);
	__type(value, struct counter);
} endpoint_counts SEC(".maps");

/* By member word, in regions: what was sent to the member. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LIMIT_MEMBERS);
	__type(key, __u32);
	__type(value, struct counter);
} member_counts SEC(".maps");

/* First fragments of the last seconds. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, LIMIT_FRAGMENTS);
	__type(key, struct fragment_key);
	__type(value, struct fragment);
} fragments SEC(".maps");

/* Buckets of echo replies (lib/bucket.h), by index of the VIP's counter. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LIMIT_ENDPOINTS);
	__type(key, __u32);
	__type(value, __u64);
} pings SEC(".maps");

/* Buckets of packet-too-big messages, likewise. Made anew with every program: a bucket holds a tenth of a second's. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LIMIT_ENDPOINTS);
	__type(key, __u32);
	__type(value, __u64);
} too_bigs SEC(".maps");

/* Buckets of first fragments, likewise. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LIMIT_ENDPOINTS);
	__type(key, __u32);
	__type(value, __u64);
} fragment_rates SEC(".maps");

/* Probes (mux/probe.h): made anew with every program, for rules are no older than their agent. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LIMIT_PROBE_RULES);
	__type(key, __u32);
	__type(value, struct probe_rule);
} probe_rules SEC(".maps");

/* By number of the rule. Written by the walk; the agent clears a word before it begins a round. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LIMIT_PROBE_RULES);
	__type(key, __u32);
	__type(value, struct probe_result);
} probe_results SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LIMIT_PROBE_TEXTS);
	__type(key, __u32);
	__type(value, struct probe_text);
} probe_texts SEC(".maps");

/* Bits by member word, 64 to an element (enum share_mark): 1 if the member's VIP holds more than its share of the flow table, or with path nat of the
 * sessions. Made anew with every program; the agent's sweep writes it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LIMIT_MEMBERS / 64);
	__type(key, __u32);
	__type(value, __u64);
} share_marks SEC(".maps");

/* Schedulers (mux/schedule.h): made anew with every program, for what is lost is made good by the agent's next word. Cursors are by index of the
 * endpoint's counter, in regions. The agent begins them anywhere, so that no two CPUs, and no two muxes, go through a sequence side by side. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LIMIT_ENDPOINTS);
	__type(key, __u32);
	__type(value, __u64);
} schedule_cursors SEC(".maps");

/* By member word (enum member_load_shift). Written by the walk and by the agent. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LIMIT_MEMBERS);
	__type(key, __u32);
	__type(value, __u64);
} member_loads SEC(".maps");

/* Sessions of path nat, whose memory is taken when there is one: by the client's direction, and their names by the server's. What is in the one and
 * not in the other is being made, or ended. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, LIMIT_NAT_SESSIONS);
	__type(key, struct nat_key);
	__type(value, struct nat_session);
} nat_sessions SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, LIMIT_NAT_SESSIONS);
	__type(key, struct nat_key);
	__type(value, struct nat_name);
} nat_ports SEC(".maps");

/* Sessions as they began, the oldest first, half as many as there may be in all: those that nobody trusts yet are among them. */
struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, LIMIT_NAT_SESSIONS / 2);
	__type(value, struct nat_name);
} nat_openings SEC(".maps");

/* Addresses that the mux sends from to servers, in two halves (enum nat_shift). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 4 * LIMIT_NAT_ADDRESSES);
	__type(key, __u32);
	__type(value, struct nat_address);
} nat_addresses SEC(".maps");

/* Connections (mux/track.h): made anew with every program, for a record that is lost is opened anew. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LIMIT_CONNECTIONS);
	__type(key, __u32);
	__type(value, struct track_record);
} connections SEC(".maps");

/* Where the records of flows are: places for twice as many as there are records, so that a bucket is hardly ever full before they are. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2 * LIMIT_CONNECTIONS / LIMIT_FLOW_BUCKET);
	__type(key, __u32);
	__type(value, struct flow_bucket);
} track_buckets SEC(".maps");

/* Indices of free records, a stack for every CPU in a region of `track_region`; and how many each has, in regions of one cache line. A CPU alone writes its own. Words of
 * 64 bits: elements of arrays are no smaller. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LIMIT_CONNECTION_REGION);
	__type(key, __u32);
	__type(value, __u64);
} track_stacks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LIMIT_DATAGRAM_REGION);
	__type(key, __u32);
	__type(value, __u64);
} track_heads SEC(".maps");

/* What CPUs give each other, and the agent gives them. */
struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, LIMIT_CONNECTIONS / LIMIT_CONNECTION_BATCH);
	__type(value, struct connection_batch);
} track_depot SEC(".maps");

/* The batch that a CPU has in work: it is too large for the stack. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct connection_batch);
} track_batches SEC(".maps");

/* Slots of endpoint_slots and buckets of flows, less one. */
const volatile __u32 endpoint_mask = LIMIT_ENDPOINT_SLOTS - 1;
const volatile __u32 flow_mask = LIMIT_FLOW_ENTRIES / LIMIT_FLOW_BUCKET - 1;

/* Buckets of track_buckets, less one; the room of a CPU's stack. */
const volatile __u32 track_mask = 2 * LIMIT_CONNECTIONS / LIMIT_FLOW_BUCKET - 1;
const volatile __u32 track_region = LIMIT_CONNECTION_REGION;

/* Sizes of the regions of endpoint_counts and member_counts. */
const volatile __u32 endpoint_region = LIMIT_ENDPOINTS;
const volatile __u32 member_region = LIMIT_MEMBERS;

/* A tick of flow stamps is 1 << tick_shift jiffies. */
const volatile __u32 tick_shift = 8;

/* The time of a full bucket in 2^-24 jiffies: a tenth of a second. */
const volatile __u64 limit_window = 25ULL << 24;

/* Jiffies per second. */
const volatile __u32 second = 250;

/* 1: the time is test_jiffies. */
const volatile __u32 test_clock = 0;
volatile __u64 test_jiffies;

/* Where read_clock puts the time. */
volatile __u64 clock_jiffies;

/* 1: frames leave the interface they came in by as redirected ones. On veth XDP_TX reaches the peer only if that runs an
 * XDP program too (veth_xdp_flush, Linux 6.18); a redirect needs no more than the peer's GRO. */
const volatile __u32 bounce_redirects = 0;

/* The address of the first interface as in struct device, written again when that changes, and those of all: frames for
 * other addresses are the kernel's. own_mac 0: all frames are taken. */
volatile __u64 own_mac;
volatile __u64 own_macs[LIMIT_INTERFACES];

/* A prefix that covers all VIPs of a family, addresses as stored: mask:32 | value:32, and for IPv6 the first 8 bytes. It
 * spares packets of clients a search for their source; 0 covers everything. */
volatile __u64 cover4;
volatile __u64 cover6_mask;
volatile __u64 cover6_value;

/* The key of probes' sequence numbers, and whether there are any (enum probe_round_shift). */
volatile __u64 probe_key;

/* Carries the enumerations that Go needs, and that no map mentions, into BTF. */
const struct {
	enum limit limit;
	enum mux_reason reason;
	enum mux_reason_class reason_class;
	enum ring_word_bit ring_word;
	enum endpoint_slot_value slot;
	enum policy_shift policy;
	enum cookie_live cookie_live;
	enum endpoint_flag flag;
	enum flow_bit flow;
	enum flow_class class;
	enum member_bit member;
	enum schedule_shift schedule;
	enum schedule_kind schedule_kind;
	enum schedule_cursor_shift schedule_cursor;
	enum schedule_limit schedule_limit;
	enum member_load_shift member_load;
	enum connection_shift connection_shift;
	enum connection_limit connection_limit;
	enum quic_head quic_head;
	enum quic_kind quic_kind;
	enum nexthop_bit nexthop;
	enum span_shift span;
	enum port_range_shift ports;
	enum snat_shift snat;
	enum nat_limit nat_limit;
	enum nat_flag nat_flag;
	enum nat_shift nat;
	enum nat_life_shift nat_life;
	enum overhead overhead;
	enum device_bit device;
	enum encap encap;
	enum gue gue;
	enum gue_source gue_source;
	enum probe_limit probe;
	enum probe_kind probe_kind;
	enum probe_state probe_state;
	enum probe_round_shift probe_round;
	enum probe_lines_shift probe_lines;
	enum probe_result_shift probe_result;
} abi_enums = {};

/* member_word is word `member` of the table of all members; 0: it is not there. */
static __always_inline __u64 member_word(__u32 member)
{
	__u64 *word = bpf_map_lookup_elem(&members, &member);

	return word ? *(volatile __u64 *)word : 0;
}

/* mux_now is the time in jiffies. All that depends on time takes it from here. */
static __always_inline __u64 mux_now(void)
{
	return test_clock ? test_jiffies : bpf_jiffies64();
}

/* mux_take takes a token from a bucket of `rate` a second that holds a tenth of a second's, at least 16; rate above 0. Not
 * for the usual way: it divides. */
static __always_inline int mux_take(__u64 *bucket, __u32 rate)
{
	__u64 interval = ((__u64)second << BUCKET_TIME_SHIFT) / rate, tokens = rate / 10;

	if (!interval)
		interval = 1;
	return bucket_take(bucket, mux_now(), interval, interval * (tokens < 16 ? 16 : tokens));
}

/* mux_tick is the present tick of flow stamps; its low 16 bits count. */
static __always_inline __u64 mux_tick(void)
{
	return mux_now() >> (tick_shift & 31);
}

#endif
