package cookie

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/ring"
)

// vectors are P of ids under PRFs, computed with an independent implementation of protocol section 1.6.
var vectors = []struct {
	prf    uint64
	id     uint16
	cookie uint16
}{
	{0, 0, 0x0000}, {0, 1, 0x47e1}, {0, 5, 0x3997}, {0, 100, 0x43a6}, {0, 2748, 0x209e}, {0, 4095, 0x25e8},
	{1, 0, 0x7dfa}, {1, 1, 0x3ad9}, {1, 5, 0x4a63}, {1, 100, 0x7e34}, {1, 2748, 0x3c5e}, {1, 4095, 0x46bb},
	{0x0123456789abcdef, 0, 0x50fd}, {0x0123456789abcdef, 1, 0x1af8}, {0x0123456789abcdef, 5, 0x6187},
	{0x0123456789abcdef, 100, 0x72d2}, {0x0123456789abcdef, 2748, 0x27a6}, {0x0123456789abcdef, 4095, 0x2bdf},
	{0xffffffffffffffff, 0, 0x1f39}, {0xffffffffffffffff, 1, 0x086a}, {0xffffffffffffffff, 5, 0x4f96},
	{0x8000000000000001, 0, 0x0b7a}, {0x8000000000000001, 2748, 0x1fde}, {0x8000000000000001, 4095, 0x37bb},
	{0xdeadbeefcafef00d, 0, 0x0094}, {0xdeadbeefcafef00d, 1, 0x5228}, {0xdeadbeefcafef00d, 5, 0x223e},
	{0xdeadbeefcafef00d, 100, 0x6db5}, {0xdeadbeefcafef00d, 2748, 0x6932}, {0xdeadbeefcafef00d, 4095, 0x7524},
}

func TestVectors(t *testing.T) {
	for _, v := range vectors {
		for kid := range uint8(2) {
			want := v.cookie | uint16(kid)<<15
			if got := Encode(v.prf, kid, v.id); got != want {
				t.Errorf("id %d, kid %d under %#x: %#04x, want %#04x", v.id, kid, v.prf, got, want)
			}
			if got, ok := Decode(v.prf, want); got != v.id || !ok || KeyID(want) != kid {
				t.Errorf("%#04x under %#x: id %d, %v, kid %d", want, v.prf, got, ok, KeyID(want))
			}
		}
	}
}

// TestPRFWords fixes what is hashed, with values that no swap of bytes or fields leaves equal.
func TestPRFWords(t *testing.T) {
	key := [16]byte{0: 1, 8: 2}
	got := PRF(key, Flow{0x010203, netip.MustParseAddrPort("1.2.3.4:4386"), netip.MustParseAddrPort("5.6.7.8:13124"), 6})
	if want := ring.SipHash13(ring.Key{K0: 1, K1: 2}, 0x0102030405060708, 0x1122334401020306); got != want {
		t.Errorf("IPv4: got %#x, want %#x", got, want)
	}
	got = PRF(key, Flow{0x010203, netip.MustParseAddrPort("[102:304:506:708:90a:b0c:d0e:f10]:4386"),
		netip.MustParseAddrPort("[1112:1314:1516:1718:191a:1b1c:1d1e:1f20]:13124"), 17})
	if want := ring.SipHash13(ring.Key{K0: 1, K1: 2}, 0x0102030405060708, 0x090a0b0c0d0e0f10, 0x1112131415161718, 0x191a1b1c1d1e1f20,
		0x1122334401020311); got != want {
		t.Errorf("IPv6: got %#x, want %#x", got, want)
	}
}

// TestEveryCookieHasOneMeaning: under one PRF no two of the 2^15 texts share a cookie, and 4,096 of them are ids.
func TestEveryCookieHasOneMeaning(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		prf := rapid.Uint64().Draw(t, "prf")
		seen, ids := map[uint32]bool{}, 0
		for x := range uint32(1 << 15) {
			c := permute(prf, x)
			if seen[c] || c >= 1<<15 || invert(prf, c) != x {
				t.Fatalf("%#x becomes %#x, seen %v, and then %#x", x, c, seen[c], invert(prf, c))
			}
			seen[c] = true
			if id, ok := Decode(prf, uint16(x)); ok {
				ids++
				if id > MaxID || Encode(prf, 0, id) != uint16(x) {
					t.Fatalf("%#x reads as %d, whose cookie is %#x", x, id, Encode(prf, 0, id))
				}
			}
		}
		if ids != MaxID+1 {
			t.Fatalf("%d cookies read as an id", ids)
		}
	})
}

// TestChangedBits: of the changes of a cookie that an attacker may try without the key, none is accepted much oftener than by chance, and none
// moves the id by a chosen difference with odds worth trying (protocol section 1.6: at most 0.129 and 2e-4).
func TestChangedBits(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 6))
	deltas := []uint16{3, 0x4001, 0x2a55, 0x7fff, 0x0180}
	for bit := range 15 {
		deltas = append(deltas, 1<<bit)
	}
	const tries = 100_000
	for _, delta := range deltas {
		accepted, moved := 0, map[uint16]int{}
		for range tries {
			prf, id := r.Uint64(), uint16(r.UintN(MaxID+1))
			if other, ok := Decode(prf, Encode(prf, 0, id)^delta); ok {
				accepted++
				moved[other^id]++
			}
		}
		if share := float64(accepted) / tries; share > 0.129+0.004 || share < 0.10 {
			t.Errorf("change %#04x: %.4f of the cookies are accepted", delta, share)
		}
		for by, n := range moved {
			if share := float64(n) / tries; share > 5e-4 {
				t.Errorf("change %#04x moves the id by %#03x with %.5f", delta, by, share)
			}
		}
	}
}

// TestOtherTuples: what one flow's cookie says of another flow is chance.
func TestOtherTuples(t *testing.T) {
	key, accepted := [16]byte{1, 2, 3}, 0
	vip := netip.MustParseAddrPort("203.0.113.10:80")
	flow := func(port uint16) Flow {
		return Flow{Client: netip.AddrPortFrom(netip.MustParseAddr("198.51.100.11"), port), VIP: vip, Protocol: 6}
	}
	mine := Encode(PRF(key, flow(1)), 0, 77)
	const tries = 60_000
	same := 0
	for port := range uint16(tries) {
		if id, ok := Decode(PRF(key, flow(port+2)), mine); ok {
			accepted++
			if id == 77 {
				same++
			}
		}
	}
	if share := float64(accepted) / tries; share < 0.12 || share > 0.13 || same > 10 {
		t.Errorf("%.4f of other tuples accept the cookie, %d of them as the same id", share, same)
	}
}
