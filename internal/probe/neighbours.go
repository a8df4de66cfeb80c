package probe

import (
	"math/bits"
	"time"
)

// maxNeighbours bounds how many targets are planned together.
const maxNeighbours = 32

// neighbours returns how many targets with consecutive numbers are planned together: half of those
// that are due in one tick anyway, rounded down to a power of two. The data of neighbours is
// adjacent in memory, here, in probers and in the tables of BPF programs. That matters because with
// many targets most of their data is in no cache when they are probed.
func neighbours(rules int, interval time.Duration) uint32 {
	due := uint64(rules) * uint64(tick) / uint64(max(interval, tick))
	if due < 4 {
		return 1
	}
	return uint32(min(uint64(1)<<(bits.Len64(due/2)-1), maxNeighbours))
}

// drawLocked returns a random number in [0, 1) for the next plan of a target: the same for all
// neighbours that were planned for the same time. mu is held.
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
