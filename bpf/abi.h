/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Every struct, enum and limit that the BPF programs and the Go agents share.
 *
 * They are in the rooms of abi/, each in one of them only. Go's side is generated from them (bpf2go reads it back from BTF); nothing is typed twice.
 * Rules: no unions, no bitfields, explicit zeroed padding; addresses are 16 bytes, IPv4 as ::ffff:a.b.c.d;
 * a field that holds network byte order ends in _be; enum values are append-only. A change that a running
 * program or a pinned map could not live with bumps ABI_VERSION.
 *
 * Publication rule (design section 6): words marked "atomic" are one aligned 64-bit store from Go and one
 * aligned load here. Everything else in a record is immutable while any published word refers to it.
 */
#ifndef SHUNT_ABI_H
#define SHUNT_ABI_H

#include "abi/limit.h"
#include "abi/reason.h"
#include "abi/endpoint.h"
#include "abi/guard.h"
#include "abi/flow.h"
#include "abi/quic.h"
#include "abi/backend.h"
#include "abi/schedule.h"
#include "abi/snat.h"
#include "abi/nat.h"
#include "abi/config.h"
#include "abi/cookie.h"
#include "abi/connection.h"
#include "abi/probe.h"
#include "abi/burst.h"
#include "abi/host.h"
#include "abi/binding.h"
#include "abi/host_flow.h"
#include "abi/host_cookie.h"
#include "abi/host_snat.h"
#include "abi/meter.h"
#include "abi/repair.h"
#include "abi/co.h"
#include "abi/watch.h"

#endif
