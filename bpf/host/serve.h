/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of host.bpf.c: answers of servers that do not leave by the uplink. */

/* serve_beside for a packet that has a transport header of its own. */
static __noinline int serve_answer(struct __sk_buff *skb, const struct ip_view *v)
{
	struct transport_view t = {};
	struct arrival *scratch;
	__u32 zero = 0;

	scratch = bpf_map_lookup_elem(&arrivals, &zero);
	if (!scratch || transport_view(skb, v, &t) == PARSE_MALFORMED)
		return VERDICT_NEXT;
	if (!find_flow(v, &t, &scratch->name, &scratch->flow) || !(scratch->flow.record.flags & FLOW_BESIDE))
		return VERDICT_NEXT;
	if (scratch->flow.record.peer_port_be != scratch->flow.record.client_port_be)
		client_keep(&scratch->flow, &scratch->spare);
	return answer(skb, v, &t, scratch, 1);
}

/* Sends an answer to a client on this machine, of a flow with FLOW_BESIDE, on to it from the VIP. Whatever else a server sends goes on as it is. */
static __always_inline int serve_beside(struct __sk_buff *skb, const struct ip_view *v)
{
	if (v->fragment == 2)
		return follow_out(skb, v, 1);
	if (quote_possible(v))
		return answer_icmp(skb, v, 1);
	return serve_answer(skb, v);
}
