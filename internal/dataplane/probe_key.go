package dataplane

// ProbeKey is the key of a permutation of rule numbers (20 bits): a Feistel network with four rounds (Luby and Rackoff 1988). The initial sequence
// number of a probe has the hidden number, so that whoever sees probes of one rule learns nothing of other rules' probes. The C twin is probe_number in
// bpf/lib/probe.h. A key has 63 bits.
type ProbeKey uint64

const (
	probeHalf       = 10
	probeHalfMask   = 1<<probeHalf - 1
	probeRounds     = 4
	probeNumberFrom = 12 // bits of a sequence number below the hidden number
	probeMixFirst   = 0x9e3779b97f4a7c15
	probeMixSecond  = 0xd6e8feb86659fd93
)

// mix is the round function: 10 bits of a keyed hash of the half and the round.
func (k ProbeKey) mix(round, half uint32) uint32 {
	v := (uint64(k) ^ uint64(half)<<2 ^ uint64(round)) * probeMixFirst
	v ^= v >> 32
	v += uint64(k)
	v *= probeMixSecond
	v ^= v >> 32
	v *= probeMixFirst
	return uint32(v >> (64 - probeHalf))
}

// ISN is the initial sequence number of a rule's probe without its random bits, which are the lowest 11.
func (k ProbeKey) ISN(number uint32) uint32 {
	left, right := number>>probeHalf&probeHalfMask, number&probeHalfMask
	for round := range uint32(probeRounds) {
		left, right = right, left^k.mix(round, right)
	}
	return (left<<probeHalf | right) << probeNumberFrom
}

// Number is the inverse of ISN: the number of the rule whose probe has this sequence number, or up to 2047 above its initial one.
func (k ProbeKey) Number(seq uint32) uint32 {
	hidden := seq >> probeNumberFrom
	left, right := hidden>>probeHalf, hidden&probeHalfMask
	for round := range uint32(probeRounds) {
		left, right = right^k.mix(probeRounds-1-round, left), left
	}
	return left<<probeHalf | right
}
