package ring

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// sipBytes is SipHash-c-d of any byte string, written only from section 2 of the paper.
func sipBytes(c, d int, key [16]byte, msg []byte) uint64 {
	rotate := func(x uint64, by int) uint64 { return x*(1<<by) | x/(1<<(64-by)) }
	k0, k1 := binary.LittleEndian.Uint64(key[:]), binary.LittleEndian.Uint64(key[8:])
	v := [4]uint64{k0, k1, k0, k1}
	for i := range v {
		v[i] ^= binary.BigEndian.Uint64([]byte("somepseudorandomlygeneratedbytes")[8*i:])
	}
	rounds := func(n int) {
		for range n {
			for _, step := range [][5]int{{0, 1, 13, 32, 0}, {2, 3, 16, 0, 0}, {0, 3, 21, 0, 0}, {2, 1, 17, 32, 2}} {
				a, b := step[0], step[1]
				v[a] += v[b]
				v[b] = rotate(v[b], step[2]) ^ v[a]
				if step[3] != 0 {
					v[a] = rotate(v[a], step[3])
				}
			}
		}
	}
	last := make([]byte, 8)
	copy(last, msg[len(msg)/8*8:])
	last[7] = byte(len(msg))
	for m := append(msg[:len(msg)/8*8:len(msg)/8*8], last...); len(m) > 0; m = m[8:] {
		word := binary.LittleEndian.Uint64(m)
		v[3] ^= word
		rounds(c)
		v[0] ^= word
	}
	v[2] ^= 0xff
	rounds(d)
	return v[0] ^ v[1] ^ v[2] ^ v[3]
}

// sequence returns 00 01 02 …, the input of the paper's vectors.
func sequence(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

// TestOracle checks the oracle against the published vectors of SipHash-2-4 (paper, appendix A, and
// the reference code's first).
func TestOracle(t *testing.T) {
	key := [16]byte(sequence(16))
	if got := sipBytes(2, 4, key, sequence(15)); got != 0xa129ca6149be45e5 {
		t.Errorf("SipHash-2-4 of 15 bytes: %#x", got)
	}
	if got := sipBytes(2, 4, key, nil); got != 0x726fdb47dd0e0e31 {
		t.Errorf("SipHash-2-4 of nothing: %#x", got)
	}
}

// vectors13 are SipHash-1-3 of 0, 8, … 40 bytes 00 01 02 … under the key 00 01 … 0f, computed with
// the oracle.
var vectors13 = []uint64{
	0xabac0158050fc4dc,
	0x369095118d299a8e,
	0xcc4fdd1a7d908b66,
	0xf464aeb267349c8c,
	0x81157b6c16a7b60d,
	0xc1d2363299e41531,
}

func TestSipHashVectors(t *testing.T) {
	key := KeyOf([16]byte(sequence(16)))
	for words, want := range vectors13 {
		var in []uint64
		for b := sequence(8 * words); len(b) > 0; b = b[8:] {
			in = append(in, binary.LittleEndian.Uint64(b))
		}
		if got := SipHash13(key, in...); got != want {
			t.Errorf("%d bytes: got %#016x, want %#016x", 8*words, got, want)
		}
	}
}

func TestSipHashEqualsOracle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := [16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "key"))
		words := rapid.SliceOfN(rapid.Uint64(), 0, 6).Draw(t, "words")
		var msg []byte
		for _, w := range words {
			msg = binary.LittleEndian.AppendUint64(msg, w)
		}
		if got, want := SipHash13(KeyOf(key), words...), sipBytes(1, 3, key, msg); got != want {
			t.Fatalf("got %#x, want %#x", got, want)
		}
	})
}

// TestFlowHashWords checks the input of the hash, with values that change if bytes or fields are
// swapped.
func TestFlowHashWords(t *testing.T) {
	key := Key{1, 2}
	got := FlowHash(key, 0x010203, netip.MustParseAddr("1.2.3.4"), netip.MustParseAddr("5.6.7.8"), 6, 0x1122, 0x3344)
	if want := SipHash13(key, 0x0102030405060708, 0x1122334401020306); got != want {
		t.Errorf("IPv4: got %#x, want %#x", got, want)
	}
	mapped := FlowHash(key, 0x010203, netip.MustParseAddr("::ffff:1.2.3.4"), netip.MustParseAddr("::ffff:5.6.7.8"), 6, 0x1122, 0x3344)
	if mapped != got {
		t.Errorf("mapped IPv4 differs")
	}
	got = FlowHash(key, 0x010203, netip.MustParseAddr("102:304:506:708:90a:b0c:d0e:f10"),
		netip.MustParseAddr("1112:1314:1516:1718:191a:1b1c:1d1e:1f20"), 17, 0x1122, 0x3344)
	if want := SipHash13(key, 0x0102030405060708, 0x090a0b0c0d0e0f10, 0x1112131415161718, 0x191a1b1c1d1e1f20, 0x1122334401020311); got != want {
		t.Errorf("IPv6: got %#x, want %#x", got, want)
	}
}

// TestTableHashIsFlowHashWithoutLength: with the length block appended to its input it equals the
// flow's hash.
func TestTableHashIsFlowHashWithoutLength(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := Key{rapid.Uint64().Draw(t, "k0"), rapid.Uint64().Draw(t, "k1")}
		n := rapid.SampledFrom([]int{4, 16}).Draw(t, "family")
		src, _ := netip.AddrFromSlice(rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, "src"))
		dst, _ := netip.AddrFromSlice(rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, "dst"))
		sport, dport, proto := rapid.Uint16().Draw(t, "sport"), rapid.Uint16().Draw(t, "dport"), rapid.Uint8().Draw(t, "proto")
		words := flowWords(0, src, dst, proto, sport, dport)
		padded := append(slices.Clone(words), uint64(len(words))*8<<56)
		if got, want := SipHashWords(key, padded...), FlowHash(key, 0, src, dst, proto, sport, dport); got != want {
			t.Fatalf("with the length %#x, FlowHash %#x", got, want)
		}
		if got, want := TableHash(key, 0, src, dst, proto, sport, dport), SipHashWords(key, words...); got != want {
			t.Fatalf("TableHash %#x, want %#x", got, want)
		}
	})
}
