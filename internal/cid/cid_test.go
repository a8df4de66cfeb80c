package cid

import (
	"bytes"
	"crypto/aes"
	"encoding/hex"
	"testing"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/pkg/quiclb"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestDraftVectors checks the vectors of draft-ietf-quic-load-balancers-21, appendix B, and its
// worked example of four passes. The first octet of the fourth vector must be 0x72, not 0x12 as in
// the draft, because its configuration is 3. The second vector without a key is left out because it
// lacks half an octet.
func TestDraftVectors(t *testing.T) {
	key := [16]byte(unhex(t, "8f95f09245765f80256934e50c66207f"))
	example := [16]byte(unhex(t, "fdf726a9893ec05c0632d3956680baf0"))
	for _, c := range []struct {
		name            string
		format          Format
		config          Config
		cid             string
		serverID, nonce string
	}{
		{"three octets", QUICLB, Config{0, key, 3, 4}, "0720b1d07b359d3c", "ed793a", "ee080dbf"},
		{"ten octets, nonce of five", QUICLB, Config{1, key, 10, 5}, "2fcc381bc74cb4fbad2823a3d1f8fed2", "ed793a51d49b8f5fab65", "ee080dbf48"},
		{"one block", QUICLB, Config{2, key, 8, 8}, "504dd2d05a7b0de9b2b9907afb5ecf8cc3", "ed793a51d49b8f5f", "ee080dbf48c0d1e5"},
		{"nine and nine", QUICLB, Config{3, key, 9, 9}, "725779c9cc86beb3a3a4a3ca96fce4bfe0cdbc", "ed793a51d49b8f5fab", "ee080dbf48c0d1e55d"},
		{"in clear", Plain, Config{0, [16]byte{}, 3, 4}, "07c4605e4504cc4f", "c4605e", "4504cc4f"},
		{"example of four passes", QUICLB, Config{0, example, 3, 4}, "0767947d29be054a", "31441a", "9c69c275"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := Set{c.format, []Config{c.config}}
			if err := s.Check(); err != nil {
				t.Fatal(err)
			}
			got, ok := s.Member(unhex(t, c.cid))
			if want := top(unhex(t, c.serverID)); !ok || got != want {
				t.Errorf("member %#x, %v: expected %#x", got, ok, want)
			}
			var fill [MaxLength]byte
			fill[0] = unhex(t, c.cid)[0]
			copy(fill[1:], unhex(t, c.serverID+c.nonce))
			if id := s.Mint(0, got, fill); hex.EncodeToString(id) != c.cid {
				t.Errorf("minted %x, expected %s", id, c.cid)
			}
		})
	}
}

// TestClearFormats: in all formats the topmost 12 bits of the server id are the member.
func TestClearFormats(t *testing.T) {
	for _, c := range []struct {
		name   string
		set    Set
		cid    string
		member uint16
		ok     bool
	}{
		{"msquic", Set{Format: MSQUIC}, "ffabc367450001020304050607ee", 0xabc, true},
		{"msquic, five octets", Set{Format: MSQUIC}, "ffabc36745", 0xabc, true},
		{"msquic, four octets", Set{Format: MSQUIC}, "ffabc367", 0, false},
		{"mvfst 0", Set{Format: MVFST}, "3fabcdef0102030405", 0, false},
		{"mvfst 1", Set{Format: MVFST}, "6af340", 0b101010111100, true},
		{"mvfst 1, two octets", Set{Format: MVFST}, "6af3", 0, false},
		{"mvfst 2", Set{Format: MVFST}, "80abcdef", 0xabc, true},
		{"mvfst 2, three octets", Set{Format: MVFST}, "80abcd", 0, false},
		{"mvfst 3", Set{Format: MVFST}, "ffabcdef01", 0xabc, true},
		{"mvfst 3, four octets", Set{Format: MVFST}, "ffabcdef", 0, false},
		{"no octet", Set{Format: MSQUIC}, "", 0, false},
		{"unroutable", Set{Plain, []Config{{0, [16]byte{}, 2, 4}}}, "e0123456789abc", 0, false},
		{"another configuration's", Set{Plain, []Config{{0, [16]byte{}, 2, 4}}}, "20123456789abc", 0, false},
		{"one of two", Set{Plain, []Config{{0, [16]byte{}, 2, 4}, {6, [16]byte{}, 2, 4}}}, "df123456789abc", 0x123, true},
		{"too short", Set{Plain, []Config{{0, [16]byte{}, 2, 4}}}, "00123456789a", 0, false},
		{"longer", Set{Plain, []Config{{0, [16]byte{}, 2, 4}}}, "00123456789abcdef0", 0x123, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.set.Check(); err != nil {
				t.Fatal(err)
			}
			if got, ok := c.set.Member(unhex(t, c.cid)); got != c.member || ok != c.ok {
				t.Errorf("%#x, %v: expected %#x, %v", got, ok, c.member, c.ok)
			}
		})
	}
}

