package packet

import "github.com/shuntlb/shunt/internal/dataplane"

// randomBits is the number of random bits of an initial sequence number (bpf/abi/probe.h, struct
// probe_rule).
const randomBits = 11

// round is one probe of a target: initial sequence number, and source port of the first attempt.
type round struct {
	isn  uint32
	port uint16
}

// newRound returns the round after `before` of a target, made from random bits. Its sequence number
// differs from that of before.
func newRound(number uint32, key dataplane.ProbeKey, random uint64, before round) round {
	const ports = 1<<16 - uint32(dataplane.ProbePortFirst) - uint32(dataplane.ProbeAttempts) + 1
	r := round{
		isn:  key.ISN(number) | uint32(random)&(1<<randomBits-1),
		port: dataplane.ProbePortFirst + uint16(uint64(uint32(random>>32))*uint64(ports)>>32),
	}
	if r.isn == before.isn {
		r.isn ^= 1
	}
	return r
}
