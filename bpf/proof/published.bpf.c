// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Cheetah's encoding of cookies in TCP timestamps as it was published (NSDI 2020), of the variant with a memory for each connection, which the authors' kernel
 * for servers has: what Shunt is compared with. It belongs on the device of a server. No daemon loads it.
 *
 * What leaves the server has version:1 | cookie:15 | the lower 16 bits of the server's TSval. The version is the other one whenever the upper bits have changed since the last
 * segment; the upper bits of both versions are remembered, and put back into the client's echo. */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "lib/options.h"
#include "lib/view.h"

enum published_limit {
	PUBLISHED_CONNECTIONS = 4096,
};

/* Written before the programs are attached. */
struct published_config {
	__be16 port_be; /* the server's */
	__u16 bits;     /* of TSval that stay: 16 as published, less for tests that cannot wait */
};

/* Counted here, by one CPU at a time as far as it matters. */
struct published_state {
	__u64 stamped;  /* segments whose TSval was written over */
	__u64 restored; /* segments whose TSecr was */
	__u64 failed;   /* ones that the kernel did not let be changed */
};

/* A connection of the server, by the client's end. */
struct connection {
	__u8 client[16];
	__be16 port_be;
	__u16 rsv;
};

/* What is remembered of it. */
struct memory {
	__u32 upper[2]; /* of TSval, by version */
	__u32 version;
	__u32 rsv;
};

struct published_config config;
struct published_state state;

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, PUBLISHED_CONNECTIONS);
	__type(key, struct connection);
	__type(value, struct memory);
} memories SEC(".maps");

/* segment is a TCP segment of the server's port and where its timestamps are. */
struct segment {
	struct ip_view ip;
	struct transport_view tcp;
	struct tcp_options options;
	__u32 stamps; /* index of TSval in the options */
};

/* find reads the segment; false when it is none with timestamps. */
static __always_inline int find(struct __sk_buff *skb, struct segment *s)
{
	if (frame_ip(skb, &s->ip) != PARSE_OK || s->ip.protocol != IPPROTO_TCP || s->ip.fragment || tcp_view(skb, &s->ip, &s->tcp) != PARSE_OK)
		return 0;
	s->options.len = s->tcp.header_len - sizeof(struct tcphdr);
	if (s->options.len < OPTIONS_TIMESTAMPS_LEN || s->options.len > LIMIT_TCP_OPTIONS)
		return 0;
	if (bpf_skb_load_bytes(skb, s->tcp.offset + sizeof(struct tcphdr), s->options.bytes, s->options.len))
		return 0;
	s->stamps = options_timestamps(&s->options);
	return s->stamps != 0;
}

/* write replaces a 32-bit word of the options; one at an odd place counts byte by byte swapped in the checksum (RFC 1071). */
static __always_inline int write(struct __sk_buff *skb, const struct segment *s, __u32 at, __u32 from, __u32 to)
{
	__be32 was = bpf_htonl(from), is = bpf_htonl(to);

	if (at & 1) {
		was = (was & 0x00ff00ff) << 8 | (was >> 8 & 0x00ff00ff);
		is = (is & 0x00ff00ff) << 8 | (is >> 8 & 0x00ff00ff);
	}
	if (bpf_l4_csum_replace(skb, s->tcp.csum_offset, was, is, sizeof(is)))
		return -1;
	is = bpf_htonl(to);
	return bpf_skb_store_bytes(skb, s->tcp.offset + sizeof(struct tcphdr) + at, &is, sizeof(is), 0);
}

/* note counts the outcome of a write. */
static __always_inline void note(int failed, __u64 *done)
{
	__sync_fetch_and_add(failed ? &state.failed : done, 1);
}

/* cookie_of_client is some cookie: which one does not matter here. */
static __always_inline __u32 cookie_of_client(const struct connection *c)
{
	return (__u32)bpf_ntohs(c->port_be) * 40503;
}

/* lower are the bits of TSval that stay. */
static __always_inline __u32 lower(__u32 stamp)
{
	return stamp & ((1U << (config.bits & 31)) - 1);
}

SEC("tcx/egress")
int published_out(struct __sk_buff *skb)
{
	struct segment s = {};
	struct connection key = {};
	struct memory fresh = {}, *m;
	__u32 sent, upper, cookie;

	if (!find(skb, &s) || s.tcp.sport_be != config.port_be)
		return TC_ACT_UNSPEC;
	view_copy16(key.client, s.ip.dst);
	key.port_be = s.tcp.dport_be;
	sent = options_word(&s.options, s.stamps);
	upper = sent >> (config.bits & 31);
	m = bpf_map_lookup_elem(&memories, &key);
	if (!m || s.tcp.syn) {
		fresh.upper[0] = fresh.upper[1] = upper;
		if (bpf_map_update_elem(&memories, &key, &fresh, BPF_ANY))
			return TC_ACT_UNSPEC;
		m = bpf_map_lookup_elem(&memories, &key);
		if (!m)
			return TC_ACT_UNSPEC;
	}
	if (m->upper[m->version & 1] != upper) {
		m->version = ~m->version & 1;
		m->upper[m->version & 1] = upper;
	}
	cookie = cookie_of_client(&key) << (config.bits & 31) & 0x7fffffff;
	note(write(skb, &s, s.stamps, sent, m->version << 31 | cookie | lower(sent)), &state.stamped);
	return TC_ACT_UNSPEC;
}

SEC("tcx/ingress")
int published_in(struct __sk_buff *skb)
{
	struct segment s = {};
	struct connection key = {};
	struct memory *m;
	__u32 echo;

	if (!find(skb, &s) || s.tcp.dport_be != config.port_be || !(s.tcp.bits & TCP_BIT_ACK))
		return TC_ACT_UNSPEC;
	view_copy16(key.client, s.ip.src);
	key.port_be = s.tcp.sport_be;
	echo = options_word(&s.options, s.stamps + 4);
	m = bpf_map_lookup_elem(&memories, &key);
	if (!m || !echo)
		return TC_ACT_UNSPEC;
	note(write(skb, &s, s.stamps + 4, echo, m->upper[echo >> 31] << (config.bits & 31) | lower(echo)), &state.restored);
	return TC_ACT_UNSPEC;
}

char _license[] SEC("license") = "Dual BSD/GPL";
