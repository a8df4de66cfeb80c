package ring

import (
	"fmt"
	"testing"
)

// benchMembers returns sets of members that differ from ring to ring, because a repeated set would
// train the branch predictor.
func benchMembers(sets, n int) [][]Member {
	all := make([][]Member, sets)
	for s := range all {
		for i := range n {
			all[s] = append(all[s], Member{ID: uint16(i), DIP: address(uint32(s*n+i) * 2), Port: 80, Weight: 1})
		}
	}
	return all
}

func BenchmarkBuild(b *testing.B) {
	for _, c := range []struct {
		n    int
		code uint8
	}{{10, 10}, {100, 14}, {1000, 17}} {
		b.Run(fmt.Sprintf("%d/%d", c.n, 1<<c.code), func(b *testing.B) {
			sets, builder := benchMembers(200, c.n), new(Builder)
			for i := 0; b.Loop(); i++ {
				builder.Build(c.code, sets[i%len(sets)])
			}
		})
	}
	b.Run("exact/10/13313", func(b *testing.B) {
		sets, builder := benchMembers(200, 10), new(Builder)
		for i := 0; b.Loop(); i++ {
			builder.BuildExact(13313, sets[i%len(sets)])
		}
	})
}
