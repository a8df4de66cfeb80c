/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of host.bpf.c: how flows are asked for, and what is found. */

/* What a flow is looked for by: as the server sees it; of aliases as the client does (enum flow_kind). */
struct flow_name {
	__u8 dip[16];
	__u8 client[16];
	__u32 scope;          /* as in struct flow_record */
	__be16 dip_port_be;
	__be16 peer_port_be;
	__u8 kind;
	__u8 rsv[3];
};

/* A flow that was found: what its record had, and where it is. */
struct flow_found {
	struct flow_record record;
	__u64 tag;
	__u64 alias_tag;   /* of the alias that led to it, 0: none did */
	__u32 place;       /* of its record */
	__u32 alias_place;
};

/* What is written while a flow of an alias is looked for or made: too much for the stack. */
struct flow_spare {
	struct flow_found found;
	struct flow_record record;
	struct flow_name name;
	__u32 rsv;
};