// TestRoundTrip: ids of servers are read, with any lengths, but not with the id of another
// configuration or truncated.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		serverID := rapid.IntRange(2, 15).Draw(t, "server id")
		nonce := rapid.IntRange(4, 19-serverID).Draw(t, "nonce")
		c := Config{
			ID: uint8(rapid.IntRange(0, 6).Draw(t, "id")), Key: [16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "key")),
			ServerID: uint8(serverID), Nonce: uint8(nonce),
		}
		s := Set{QUICLB, []Config{c}}
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
		plain := rapid.SliceOfN(rapid.Byte(), 2, 2).Draw(t, "plain")
		var fill [MaxLength]byte
		copy(fill[:], rapid.SliceOfN(rapid.Byte(), MaxLength, MaxLength).Draw(t, "fill"))
		id := s.Mint(0, top(plain), fill)
		if got, ok := s.Member(id); !ok || got != top(plain) {
			t.Fatalf("%x: %#x, %v: expected %#x", id, got, ok, top(plain))
		}
		more := append(bytes.Clone(id), rapid.SliceOf(rapid.Byte()).Draw(t, "more")...)
		if got, ok := s.Member(more); !ok || got != top(plain) {
			t.Fatalf("%x: %#x, %v: expected %#x", more, got, ok, top(plain))
		}
		if _, ok := s.Member(id[:rapid.IntRange(0, len(id)-1).Draw(t, "cut")]); ok {
			t.Fatal("half an id was read")
		}
		id[0] ^= byte(rapid.IntRange(1, 7).Draw(t, "another")) << 5
		if got, ok := s.Member(id); ok {
			t.Fatalf("another configuration's id was read: %#x", got)
		}
	})
}

// TestServersAgree: ids of pkg/quiclb are read, in all formats.
func TestServersAgree(t *testing.T) {
	formats := map[Format]quiclb.Format{QUICLB: quiclb.QUICLB, Plain: quiclb.Plain, MSQUIC: quiclb.Msquic, MVFST: quiclb.Mvfst}
	rapid.Check(t, func(t *rapid.T) {
		s := Set{Format: rapid.SampledFrom([]Format{QUICLB, Plain, MSQUIC, MVFST}).Draw(t, "format")}
		scheme := quiclb.Scheme{Format: formats[s.Format]}
		switch s.Format {
		case MSQUIC:
			scheme.ServerIDLength, scheme.NonceLength = 4, 9
		case MVFST:
			scheme.ServerIDLength = rapid.IntRange(2, 4).Draw(t, "server id")
			scheme.NonceLength = 7 - scheme.ServerIDLength
		default:
			scheme.ID, scheme.ServerIDLength = uint8(rapid.IntRange(0, 6).Draw(t, "id")), rapid.IntRange(2, 15).Draw(t, "server id")
			scheme.NonceLength = rapid.IntRange(4, 19-scheme.ServerIDLength).Draw(t, "nonce")
			scheme.Key = quiclb.Key(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "key"))
			s.Configs = []Config{{ID: scheme.ID, Key: scheme.Key, ServerID: uint8(scheme.ServerIDLength), Nonce: uint8(scheme.NonceLength)}}
		}
		codec, err := quiclb.NewCodec(scheme)
		if err != nil {
			t.Fatal(err)
		}
		serverID := rapid.SliceOfN(rapid.Byte(), scheme.ServerIDLength, scheme.ServerIDLength).Draw(t, "server")
		nonce := rapid.SliceOfN(rapid.Byte(), scheme.NonceLength, scheme.NonceLength).Draw(t, "nonce octets")
		id := codec.Encode(nil, rapid.Byte().Draw(t, "spare"), serverID, nonce)
		if got, ok := s.Member(id); !ok || got != quiclb.Member(serverID) {
			t.Fatalf("%x of %x: %#x, %v: expected %#x", id, serverID, got, ok, quiclb.Member(serverID))
		}
	})
}

