package bench

import (
	"slices"

	"github.com/shuntlb/shunt/internal/ring"
)

// poolRow describes the ring of n backends, and its change when every tenth of them (at least one)
// fails.
func poolRow(name string, n int) Row {
	members := make([]ring.Member, n)
	for i := range members {
		members[i] = ring.Member{ID: uint16(i), DIP: fleetDIP(i), Port: 8080, Weight: 1}
	}
	code := ring.SizeCode(slices.Repeat([]uint16{1}, n), 0)
	whole := ring.Build(code, members)
	dead := func(id uint16) bool { return id%10 == 0 }
	alive := slices.DeleteFunc(slices.Clone(members), func(m ring.Member) bool { return dead(m.ID) })
	chain := ring.Patch(whole, code, n, dead)
	exact := ring.Build(code, alive)
	return Row{Case: name, Fields: []Field{
		{"slots", len(whole)}, {"bytes", 2 * len(whole)},
		{"busiest", round(busiest(whole, n))},
		{"busiest_down", round(busiest(chain, len(alive)))},
		{"needless_chain", round(needless(whole, chain, dead))},
		{"needless_exact", round(needless(whole, exact, dead))},
	}}
}

// busiest returns how many percent more slots the busiest of n members has than the mean.
func busiest(slots []uint16, n int) float64 {
	count := make([]int, 1<<16)
	for _, id := range slots {
		count[id]++
	}
	return 100 * (float64(slices.Max(count))*float64(n)/float64(len(slots)) - 1)
}

// needless returns the percentage of slots that changed although their member did not fail.
func needless(before, after []uint16, dead func(uint16) bool) float64 {
	moved := 0
	for i, id := range before {
		if !dead(id) && after[i] != id {
			moved++
		}
	}
	return 100 * float64(moved) / float64(len(before))
}
