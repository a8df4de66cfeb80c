/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of host.bpf.c: what servers send, as their devices hear it. */

enum sent_limit {
	SENT_TAGS = 4,        /* VLAN tags that are followed */
	SENT_VLAN_ID = 0xfff, /* of a tag's TCI */
};

/* A frame of a server. */
struct sent {
	struct ip_view v;
	__u8 result; /* enum parse_result of v: PARSE_MALFORMED leaves v.is6 1 where the addresses are there all the same */
	__u8 tagged; /* 1: there is a VLAN tag, so that the IP header is not at ETH_HLEN or the frame is another device's */
	__u8 away;   /* 1: a tag names a VLAN: the frame is another device's, or nobody's */
	__u8 rsv;
	__u32 at;    /* offset of the IP header */
};

/* Finds the IP header of a frame behind any tags; 0: there is none. A tag without a VLAN is one that the kernel overlooks, however many
 * there are. */
static __always_inline int sent_view(struct __sk_buff *skb, struct sent *s)
{
	struct {
		__be16 tci, type;
	} tag = {};
	__u16 type = skb->protocol;
	__u32 at = ETH_HLEN;

	if (skb->vlan_present) {
		s->tagged = 1;
		s->away = (skb->vlan_tci & SENT_VLAN_ID) != 0;
	}
	s->result = PARSE_MALFORMED;
	for (int i = 0; i < SENT_TAGS; i++) {
		if (!vlan_is(type))
			break;
		if (view_load(skb, at, &tag, sizeof(tag)))
			return 1;
		s->tagged = 1;
		s->away |= (tag.tci & bpf_htons(SENT_VLAN_ID)) != 0;
		type = tag.type;
		at += VLAN_LEN;
	}
	s->at = at;
	if (type == bpf_htons(ETH_P_IP))
		s->result = ip4_view(skb, at, skb->len, &s->v);
	else if (type == bpf_htons(ETH_P_IPV6))
		s->result = ip6_view(skb, at, skb->len, &s->v);
	else
		return vlan_is(type);
	return 1;
}

/* Refuses what the kernel would refuse as well. It does take IPv6 headers that nobody can follow to their end here, and IPv4 packets of
 * more than 64 KiB that say 0 (joined segments). */
static __always_inline enum host_reason sent_whole(const struct __sk_buff *skb, const struct sent *s)
{
	if (s->result != PARSE_MALFORMED || s->v.is6 || skb->gso_size)
		return 0;
	return HOST_REASON_SENT_MALFORMED;
}
