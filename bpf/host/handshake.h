/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of host.bpf.c: what clients' own connections come to, for checks that ask nobody. */

/* Counts a SYN of a client that is about to be delivered. */
static __always_inline void count_asked(__u32 binding)
{
	struct handshakes *h = bpf_map_lookup_elem(&binding_asks, &binding);

	if (h)
		h->asked++;
}

/* asks_datagrams returns 1 if new flows of UDP count as asks of their binding: not while a binding for all protocols is there, whose asks are those of TCP. */
static __always_inline int asks_datagrams(void)
{
	const struct host_config *c = config();

	return c && !(c->flags & HOST_ANY);
}

/* Counts the first answer of a server to a flow of UDP with this tag. */
static __always_inline void count_echoed(__u32 binding, __u64 tag)
{
	struct handshakes *h;

	if (tag_class(tag) != FLOW_CLASS_UNTRUSTED || !asks_datagrams())
		return;
	h = bpf_map_lookup_elem(&binding_asks, &binding);
	if (h)
		h->accepted++;
}

/* Counts what a server answers to a SYN. */
static __always_inline void count_answered(__u32 binding, const struct transport_view *t)
{
	struct handshakes *h;

	if (!t->syn && !t->refusal)
		return;
	h = bpf_map_lookup_elem(&binding_asks, &binding);
	if (!h)
		return;
	if (t->syn)
		h->accepted++;
	else
		h->refused++;
}
