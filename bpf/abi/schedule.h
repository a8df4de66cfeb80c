/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* How the first packets of flows are given to members where that is not the ring's to say. */
#ifndef SHUNT_ABI_SCHEDULE_H
#define SHUNT_ABI_SCHEDULE_H

#include "abi/limit.h"

/* A sequence of member ids lies in the map `rings`, four to a word, and is immutable while an endpoint_extra names it. Its word is
 * first ring word:32 | number of ids:24 | enum schedule_kind:8, from bit 0 up; 0: none, the ring says. */
enum schedule_shift {
	SCHEDULE_LENGTH_SHIFT = 32,
	SCHEDULE_KIND_SHIFT = 56,
};

/* A word of the map `schedule_cursors`: a phase, of which 2^32 are the whole sequence:32 | how often a member was taken:32. The next sequence, of whatever length,
 * is gone on with at the same phase. */
enum schedule_cursor_shift {
	SCHEDULE_COUNT_SHIFT = 32,
};

/* How a packet takes a member from the sequence. */
enum schedule_kind {
	SCHEDULE_NEXT = 1,    /* the next one, by a cursor of this CPU */
	SCHEDULE_RANDOM = 2,  /* the one at a place that its flow's hash says */
	SCHEDULE_LIGHTER = 3, /* of two such ones the less loaded */
};

/* A word of the map `member_loads`: load divided by weight in the low bits, in units of which a new connection adds as many as the bits from here on
 * say. Atomic: packets add what they give, the agent stores it anew. 0: nothing is known. */
enum member_load_shift {
	MEMBER_LOAD_STEP_SHIFT = 48,
};

enum schedule_limit {
	/* Ids of a sequence. */
	LIMIT_SCHEDULE_LENGTH = 1 << 14,
	/* Members that are looked at before the ring is asked. */
	LIMIT_SCHEDULE_TRIES = 8,
	/* Compare and swaps of a load that fail before a packet gives up. */
	LIMIT_LOAD_TRIES = 8,
};

#endif
