package sim

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/ring"
)

// pool returns backends with the given numbers.
func pool(numbers ...int) Pool {
	var p Pool
	for _, n := range numbers {
		p = append(p, ring.Member{ID: uint16(n), DIP: netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + n)}), Port: 80, Weight: 1})
	}
	return p
}

// grown returns pools that grow from first to last backends, one at a time.
func grown(first, last int) (pools []Pool) {
	for n := first; n <= last; n++ {
		var numbers []int
		for i := range n {
			numbers = append(numbers, i)
		}
		pools = append(pools, pool(numbers...))
	}
	return pools
}

func hashes(seed uint64, n int) []uint64 {
	r := rand.New(rand.NewPCG(seed, 1))
	out := make([]uint64, n)
	for i := range out {
		out[i] = r.Uint64()
	}
	return out
}

// One change breaks no connection with either repair. Without repair it breaks as many as the ring
// moved, and with plain hashing nearly all.
func TestOneChange(t *testing.T) {
	const n = 20000
	const seed = 7
	t.Logf("seed %d", seed)
	for _, c := range []struct {
		rule        Rule
		least, most float64 // percent
	}{{PresentOwner, 9, 13}, {Modulo, 88, 92}, {PreviousRing, 0, 0}, {LastOwner, 0, 0}} {
		got := 100 * float64(Broken(c.rule, grown(9, 10), hashes(seed, n))[0]) / n
		if got < c.least || got > c.most {
			t.Errorf("rule %s breaks %.1f %%: want %g to %g", c.rule, got, c.least, c.most)
		}
	}
}

// Several changes: the previous ring loses the owner before last, and the last owner keeps it
// unless the slot moved twice.
func TestSeveralChanges(t *testing.T) {
	const n = 20000
	const seed = 8
	t.Logf("seed %d", seed)
	pools := grown(7, 10)
	previous, last, none := Broken(PreviousRing, pools, hashes(seed, n)), Broken(LastOwner, pools, hashes(seed, n)), Broken(PresentOwner, pools, hashes(seed, n))
	if previous[0] != 0 || last[0] != 0 {
		t.Errorf("the first change breaks %d and %d", previous[0], last[0])
	}
	if last[1] == 0 || last[1]*3 > previous[1] || previous[2] >= none[2] {
		t.Errorf("broken: %v by the previous ring, %v by the last owner, %v by neither", previous, last, none)
	}
}

// For any changes: lost connections stay lost, repair loses no more than no repair, and an
// unchanged pool loses none.
func TestBrokenProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var pools []Pool
		for range rapid.IntRange(2, 5).Draw(t, "pools") {
			numbers := rapid.SliceOfNDistinct(rapid.IntRange(0, 12), 1, 12, rapid.ID[int]).Draw(t, "members")
			slices.Sort(numbers)
			pools = append(pools, pool(numbers...))
		}
		flows := hashes(rapid.Uint64().Draw(t, "seed"), 500)
		none := Broken(PresentOwner, pools, flows)
		for _, rule := range []Rule{PresentOwner, Modulo, PreviousRing, LastOwner} {
			got := Broken(rule, pools, flows)
			if !slices.IsSorted(got) {
				t.Errorf("rule %s: %v", rule, got)
			}
			if (rule == PreviousRing || rule == LastOwner) && (got[0] != 0 || got[len(got)-1] > none[len(none)-1]) {
				t.Errorf("rule %s breaks %v, none %v", rule, got, none)
			}
			if same := Broken(rule, []Pool{pools[0], pools[0], pools[0]}, flows); same[1] != 0 {
				t.Errorf("rule %s breaks %v when nothing changes", rule, same)
			}
		}
	})
}
