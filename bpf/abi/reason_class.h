/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Classes of reasons, and how a list of reasons becomes enumerations. */
#ifndef SHUNT_ABI_REASON_CLASS_H
#define SHUNT_ABI_REASON_CLASS_H

/* The end of a packet that a reason counts. */
enum reason_class {
	REASON_CLASS_DROP = 0,     /* discarded */
	REASON_CLASS_PASS = 1,     /* left to the kernel's network stack */
	REASON_CLASS_TX = 2,       /* forwarded, delivered, or answered by the program */
	REASON_CLASS_CONSUMED = 3, /* kept by the program or given to its agent */
	REASON_CLASS_INFO = 4,     /* counted in addition to the reason that ended the packet, or without a packet */
};

/* A list of reasons is a macro that applies its argument R to each: R(name, number, class). These two make of it an
 * enumeration of the numbers and one of the classes, which BTF takes to the agents. */
#define REASON_VALUE(name, number, class) name = number,
#define REASON_CLASS_VALUE(name, number, class) CLASS_OF_##name = REASON_CLASS_##class,

#endif
