package cookie_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/cookie"
)

func TestShortCookiesNameTheirMember(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		prf, kid := rapid.Uint64().Draw(rt, "prf"), rapid.Uint8Range(0, 1).Draw(rt, "kid")
		secret := cookie.InOrder
		if rapid.Bool().Draw(rt, "shuffled") {
			secret = cookie.SecretOf([16]byte{rapid.Byte().Draw(rt, "key"), 7})
		}
		seen := map[uint16]bool{}
		for id := uint16(0); id <= cookie.MaxShortID; id++ {
			c := cookie.EncodeShort(prf, kid, id, secret)
			if c >= 1<<cookie.ShortBits || cookie.ShortKeyID(c) != kid || seen[c] {
				rt.Fatalf("id %d: cookie %#x of key %d, seen before: %v", id, c, kid, seen[c])
			}
			seen[c] = true
			if got, ok := cookie.DecodeShort(prf, c, secret); !ok || got != id {
				rt.Fatalf("id %d: cookie %#x names %d, %v", id, c, got, ok)
			}
		}
		// Exactly these cookies are valid.
		valid := 0
		for c := uint16(0); c < 1<<(cookie.ShortBits-1); c++ {
			if _, ok := cookie.DecodeShort(prf, c, secret); ok {
				valid++
			}
		}
		if valid != cookie.MaxShortID+1 {
			rt.Fatalf("%d of %d read as cookies", valid, 1<<(cookie.ShortBits-1))
		}
	})
}

func TestOffsetsAreReadWhileTheirEchoIsYoung(t *testing.T) {
	guard, reach := uint32(2000), uint32(1<<20-2000)
	rapid.Check(t, func(rt *rapid.T) {
		made, c := rapid.Uint32().Draw(rt, "made"), rapid.Uint16Range(0, 1<<cookie.ShortBits-1).Draw(rt, "cookie")
		stamp := cookie.PlaceOffset(made, c)
		// From a clock that is behind by the guard to one that is ahead by nearly all the reach.
		for _, later := range []uint32{-guard, -guard + 1, 0, 1, reach - 1, rapid.Uint32Range(0, reach-1).Draw(rt, "later")} {
			if got := cookie.OffsetCookie(stamp, made+later); got != c {
				rt.Fatalf("%d ms later cookie %#x reads as %#x", int32(later), c, got)
			}
		}
		for _, later := range []uint32{-guard - 1, reach} {
			if cookie.OffsetCookie(stamp, made+later) == c {
				rt.Fatalf("%d ms later the cookie still reads", int32(later))
			}
		}
	})
}
