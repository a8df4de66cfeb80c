package index

import (
	"testing"

	"pgregory.net/rapid"
)

// TestIndexIsAMap compares an Index with a map, with many equal hashes and some at the ends of the
// range.
func TestIndexIsAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		hashes := rapid.SampledFrom([]uint64{0, 1 << 63, 1<<64 - 1, rapid.Uint64().Draw(t, "hash")})
		hash := map[uint32]uint64{}
		x := Index{Hash: func(n uint32) uint64 { return hash[n] }}
		in := map[uint32]bool{}
		number := rapid.Uint32Max(uint32(rapid.SampledFrom([]int{8, 60, 3000}).Draw(t, "numbers")))
		for range rapid.IntRange(0, 400).Draw(t, "steps") {
			n := number.Draw(t, "number")
			if _, known := hash[n]; !known {
				hash[n] = hashes.Draw(t, "its")
			}
			if in[n] {
				x.Remove(n)
				delete(in, n)
			} else {
				x.Add(n)
				in[n] = true
			}
			for m, h := range hash {
				got, ok := x.Find(h, func(k uint32) bool { return k == m })
				if ok != in[m] || ok && got != m {
					t.Fatalf("number %d: %d, %v, want %v", m, got, ok, in[m])
				}
			}
			if x.Len() != len(in) {
				t.Fatalf("%d numbers, want %d", x.Len(), len(in))
			}
		}
	})
}

// TestIndexTakesLittle checks the bytes of many numbers, and after they are removed.
func TestIndexTakesLittle(t *testing.T) {
	x := Index{Hash: func(n uint32) uint64 { return uint64(n) * 0x9e3779b97f4a7c15 }}
	const many = 140_000
	for n := range uint32(many) {
		x.Add(n)
	}
	if got := len(x.slots) * 4; got > many*8 {
		t.Errorf("%d bytes for %d numbers", got, many)
	}
	for n := range uint32(many) {
		x.Remove(n)
	}
	if len(x.slots) > 1024 {
		t.Errorf("%d slots for none", len(x.slots))
	}
}
