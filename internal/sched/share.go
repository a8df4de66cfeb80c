package sched

import (
	"cmp"
	"slices"
)

// Share is the relative share of a member.
type Share struct {
	ID    uint16
	Share uint32 // 0: none
}

// MaxLength is the maximum number of places of a sequence: 32 KiB.
const MaxLength = 1 << 14

// sum returns the sum of the shares.
func sum(shares []Share) (total uint64) {
	for _, s := range shares {
		total += uint64(s.Share)
	}
	return total
}

// Fit returns shares with a sum of at most `most`, which must not be less than their number; zero
// shares are left out. Shares in lowest terms that fit are exact. Otherwise each member keeps at
// least one place, and its part of the whole differs from the wanted part s by less than (1 +
// n·s)/most, where n is the number of members with one place.
func Fit(shares []Share, most int) []Share {
	out := make([]Share, 0, len(shares))
	divisor := uint32(0)
	for _, s := range shares {
		if s.Share > 0 {
			out = append(out, s)
			divisor = gcd(divisor, s.Share)
		}
	}
	for i := range out {
		out[i].Share /= divisor
	}
	if total := sum(out); total > uint64(most) {
		apportion(out, most)
	}
	return out
}

func gcd(a, b uint32) uint32 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// apportion distributes `places` among shares above 0: one to those that are due less, the rest by
// largest remainder (Hamilton's method).
func apportion(shares []Share, places int) {
	order := make([]int, len(shares)) // smallest first
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(shares[a].Share, shares[b].Share) })
	total, left := sum(shares), uint64(places)
	for len(order) > 0 && uint64(shares[order[0]].Share)*left < total {
		s := &shares[order[0]]
		total, left = total-uint64(s.Share), left-1
		s.Share, order = 1, order[1:]
	}
	rest := left
	remainder := make(map[int]uint64, len(order))
	for _, i := range order {
		due := uint64(shares[i].Share) * left
		remainder[i], shares[i].Share = due%total, uint32(due/total)
		rest -= due / total
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(remainder[b], remainder[a]) })
	for _, i := range order[:rest] {
		shares[i].Share++
	}
}
