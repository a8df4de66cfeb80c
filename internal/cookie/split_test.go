package cookie

import (
	"testing"

	"pgregory.net/rapid"
)

// TestRestoreSplit: for any time that the mux saw within the last 2^20 - 1 ms, and any cookie, the
// echo of its timestamp restores that time.
func TestRestoreSplit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		newest, age := rapid.Uint32().Draw(t, "newest"), rapid.Uint32Range(0, 1<<20-1).Draw(t, "age")
		carried := rapid.Uint16Range(0, 1<<ShortBits-1).Draw(t, "cookie")
		own := newest - age
		stamp := SplitBits.Place(own, uint32(carried))
		if stamp == 1 && own&(1<<20-1) == 0 {
			return // 0 is not a timestamp
		}
		if got := RestoreSplit(stamp, newest); got != own || uint16(SplitBits.Cookie(stamp)) != carried {
			t.Fatalf("%#x with cookie %#x became %#x, and came back as %#x with %#x", own, carried, stamp, got, SplitBits.Cookie(stamp))
		}
	})
}

// TestSplitKeepsOrder: a client accepts the segments that a server sends within 2^19 ms in their
// order (RFC 7323 section 5.2; lemma 1 of protocol section 1.2).
func TestSplitKeepsOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first, later := rapid.Uint32().Draw(t, "first"), rapid.Uint32Range(0, 1<<19-1).Draw(t, "later")
		carried := uint32(rapid.Uint16Range(1, 1<<ShortBits-1).Draw(t, "cookie"))
		if a, b := SplitBits.Place(first, carried), SplitBits.Place(first+later, carried); int32(b-a) < 0 {
			t.Fatalf("%#x, then %#x: %#x is older than %#x", first, first+later, b, a)
		}
	})
}
