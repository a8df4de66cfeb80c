package cookie

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// least returns the smallest span of the numbers in units of any step: a progression of n members
// has a span of less than n.
func least(xs []uint32) uint32 {
	best := uint32(prime)
	scaled := make([]uint32, len(xs))
	for step := uint32(1); step <= prime/2; step++ {
		for i, x := range xs {
			scaled[i] = x * step % prime
		}
		slices.Sort(scaled)
		gap := scaled[0] + prime - scaled[len(scaled)-1]
		for i := 1; i < len(scaled); i++ {
			gap = max(gap, scaled[i]-scaled[i-1])
		}
		best = min(best, prime-gap)
	}
	return best
}

// TestNoProgression: eight cookies of one flow for eight of ten members are numbers of one
// progression while ids are in order, and of none when they are shuffled. Otherwise a client that
// reconnects from one port could compute all cookies of its flow, and the number of members, from a
// few of them.
func TestNoProgression(t *testing.T) {
	const members, flows = 10, 60
	r := rand.New(rand.NewPCG(11, 12))
	found := map[bool]int{}
	for range flows {
		key := [16]byte{byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())}
		prf := r.Uint64()
		for _, secret := range []Secret{InOrder, SecretOf(key)} {
			var xs []uint32
			for _, id := range r.Perm(members)[:8] {
				xs = append(xs, uint32(Encode(prf, 0, uint16(id), secret)))
			}
			if least(xs) < members {
				found[secret != InOrder]++
			}
		}
	}
	if found[false] != flows || found[true] != 0 {
		t.Errorf("of %d flows, %d in order and %d shuffled are progressions", flows, found[false], found[true])
	}
}
