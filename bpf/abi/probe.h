/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Probes by packets. */
#ifndef SHUNT_ABI_PROBE_H
#define SHUNT_ABI_PROBE_H

#include "abi/limit.h"

enum probe_limit {
	/* Rules: their numbers have 20 bits in sequence numbers, with room to spare. */
	LIMIT_PROBE_RULES = 1 << 18,
	/* Lines of texts (requests, outer headers) of all rules together, and bytes of a line. */
	LIMIT_PROBE_TEXTS = 1 << 19,
	LIMIT_PROBE_LINE = 64,
	/* Bytes of a request. Below 2048: what acknowledges it then carries the rule's number still. And with all headers it
	 * fits in the 1472 bytes that drivers leave to a frame in half a page. */
	LIMIT_PROBE_REQUEST = 1024,
	/* Source ports of probes: outside of the kernel's usual ephemeral ones. The attempts of a round have consecutive ports. */
	LIMIT_PROBE_PORT_FIRST = 61440,
	LIMIT_PROBE_ATTEMPTS = 4,
	/* TCP window of probes, bytes: two segments of the 536 bytes that a server sends to who names no MSS (RFC 9293 section
	 * 3.7.1). Nobody reads more than a status line. */
	LIMIT_PROBE_TCP_WINDOW = 1072,
};

/* What is asked of a server. */
enum probe_kind {
	PROBE_TCP = 0,  /* a SYN-ACK is the answer */
	PROBE_HTTP = 1, /* the status of the first line of its answer is */
};

/* A probe to be made, one cache line. Its number n is found again in what the server acknowledges: a round's initial sequence
 * number is P(n) << 12 | random:11, bit 11 zero, where P permutes 20 bits under the key, and requests have less than 2048 bytes. The agent writes a record while its
 * round is 0. A reader that met it in between can only note a result of a round that nobody waits for. */
struct probe_rule {
	__u8 peer[16];  /* who answers: the server, through a tunnel the VIP */
	__u8 local[16]; /* our own address */
	__u64 nexthop;  /* atomic: enum nexthop_bit, to the peer or the tunnel's end */
	__u64 round;    /* atomic: initial sequence number:32 | source port of the first attempt:16, from bit 0 up; 0: none */
	__u64 lines;    /* of texts: enum probe_lines_shift */
	__u16 request_len;
	__u16 request_sum; /* folded sum of the request (lib/csum.h) */
	__u16 port_be;     /* of the peer */
	__u8 kind;         /* enum probe_kind */
	__u8 outer_len;    /* bytes of the outer headers, enum overhead; 0: no tunnel */
};
SHUNT_ASSERT_SIZE(struct probe_rule, 64);

/* Where the lines of a rule's texts are told: the request's first one, the first of the others behind it, and that of the outer headers
 * of segments without data, 20 bits each. What many requests begin or go on with is there once. */
enum probe_lines_shift {
	PROBE_LINES_REQUEST_SHIFT = 0,
	PROBE_LINES_REST_SHIFT = 20,
	PROBE_LINES_OUTER_SHIFT = 40,
};

enum probe_round_shift {
	PROBE_ROUND_PORT_SHIFT = 32,
	/* Of the rule's number in an initial sequence number. */
	PROBE_NUMBER_SHIFT = 12,
	/* Of the words of `probe_key`: key:63, and this bit when there are probes. */
	PROBE_ON_SHIFT = 63,
};

/* What a round came to. Later ones replace earlier ones up to PROBE_FINAL; the first one from there on stays. */
enum probe_state {
	PROBE_SILENT = 0,
	PROBE_UNREACHABLE = 1, /* an ICMP error said so */
	PROBE_CONNECTED = 2,   /* SYN-ACK; the request was sent */
	PROBE_ANSWERED = 3,    /* SYN-ACK to PROBE_TCP */
	PROBE_STATUS = 4,      /* a status line */
	PROBE_ODD = 5,         /* data that begins with no whole status line, or with that of an interim answer */
	PROBE_CLOSED = 6,      /* connected, then closed without data */
	PROBE_REFUSED = 7,     /* RST to the SYN */
	PROBE_BROKEN = 8,      /* connected, then RST */
	PROBE_STUCK = 9,       /* connected, but this machine could not send the request */
	PROBE_FINAL = PROBE_ANSWERED,
};

/* The result of the rule of the same number. */
struct probe_result {
	__u64 word; /* atomic: initial sequence number:32 | status:16 | enum probe_state:8 | attempt, from 0:8, from bit 0 up */
	__u64 time; /* of that, CLOCK_MONOTONIC, nanoseconds; written before word */
};
SHUNT_ASSERT_SIZE(struct probe_result, 16);

enum probe_result_shift {
	PROBE_RESULT_STATUS_SHIFT = 32,
	PROBE_RESULT_STATE_SHIFT = 48,
	PROBE_RESULT_ATTEMPT_SHIFT = 56,
};

/* A line of a text: requests, outer headers. What is behind a text's end is zero. */
struct probe_text {
	__u8 bytes[LIMIT_PROBE_LINE];
};
SHUNT_ASSERT_SIZE(struct probe_text, 64);

#endif
