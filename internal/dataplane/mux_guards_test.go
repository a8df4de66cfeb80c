package dataplane

import "testing"

// A limit is told as it was asked for, although the table keeps only the time between its tokens.
func TestRateOfInterval(t *testing.T) {
	for _, hz := range []uint64{100, 250, 1000} {
		guards := guardTable{hz: hz}
		for _, rate := range []uint64{0, 1, 7, 50, 1000, 12345, 50_000, 2_000_000, 100_000_000} {
			if got := guards.rate(limitInterval(rate, hz)); got != rate {
				t.Errorf("HZ %d: %d packets a second are told as %d", hz, rate, got)
			}
		}
	}
}
