/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of host.bpf.c: the maps. The agent makes some at the sizes that it was told. */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct host_config);
	__uint(max_entries, 1);
} host_configs SEC(".maps");

/* Tunnel sources beyond those of the configuration; values are of enum host_source. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct tunnel_source);
	__type(value, __u32);
	__uint(max_entries, LIMIT_TUNNEL_SOURCES);
} tunnel_sources SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct binding_key);
	__type(value, struct binding);
	__uint(max_entries, LIMIT_BINDINGS);
} bound_members SEC(".maps");

/* Bindings of ranges of ports; a range's parts are copies of one binding. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct binding_prefix);
	__type(value, struct binding);
	__uint(max_entries, LIMIT_BINDING_PREFIXES);
} bound_ranges SEC(".maps");

/* Outer destinations that some binding has, and by which tunnels: enum host_tunnel. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(key_size, 16);
	__type(value, enum host_tunnel);
	__uint(max_entries, LIMIT_BINDINGS);
} outers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct owned_key);
	__type(value, struct owned);
	__uint(max_entries, LIMIT_BINDINGS);
} owned_vips SEC(".maps");

/* The flow table (host/flow.h): buckets, and eight records to each. The agent makes them with as many as it is told. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct flow_tags);
	__uint(max_entries, LIMIT_HOST_FLOWS_MIN / LIMIT_FLOW_BUCKET);
} flow_tags SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct flow_record);
	__uint(max_entries, LIMIT_HOST_FLOWS_MIN);
} flow_records SEC(".maps");

/* Beside flow_records. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct evc);
	__uint(max_entries, LIMIT_HOST_FLOWS_MIN);
} flow_cookies SEC(".maps");

/* VIPs whose packets carry cookies. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct host_cookie_keys);
	__uint(max_entries, LIMIT_HOST_COOKIE_KEYS);
} cookie_keys SEC(".maps");

/* Addresses that records name; one stays as long as a flow may name it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__uint(value_size, 16);
	__uint(max_entries, LIMIT_FLOW_ADDRS);
} flow_addrs SEC(".maps");

/* A bit for each number in flow_addrs: 1 if it is that of a VIP whose trusted flows are more than its share of the flow table. Not pinned. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, LIMIT_FLOW_ADDRS / 64);
} flow_shares SEC(".maps");

/* By the index of a binding's counter; written before the binding. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct binding_flow);
	__uint(max_entries, LIMIT_BINDINGS);
} binding_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct flow_setup);
	__uint(max_entries, 1);
} flow_setups SEC(".maps");

/* Endpoints from which something was displaced lately, their slots and their targets: memory-mapped. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct repair);
	__uint(max_entries, LIMIT_REPAIRS);
} repairs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64); /* two slots, the first in the lower half: elements of maps have whole words */
	__uint(max_entries, LIMIT_REPAIR_SLOTS / 2);
} repair_slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct repair_target);
	__uint(max_entries, LIMIT_REPAIR_TARGETS);
} repair_targets SEC(".maps");

/* The value is an enum so that it reaches BTF and thereby Go: what hosts send on comes from these addresses; the value says nothing. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(key_size, 16);
	__type(value, enum repair_use);
	__uint(max_entries, LIMIT_PEERS);
} peers SEC(".maps");

/* Prefixes of the plan's Networks. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct network_prefix);
	__type(value, enum network_kind);
	__uint(max_entries, LIMIT_NETWORKS);
} networks SEC(".maps");

/* Who may send from which address. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct sender_key);
	__type(value, enum sender_use);
	__uint(max_entries, LIMIT_SENDERS);
} senders SEC(".maps");

/* Addresses of SNAT, 4 bytes each: DIPs whose connections leave with a VIP, and those VIPs. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(key_size, 4);
	__type(value, enum host_snat_addr);
	__uint(max_entries, 2 * LIMIT_HOST_SNAT_HOLDERS);
} snat_addrs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct host_snat_holder);
	__uint(max_entries, LIMIT_HOST_SNAT_HOLDERS);
} snat_holders SEC(".maps");

/* A DIP's block is written before it is named, and not written again while it may be read, but for `used`. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct host_snat_range);
	__uint(max_entries, LIMIT_HOST_SNAT_RANGES);
} snat_ranges SEC(".maps");

/* Destinations that servers' connections go to without SNAT; the value says nothing. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct host_snat_prefix);
	__type(value, __u32);
	__uint(max_entries, LIMIT_HOST_SNAT_INSIDE);
} snat_inside_of SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct host_snat_setup);
	__uint(max_entries, 1);
} snat_setups SEC(".maps");

/* Indices of DIPs whose ports get scarce: for the agent that is there. Not pinned. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, LIMIT_HOST_SNAT_LOWS);
} snat_lows SEC(".maps");

/* Far ends that a server found no free port for: the hash of snat_far, by its lower bits. Not pinned. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, LIMIT_HOST_SNAT_SPENT);
} snat_spent SEC(".maps");

/* Notes about flows, by place: see struct flow_note. Not pinned: a lost note costs a flow its early end at most. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct flow_note);
	__uint(max_entries, LIMIT_FLOW_NOTES);
} flow_notes SEC(".maps");

/* Datagrams in fragments. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, struct datagram_key);
	__type(value, struct datagram);
	__uint(max_entries, LIMIT_DATAGRAMS);
} datagrams SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct counter);
	__uint(max_entries, LIMIT_BINDINGS);
} binding_counts SEC(".maps");

/* What clients' connections came to, by the index of the binding's counter. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct handshakes);
	__uint(max_entries, LIMIT_BINDINGS);
} binding_asks SEC(".maps");
_Static_assert((int)LIMIT_BINDINGS <= 1 << 16, "an index that does not fit into struct flow_record");

/* Established flows, by the index of the binding's counter: shared by all CPUs, for one changes it only when a connection begins or ends. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct flow_count);
	__uint(max_entries, LIMIT_BINDINGS);
} flow_counts SEC(".maps");

/* What servers get and send, by their number in flow_addrs. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct server_meter);
	__uint(max_entries, LIMIT_METERS);
} server_meters SEC(".maps");

/* Keyed by an enum so that the enum reaches BTF and thereby Go. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, enum host_reason);
	__type(value, __u64);
	__uint(max_entries, LIMIT_REASONS);
} host_reasons SEC(".maps");
_Static_assert((int)HOST_REASON_MAX <= (int)LIMIT_REASONS, "a reason without a counter");

/* The packet that host_in looks at, and the flow that either program found: too large for the stack. Not pinned. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct arrival);
	__uint(max_entries, 1);
} arrivals SEC(".maps");
