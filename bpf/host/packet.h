/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of host.bpf.c: the flow of a packet that came by a tunnel. */

/* Finds the flow that name_flow named for the arrival, or that of the name which it has when its client is on this machine. Makes none.
 * Global, so that the verifier looks at it once. */
__noinline int packet_find(struct __sk_buff *skb, struct arrival *a, int ports)
{
	int place;

	if (!a)
		return 0;
	if (client_find(&a->name, &a->want, &a->flow, ports))
		return 1;
	place = client_place(skb, a);
	if (place == CLIENT_AWAY)
		return 0;
	name_hairpin(&a->name, &a->want, a->inner.dst);
	if (client_find(&a->name, &a->want, &a->flow, ports))
		return 1;
	if (place == CLIENT_BESIDE)
		name_beside(&a->name, &a->want);
	return 0;
}

/* Does this host know the flow of the packet that came by binding `b`? Makes none, and changes nothing. A binding that does
 * not rewrite has no flows here: 0. To be asked before the packet is out of its tunnel. An ICMP packet is an error about a TCP segment, whose
 * ports and client it has been given. */
__noinline int packet_known(struct __sk_buff *skb, struct arrival *a, const struct binding *b)
{
	__u8 protocol;

	if (!a || !b || !b->rewrite)
		return 0;
	protocol = quote_protocol(&a->inner) ? IPPROTO_TCP : a->inner.protocol;
	if (!name_flow(&a->name, &a->want, b, protocol, a->inner.src, a->t.sport_be, a->t.dport_be))
		return 0;
	return packet_find(skb, a, protocol == IPPROTO_TCP || protocol == IPPROTO_UDP);
}

/* Begins the flow of a packet that packet_known does not know: a reason to drop the packet, or 0. */
__noinline int packet_begin(struct arrival *a)
{
	if (!a)
		return HOST_REASON_IN_STATE_FULL;
	/* Its answers could not be told from what its server says to the VIP by itself. */
	if (a->want.kind == FLOW_HAIRPIN && !a->t.ports)
		return HOST_REASON_IN_NO_PORT;
	switch (client_begin(&a->name, &a->want, a->inner.dst, &a->flow, &a->spare, a->t.ports)) {
	case FLOW_BEGUN:
		return 0;
	case FLOW_THERE:
		return HOST_REASON_IN_NO_PORT;
	}
	return HOST_REASON_IN_STATE_FULL;
}
