package cookie

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/ring"
)

// vectors are P of ids under PRFs, found by search: the only number below the prime that the
// definition maps to the id.
var vectors = []struct {
	prf    uint64
	id     uint16
	cookie uint16
}{
	{0, 0, 0x0000}, {0, 1, 0x0001}, {0, 5, 0x0005}, {0, 100, 0x0064},
	{0, 2748, 0x0abc}, {0, 4095, 0x0fff}, {1, 0, 0x0000}, {1, 1, 0x0001},
	{1, 5, 0x0005}, {1, 100, 0x0064}, {1, 2748, 0x0abc}, {1, 4095, 0x0fff},
	{0x123456789abcdef, 0, 0x7f5c}, {0x123456789abcdef, 1, 0x75c6}, {0x123456789abcdef, 5, 0x4f6e}, {0x123456789abcdef, 100, 0x403f},
	{0x123456789abcdef, 2748, 0x09fd}, {0x123456789abcdef, 4095, 0x123c}, {0xffffffffffffffff, 0, 0x3fee}, {0xffffffffffffffff, 1, 0x5421},
	{0xffffffffffffffff, 5, 0x2500}, {0x8000000000000001, 0, 0x3fed}, {0x8000000000000001, 2748, 0x4aa9}, {0x8000000000000001, 4095, 0x4fec},
	{0xdeadbeefcafef00d, 0, 0x1097}, {0xdeadbeefcafef00d, 1, 0x4017}, {0xdeadbeefcafef00d, 5, 0x7e2a}, {0xdeadbeefcafef00d, 100, 0x2156},
	{0xdeadbeefcafef00d, 2748, 0x3e4b}, {0xdeadbeefcafef00d, 4095, 0x51e7}, {0x1234567800007fed, 0, 0x76d3}, {0x1234567800007fed, 7, 0x76da},
	{0x1234567800007fed, 4095, 0x06e5}, {0xffda123456789abc, 0, 0x7da7}, {0xffda123456789abc, 7, 0x5a9b}, {0xffda123456789abc, 4095, 0x5b5b},
	{0xffdb123456789abc, 0, 0x5da7}, {0xffdb123456789abc, 7, 0x3a9b}, {0xffdb123456789abc, 4095, 0x3b5b},
}

func TestVectors(t *testing.T) {
	for _, v := range vectors {
		for kid := range uint8(2) {
			want := v.cookie | uint16(kid)<<15
			if got := Encode(v.prf, kid, v.id, InOrder); got != want {
				t.Errorf("id %d, kid %d under %#x: %#04x, want %#04x", v.id, kid, v.prf, got, want)
			}
			if got, ok := Decode(v.prf, want, InOrder); got != v.id || !ok || KeyID(want) != kid {
				t.Errorf("%#04x under %#x: id %d, %v, kid %d", want, v.prf, got, ok, KeyID(want))
			}
		}
	}
}

// TestPRFWords checks the input of the hash, with values that change if bytes or fields are
// swapped.
func TestPRFWords(t *testing.T) {
	key := [16]byte{0: 1, 8: 2}
	got := PRF(key, Flow{netip.MustParseAddrPort("1.2.3.4:4386"), netip.MustParseAddrPort("5.6.7.8:13124")})
	if want := ring.SipHashWords(ring.Key{K0: 1, K1: 2}, 0x0102030411223344); got != want {
		t.Errorf("IPv4: got %#x, want %#x", got, want)
	}
	got = PRF(key, Flow{netip.MustParseAddrPort("[102:304:506:708:90a:b0c:d0e:f10]:4386"), netip.MustParseAddrPort("[1112:1314:1516:1718:191a:1b1c:1d1e:1f20]:13124")})
	if want := ring.SipHashWords(ring.Key{K0: 1, K1: 2}, 0x0102030405060708, 0x090a0b0c0d0e0f10, 0x11223344); got != want {
		t.Errorf("IPv6: got %#x, want %#x", got, want)
	}
}

// TestEveryCookieHasOneMeaning: under one PRF each id has exactly one cookie, and all other cookies
// are invalid.
func TestEveryCookieHasOneMeaning(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		prf, ids, secret := rapid.Uint64().Draw(t, "prf"), 0, InOrder
		if rapid.Bool().Draw(t, "shuffled") {
			secret = SecretOf([16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "key")))
		}
		for x := range uint16(1 << 15) {
			if id, ok := Decode(prf, x, secret); ok {
				ids++
				if id > MaxID || Encode(prf, 0, id, secret) != x {
					t.Fatalf("%#x reads as %d, whose cookie is %#x", x, id, Encode(prf, 0, id, secret))
				}
			}
		}
		if ids != MaxID+1 {
			t.Fatalf("%d cookies read as an id", ids)
		}
	})
}