// TestMintClear checks Mint for the formats in clear.
func TestMintClear(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := Set{Format: rapid.SampledFrom([]Format{MSQUIC, MVFST}).Draw(t, "format")}
		member := rapid.Uint16Range(0, 1<<MemberBits-1).Draw(t, "member")
		fill := [MaxLength]byte(rapid.SliceOfN(rapid.Byte(), MaxLength, MaxLength).Draw(t, "fill"))
		id := s.Mint(rapid.IntRange(1, 3).Draw(t, "version"), member, fill)
		if got, ok := s.Member(id); !ok || got != member {
			t.Fatalf("%x: %#x, %v: expected %#x", id, got, ok, member)
		}
	})
}

// TestSchedules runs the same rounds as lib/aes.h, with plain arithmetic instead of tables, and
// compares with crypto/aes.
func TestSchedules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := [16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "key"))
		e, d := Encryption(key), Decryption(key)
		if e.Key() != key || d.DecryptionKey() != key {
			t.Fatal("a key does not come back")
		}
		block, err := aes.NewCipher(key[:])
		if err != nil {
			t.Fatal(err)
		}
		in := rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "block")
		want := make([]byte, 16)
		block.Encrypt(want, in)
		if got := naiveEncrypt(e, in); !bytes.Equal(got, want) {
			t.Fatalf("encrypted %x: %x, expected %x", in, got, want)
		}
		// The equivalent inverse cipher: its inner keys are those of encryption in reverse order,
		// under InvMixColumns.
		for round := 1; round < 10; round++ {
			for i := range 4 {
				if got := mix(d[4*round+i]); got != e[4*(10-round)+i] {
					t.Fatalf("round %d: key %#x, expected %#x", round, got, e[4*(10-round)+i])
				}
			}
		}
		if [4]uint32(d[:4]) != [4]uint32(e[40:]) || [4]uint32(d[40:]) != [4]uint32(e[:4]) {
			t.Fatal("the outer keys are not those of encryption")
		}
	})
}

// mix is MixColumns of one column.
func mix(w uint32) (out uint32) {
	for row := range 4 {
		b := w >> (8 * row) & 0xff
		for i, factor := range []uint32{2, 1, 1, 3} {
			out ^= times(b, factor) << (8 * ((row + i) % 4))
		}
	}
	return out
}

// naiveEncrypt is FIPS 197 section 5.1, octet by octet.
func naiveEncrypt(s Schedule, in []byte) []byte {
	var state [4]uint32
	for i := range state {
		state[i] = uint32(in[4*i]) | uint32(in[4*i+1])<<8 | uint32(in[4*i+2])<<16 | uint32(in[4*i+3])<<24
		state[i] ^= s[i]
	}
	for round := 1; round <= 10; round++ {
		var next [4]uint32
		for i := range next {
			for row := range 4 {
				next[i] |= sbox(state[(i+row)%4]>>(8*row)&0xff) << (8 * row)
			}
			if round < 10 {
				next[i] = mix(next[i])
			}
			next[i] ^= s[4*round+i]
		}
		state = next
	}
	out := make([]byte, 16)
	for i := range out {
		out[i] = byte(state[i/4] >> (8 * (i % 4)))
	}
	return out
}

