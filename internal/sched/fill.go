package sched

import (
	"cmp"
	"math"
	"slices"
)

// Fill shares `arriving` new connections among members as if each went to the member that is then
// least loaded relative to its weight (least-connections): loads are levelled from below, as water
// fills a basin. A member's load plus its share, divided by its weight, never exceeds the level at
// which the last connection is placed. Of equals the first gets more. Loads are in connections and
// must be current. With older loads, `arriving` must be the connections since then and until the
// next loads, over all muxes.
func Fill(members []Member, arriving int) []Share {
	out := make([]Share, len(members))
	weight, top := 0.0, math.Inf(1)
	for i, m := range members {
		out[i].ID = m.ID
		if m.Weight > 0 {
			weight += float64(m.Weight)
			// there one member alone takes more than all
			top = min(top, (m.Load+float64(arriving)+1)/float64(m.Weight))
		}
	}
	if weight == 0 || arriving <= 0 {
		return out
	}
	// Find a level below which fewer are needed than arrive; after the search the difference is
	// less than one for each member.
	low, high := 0.0, top
	for range 64 {
		mid := low + (high-low)/2
		if below(members, mid, arriving, nil) <= arriving {
			low = mid
		} else {
			high = mid
		}
	}
	left := arriving - below(members, low, arriving, out)
	// Members with the remaining connections are equal at the level, one each, except for rounding.
	order := make([]int, 0, len(members))
	for i, m := range members {
		if m.Weight > 0 {
			order = append(order, i)
		}
	}
	for left > 0 {
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(after(members[a], out[a]), after(members[b], out[b])) })
		for _, i := range order[:min(left, len(order))] {
			out[i].Share++
			left--
		}
	}
	return out
}

// after returns a member's load per unit of weight with one connection more.
func after(m Member, s Share) float64 { return (m.Load + float64(s.Share) + 1) / float64(m.Weight) }

// below counts the connections that members take before any load exceeds a level, and stores each
// member's count. A count above `most` is stored as most+1, because between loads there may be more
// connections than the type can hold.
func below(members []Member, level float64, most int, shares []Share) (n int) {
	for i, m := range members {
		takes := int(max(min(math.Floor(level*float64(m.Weight)-m.Load), float64(most)+1), 0))
		if shares != nil {
			shares[i].Share = uint32(takes)
		}
		n += takes
	}
	return n
}

// Mix permutes places by a seed, so that muxes, and CPUs of one mux, that use equal sequences do
// not use the same members at the same time. With random seeds every order is equally likely.
func Mix(sequence []uint16, seed uint64) []uint16 {
	out := slices.Clone(sequence)
	for i := len(out) - 1; i > 0; i-- {
		seed += 0x9e3779b97f4a7c15 // SplitMix64 (Steele, Lea, Flood 2014)
		z := (seed ^ seed>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		z ^= z >> 31
		j := int(z>>32) * (i + 1) >> 32
		out[i], out[j] = out[j], out[i]
	}
	return out
}
