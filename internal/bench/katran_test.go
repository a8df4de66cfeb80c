package bench

import (
	"testing"

	"github.com/shuntlb/shunt/internal/dataplane/benchrun"
)

// Katran's pools are the mux's: every backend is in one, and a ring gives all members their share.
func TestKatranSets(t *testing.T) {
	for _, c := range []muxCase{{traffic: v4(1, 1), members: benchBackends}, {traffic: v6(1, 20000), members: few}} {
		sets := c.katranSets()
		seen := map[int]bool{}
		for _, set := range sets {
			slots := make([]int, len(set.Reals))
			for _, member := range set.Ring {
				slots[member]++
			}
			for i, real := range set.Reals {
				seen[real] = true
				if want := benchrun.KatranRing / c.members; slots[i] < want || slots[i] > want+1 {
					t.Errorf("%d members: real %d has %d slots, want %d or one more", c.members, real, slots[i], want)
				}
			}
		}
		if len(seen) != benchBackends || len(sets)*c.members != benchBackends {
			t.Errorf("%d members: %d reals in %d pools", c.members, len(seen), len(sets))
		}
	}
}
