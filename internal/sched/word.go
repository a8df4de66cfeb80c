package sched

import "math"

// A packed load of a member, as packets compare it (bpf/abi/schedule.h): the load divided by the
// weight in its low 48 bits, and the increment of one connection in the 16 above. 0: the load is
// unknown.
const (
	StepShift = 48
	scoreMask = 1<<StepShift - 1
	unit      = 1<<16 - 1 // a connection divided by weight 1
	// Packets add increments until the next packed load is written, so the initial score is limited
	// to half of the range.
	maxScore = 1 << (StepShift - 1)
)

// WordOf returns the packed load of a member with a load in connections. A weight w counts as
// 65535/⌊65535/w⌋, within 0.8 % of it up to 1,000.
func WordOf(m Member) uint64 {
	if m.Weight == 0 {
		return 0
	}
	step := uint64(unit / m.Weight)
	score := min(math.Round(m.Load*float64(step)), maxScore)
	return step<<StepShift | uint64(max(score, 0))
}

// Given returns a packed load after one more connection.
func Given(word uint64) uint64 { return word + word>>StepShift }

// Lighter reports whether a connection goes to the member of packed load b instead of a, because b
// is lighter with it. False if one is unknown.
func Lighter(a, b uint64) bool {
	return a != 0 && b != 0 && a&scoreMask+a>>StepShift > b&scoreMask+b>>StepShift
}

// Draws returns the places that p2c compares in a sequence of n, by a flow's hash: two different
// ones, if there are two. Random takes the first.
func Draws(hash uint64, n int) (first, second int) {
	hash = mix64(hash)
	first = int(hash >> 32 * uint64(n) >> 32)
	return first, (first + 1 + int(hash&math.MaxUint32*uint64(n-1)>>32)) % n
}

// mix64 is the finalizer of MurmurHash3, as in bpf/lib/hash.h.
func mix64(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
