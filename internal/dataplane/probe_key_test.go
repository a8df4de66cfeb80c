package dataplane

import (
	"math/bits"
	"testing"

	"pgregory.net/rapid"
)

// TestProbeKeyPermutes: every number comes back, whatever up to 2047 is added to the sequence number, and no two numbers share one.
func TestProbeKeyPermutes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		key := ProbeKey(rapid.Uint64Max(1<<63-1).Draw(rt, "key"))
		random := rapid.Uint32Max(1<<11-1).Draw(rt, "random")
		sent := rapid.Uint32Max(1<<11-1).Draw(rt, "sent")
		seen := make([]bool, 1<<20)
		for number := range uint32(1 << 20) {
			isn := key.ISN(number)
			if isn&0xfff != 0 || seen[isn>>12] {
				rt.Fatalf("number %d: sequence number %#x has low bits or is another number's", number, isn)
			}
			seen[isn>>12] = true
			if got := key.Number(isn + random + sent); got != number {
				rt.Fatalf("number %d comes back as %d", number, got)
			}
		}
	})
}

// TestProbeKeyHidesNeighbours: the hidden numbers of neighbouring rules, and of one rule under keys that differ by a bit, look unrelated: of their 20 bits
// half differ, each as often as not, and no difference is likelier than others. With numbers XOR key all differences of neighbours are the same few.
func TestProbeKeyHidesNeighbours(t *testing.T) {
	const keys, numbers = 64, 1024
	flips, total := [20]int{}, 0
	differences := map[uint32]int{}
	for k := range uint64(keys) {
		key := ProbeKey((k + 1) * 0x2545f4914f6cdd1d >> 1)
		for n := range uint32(numbers) {
			for _, other := range []uint32{key.ISN(n ^ 1), (key ^ 1<<(k%63)).ISN(n)} {
				d := (key.ISN(n) ^ other) >> 12
				differences[d]++
				total++
				for b := range 20 {
					flips[b] += int(d >> b & 1)
				}
			}
		}
	}
	for b, n := range flips {
		// Standard deviation: sqrt(total)/2, 181 of 131,072; neighbours are counted from both ends.
		if off := n - total/2; off < -1500 || off > 1500 {
			t.Errorf("bit %d differs %d times of %d", b, n, total)
		}
	}
	for d, n := range differences {
		if n > 12 { // 0.125 on average
			t.Errorf("difference %020b (%d bits) comes %d times of %d", d, bits.OnesCount32(d), n, total)
		}
	}
}
