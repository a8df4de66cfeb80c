package host

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/ring"
)

// TestRingCache checks, for any previous calls, that the cached ring equals a new one, that a ring
// just used is not built again, and that the cache stays within its bound, with keys and empty
// rings counted.
func TestRingCache(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	const most = 1 << 12
	c := ringCache{most: most}
	for range 3000 {
		m := plan.Seats{RingCode: uint8(ring.CodeMin + r.IntN(3)), Generation: r.Int64()}
		targets := map[uint16]*plan.Target{}
		var seats []ring.Seat
		// the keys of the last are too large
		for id := range uint16([]int{1, 2, 3, 300}[r.IntN(4)]) {
			s := plan.Seat{ID: id, Weight: uint16(r.IntN(3)), Backup: r.IntN(5) == 0, Down: r.IntN(5) == 0}
			m.Seats = append(m.Seats, s)
			if r.IntN(10) == 0 {
				continue
			}
			at := plan.Target{ID: id, DIP: netip.AddrFrom4([4]byte{10, 0, byte(r.IntN(2)), byte(id)}), Port: 80 + uint16(r.IntN(2))}
			targets[id] = &at
			seats = append(seats, ring.Seat{Member: ring.Member{ID: id, DIP: at.DIP, Port: at.Port, Weight: s.Weight}, Backup: s.Backup, Down: s.Down})
		}
		got := c.walked(&m, targets)
		if want := new(ring.Builder).Walked(m.RingCode, seats); !slices.Equal(got, want) {
			t.Fatalf("of %+v: %v, want %v", seats, got, want)
		}
		if again := c.walked(&m, targets); len(got) > 0 && len(m.Seats) < 300 && &again[0] != &got[0] {
			t.Fatalf("%+v: built again", seats)
		}
		for _, g := range []map[string][]uint16{c.young, c.old} {
			bytes := 0
			for name, kept := range g {
				bytes += 2*len(kept) + len(name)
			}
			if bytes > most || len(g) > most/ringCacheEntry {
				t.Fatalf("%d rings of %d bytes are kept, at most %d may be", len(g), bytes, most)
			}
		}
	}
}
