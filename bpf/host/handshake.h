/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of host.bpf.c: what clients' own connections come to, for checks that ask nobody. */

/* Counts a SYN of a client that is about to be delivered. */
static __always_inline void count_asked(__u32 binding)
{
	struct handshakes *h = bpf_map_lookup_elem(&binding_asks, &binding);

	if (h)
		h->asked++;
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
