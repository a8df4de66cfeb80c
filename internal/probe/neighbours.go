package probe

import (
	"math/bits"
	"time"
)

// maxNeighbours is how many rules are planned together at most.
const maxNeighbours = 32

// neighbours are how many rules with consecutive numbers are planned together: half of those that are due in one tick anyway, a power
// of two. What is known of them lies together in memory, here, in askers and in the tables of programs: of many rules most is in no
// cache when they are asked.
func neighbours(rules int, interval time.Duration) uint32 {
	due := uint64(rules) * uint64(tick) / uint64(max(interval, tick))
	if due < 4 {
		return 1
	}
	return uint32(min(uint64(1)<<(bits.Len64(due/2)-1), maxNeighbours))
}

// drawLocked is a random number in [0, 1) for the next plan of a rule: the same for all neighbours that were planned for the same time.
func (e *Engine) drawLocked(id uint32) float64 {
	r := &e.table.rules[id]
	n := neighbours(max(len(e.table.rules)-len(e.table.unused), e.table.expected), e.table.pace(id).interval)
	if n == 1 {
		return e.options.Random()
	}
	return float64(mix(mix(e.table.salt^uint64(id/n))^uint64(r.plan))>>11) / (1 << 53)
}

// mix spreads a number over all bits (the finalizer of SplitMix64; Steele, Lea and Flood, 2014).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
