package sched

import (
	"cmp"
	"math"
	"slices"
)

// Fill shares `arriving` new connections among members as if each went to the one that is then least loaded for its weight (least-connections): loads
// are levelled from below like water fills a basin. A member's load with what it gets, divided by its weight, is nowhere above the level that the last
// connection is put at. Of equals the first gets more. Loads are in connections; what they are at the time is what counts, so with loads of a while ago
// `arriving` has to be what came since and what comes until the next ones, over all muxes.
func Fill(members []Member, arriving int) []Share {
	out := make([]Share, len(members))
	weight, top := 0.0, math.Inf(1)
	for i, m := range members {
		out[i].ID = m.ID
		if m.Weight > 0 {
			weight += float64(m.Weight)
			top = min(top, (m.Load+float64(arriving)+1)/float64(m.Weight)) // there one alone takes more than all
		}
	}
	if weight == 0 || arriving <= 0 {
		return out
	}
	// Below the level fewer are needed than arrive, at the end of the search by less than one for each member.
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
	// What is left are equals at the level, one each, but for rounding.
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

// after is what a member's load is for each unit of its weight when it gets one connection more.
func after(m Member, s Share) float64 { return (m.Load + float64(s.Share) + 1) / float64(m.Weight) }

// below counts the connections that members take before any load is above a level, and notes each member's. One that takes more than `most` counts as one
// more than that: between loads there may be more connections than numbers.
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

// Mix puts places in an order that a seed decides, so that muxes, and CPUs of one, that go through equal sequences are not at the same members
// together. Every order is as likely as any other, given random seeds.
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
