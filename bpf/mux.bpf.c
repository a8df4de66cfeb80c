// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The mux: finds the endpoint of a packet, chooses a member by flow table or ring, encapsulates, sends.
 *
 * Its tables are memory-mapped arrays that the agent writes with plain stores (abi.h, publication rule). The walk writes
 * to the flow table and to counters only. What is not for a VIP of ours goes to the kernel untouched. The parts of the
 * walk are in mux/, what has no tables in lib/. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include "abi.h"
#include "lib/endpoint.h"
#include "lib/parse.h"
#include "mux/find.h"
#include "mux/forward.h"
#include "mux/nat.h"
#include "mux/settle.h"
#include "mux/tables.h"
#include "mux/verdict.h"
#include "mux/wildcard.h"

/* Returned instead of a verdict: the packet is not a usual one. */
#define UNUSUAL (-1)

/* walk finds the endpoint of a packet that was read without a fault: usually in one cache line. */
static __always_inline int walk(struct xdp_md *ctx, const struct packet *p)
{
	__u64 key = endpoint_key(0, p->protocol, p->dport);
	__u32 index = home_of(p->dst_hi, p->dst_lo, key), found;
	struct endpoint_slot *slot = slot_at(index);

	/* Only keys with ports: protocol 0 and port 0 are the VIP itself. */
	if (!slot || !has_ports(p) || !endpoint_is(slot, *(volatile __u64 *)&slot->value, p->dst_hi, p->dst_lo, key)) {
		if (p->protocol == (p->family == 4 ? PROTOCOL_ICMP : PROTOCOL_ICMPV6))
			return UNUSUAL;
		found = has_ports(p) ? find_exact(p->dst_hi, p->dst_lo, key) : 0;
		if (!found)
			found = find_wildcard(p->dst_hi, p->dst_lo, p->protocol, p->dport);
		if (!found)
			return UNUSUAL;
		index = found - 1;
		slot = slot_at(index);
		if (!slot)
			return drop(MUX_REASON_INTERNAL);
	}
	return forward(ctx, p, slot, index, 0);
}

/* usual walks a usual packet. The two families are walked apart so that neither pays for the other's branches. */
static __noinline int usual(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct packet p;
	__u64 own = own_mac;
	__u16 type;

	if (data + ETH_HLEN > end)
		return UNUSUAL;
	/* One load; the two octets behind the address are shifted out. */
	if ((*(const __u64 *)data ^ own) << 16 && own && !other_own(*(const __u64 *)data << 16))
		return pass(MUX_REASON_PASS_OTHER_MAC);
	/* In one load: struct ethhdr is packed, and clang would read it byte by byte. */
	type = *(const __u16 *)(data + 2 * ETH_ALEN);
	if (type == bpf_htons(ETH_P_IP) && !parse_ip4(ctx, data, end, &p))
		return walk(ctx, &p);
	if (type == bpf_htons(ETH_P_IPV6) && !parse_ip6(ctx, data, end, &p))
		return walk(ctx, &p);
	return UNUSUAL;
}

/* mux is the packet walk: the usual way, or else the slow one; then what path nat does. One after the other, not one within the other: their stacks
 * together would be too large. */
SEC("xdp.frags")
int mux(struct xdp_md *ctx)
{
	int verdict = usual(ctx);

	if (verdict == UNUSUAL)
		verdict = settle(ctx);
	return verdict == NAT_DUE ? nat(ctx) : verdict;
}

/* read_clock tells the agent the time that the walk has, in jiffies. */
SEC("syscall")
int read_clock(void *ctx)
{
	(void)ctx;
	clock_jiffies = mux_now();
	return 0;
}

/* nat_expire ends a session that the agent has found idle for too long: true if it still is. */
SEC("syscall")
int nat_expire(struct nat_expiry *asked)
{
	struct nat_key client = asked->client, port;
	struct nat_session *s = bpf_map_lookup_elem(&nat_sessions, &client);

	if (!s || nat_life(s) != asked->life || *(volatile __u32 *)&s->stamp != asked->stamp)
		return 0;
	return nat_forget(&client, s, asked->life, &port, 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";