func TestCheck(t *testing.T) {
	one := Config{ServerID: 3, Nonce: 13}
	with := func(change func(*Config)) []Config {
		c := one
		change(&c)
		return []Config{c}
	}
	for _, c := range []struct {
		set  Set
		want string
	}{
		{Set{}, "format 0: must be 1 to 4"},
		{Set{MVFST, []Config{one}}, "configurations: not with this format"},
		{Set{QUICLB, with(func(c *Config) { c.ID = 7 })}, "configuration 7: must be below 7"},
		{Set{Plain, []Config{one, one}}, "configuration 0: given twice"},
		{Set{QUICLB, with(func(c *Config) { c.ServerID = 1 })}, "configuration 0: server id of 1 octets: must be 2 to 15"},
		{Set{QUICLB, with(func(c *Config) { c.ServerID = 16 })}, "configuration 0: server id of 16 octets: must be 2 to 15"},
		{Set{QUICLB, with(func(c *Config) { c.Nonce = 3 })}, "configuration 0: nonce of 3 octets: must be 4 to 18"},
		{Set{QUICLB, with(func(c *Config) { c.Nonce = 17 })}, "configuration 0: server id and nonce of 20 octets: must be at most 19 together"},
		{Set{QUICLB, nil}, ""},
		{Set{MSQUIC, nil}, ""},
	} {
		got := ""
		if err := c.set.Check(); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%+v: %q, expected %q", c.set, got, c.want)
		}
	}
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name, datagram string
		long           bool
		dcid, scid     string
		ok             bool
	}{
		{"empty", "", false, "", "", false},
		{"short", "40010203", false, "010203", "", true},
		{"short without an id", "40", false, "", "", true},
		{"short, fixed bit greased", "00010203", false, "010203", "", true},
		{"long", "c0000000010201020301", true, "0102", "", false},
		{"long, whole", "c000000001020102030a0b0c", true, "0102", "0a0b0c", true},
		{"long, of version negotiation", "80000000000000", true, "", "", true},
		{"long, more behind", "c0000000010101000203", true, "01", "", true},
		{"long, cut in its version", "c0000000", true, "", "", false},
		{"long, without lengths", "c000000001", true, "", "", false},
		{"long, id beyond the end", "c0000000010301", true, "", "", false},
		{"long, nothing behind the id", "c00000000101aa", true, "aa", "", false},
		{"long, 20 octets", "c000000001140102030405060708090a0b0c0d0e0f101112131400", true, "0102030405060708090a0b0c0d0e0f1011121314", "", true},
		{"long, 21 octets", "c000000001150102030405060708090a0b0c0d0e0f10111213141500", true, "", "", false},
		{"long, source of 21 octets", "c00000000101aa150102030405060708090a0b0c0d0e0f101112131415", true, "aa", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, ok := Parse(unhex(t, c.datagram))
			if ok != c.ok || h.Long != c.long || hex.EncodeToString(h.DCID) != c.dcid || hex.EncodeToString(h.SCID) != c.scid {
				t.Errorf("%+v, %v", h, ok)
			}
		})
	}
}

// FuzzParse: the ids that are read are at the required positions.
func FuzzParse(f *testing.F) {
	f.Add([]byte{0xc0, 0, 0, 0, 1, 2, 1, 2, 3, 10, 11, 12})
	f.Add([]byte{0x40, 1, 2, 3})
	f.Fuzz(func(t *testing.T, datagram []byte) {
		h, ok := Parse(datagram)
		if len(datagram) > 0 && h.Long != (datagram[0] >= 0x80) {
			t.Errorf("long %v", h.Long)
		}
		if h.Long && (len(h.DCID) > MaxLength || len(h.SCID) > MaxLength) {
			t.Errorf("%d and %d octets", len(h.DCID), len(h.SCID))
		}
		if want := append(append(append([]byte{}, h.DCID...), byte(len(h.SCID))), h.SCID...); h.Long && ok && !bytes.HasPrefix(datagram[6:], want) {
			t.Errorf("%x is not in %x", want, datagram)
		}
	})
}
