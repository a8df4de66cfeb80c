package bench

import (
	"fmt"
	"math"
	"slices"
)

// Median returns the middle of the values, or the mean of the two middle ones if their number is
// even. It panics without values.
func Median(values []float64) float64 {
	if len(values) == 0 {
		panic("bench: median of nothing")
	}
	s := slices.Sorted(slices.Values(values))
	n := len(s)
	return (s[(n-1)/2] + s[n/2]) / 2
}

// Percentile returns the smallest value that at least the share p (0 < p <= 1) of the values does
// not exceed (nearest rank). It panics without values or with another p.
func Percentile(values []float64, p float64) float64 {
	if len(values) == 0 || !(p > 0 && p <= 1) {
		panic(fmt.Sprintf("bench: percentile %v of %d values", p, len(values)))
	}
	s := slices.Sorted(slices.Values(values))
	rank := int(math.Ceil(p * float64(len(s))))
	return s[max(rank, 1)-1]
}