// TestPairsAreIndependent tries all factors and offsets of a small prime: for any two cookies,
// exactly one pair maps them to any two different numbers. So one cookie and its number reveal
// nothing about the number of another cookie, except that it differs.
func TestPairsAreIndependent(t *testing.T) {
	const bits, small = 5, 31
	for first := range uint32(small) {
		for second := range uint32(small) {
			if first == second {
				continue
			}
			ways := map[[2]uint32]int{}
			for a := uint64(1); a < small; a++ {
				for b := range uint64(small) {
					prf := a | b<<(64-bits)
					ways[[2]uint32{read(prf, first, bits, small), read(prf, second, bits, small)}]++
				}
			}
			for pair, n := range ways {
				if n != 1 {
					t.Fatalf("%d and %d read as %d in %d ways", first, second, pair, n)
				}
			}
			if len(ways) != small*(small-1) {
				t.Fatalf("%d and %d read as %d pairs", first, second, len(ways))
			}
		}
	}
}

// TestFactorsAndOffsetsAreEven tries all significant bits of PRFs: no factor and no offset of a
// flow occurs much more often than another, so that TestPairsAreIndependent holds up to this error;
// and no factor is a multiple of the prime.
func TestFactorsAndOffsetsAreEven(t *testing.T) {
	for _, of := range []struct {
		bits  uint
		prime uint32
		most  float64 // maximum frequency of a number, relative to the mean
	}{{Bits, prime, 1.002}, {shortKidShift, shortPrime, 1.02}} {
		factors, offsets := make([]int, of.prime), make([]int, of.prime)
		for low := range uint64(1) << of.bits {
			for more := range uint64(1) << (of.bits - 1) {
				if low != 0 && low < uint64(of.prime) {
					factors[low] += 1 << (of.bits - 1)
					offsets[low] += 1 << (of.bits - 1)
					break
				}
				factors[factor(low|more<<of.bits, of.bits, of.prime)]++
				offsets[offset(low<<(64-of.bits)|more<<(65-2*of.bits), of.bits, of.prime)]++
			}
		}
		if factors[0] != 0 {
			t.Errorf("of prime %d a factor is 0", of.prime)
		}
		all := float64(uint64(1) << (2*of.bits - 1))
		for n := range of.prime {
			if share := float64(max(factors[n], offsets[n])) * float64(of.prime-1) / all; share > of.most {
				t.Errorf("of prime %d number %d comes up %.4f times as often as it should", of.prime, n, share)
			}
		}
	}
}

// TestChangedBits: of the changes to a cookie that an attacker may try without the key, none is
// accepted more often than by chance, and none shifts the id by a chosen difference with a useful
// probability (protocol section 1.6 allows 0.129 and 2e-4).
func TestChangedBits(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 6))
	deltas := []uint16{3, 0x4001, 0x2a55, 0x7fff, 0x0180}
	for bit := range 15 {
		deltas = append(deltas, 1<<bit)
	}
	const tries, members = 200_000, 4096
	for _, delta := range deltas {
		accepted, moved, apart := 0, map[uint16]int{}, map[uint16]int{}
		for range tries {
			prf, id := r.Uint64(), uint16(r.UintN(members))
			if other, ok := Decode(prf, Encode(prf, 0, id, InOrder)^delta, InOrder); ok && other < members {
				accepted++
				moved[other^id]++
				apart[other-id]++
			}
		}
		if share := float64(accepted) / tries; share > 0.129 || share < 0.121 {
			t.Errorf("change %#04x: %.4f of the cookies are accepted", delta, share)
		}
		for _, by := range []map[uint16]int{moved, apart} {
			for difference, n := range by {
				if share := float64(n) / tries; share > 2e-4 {
					t.Errorf("change %#04x moves the id by %#03x with %.5f", delta, difference, share)
				}
			}
		}
	}
}

// TestOtherTuples: a cookie of one flow is valid for another flow only by chance.
func TestOtherTuples(t *testing.T) {
	key, accepted := [16]byte{1, 2, 3}, 0
	vip := netip.MustParseAddrPort("203.0.113.10:80")
	flow := func(port uint16) Flow {
		return Flow{Client: netip.AddrPortFrom(netip.MustParseAddr("198.51.100.11"), port), VIP: vip}
	}
	mine := Encode(PRF(key, flow(1)), 0, 77, InOrder)
	const tries = 60_000
	same := 0
	for port := range uint16(tries) {
		if id, ok := Decode(PRF(key, flow(port+2)), mine, InOrder); ok && id < 4096 {
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
