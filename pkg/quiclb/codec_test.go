package quiclb

import (
	"bytes"
	"crypto/aes"
	"errors"
	"testing"

	"pgregory.net/rapid"
)

// nibbles are hexadecimal digits, so that halves of any length are slices of them.
type nibbles []byte

func toNibbles(b []byte) (n nibbles) {
	for _, v := range b {
		n = append(n, v>>4, v&15)
	}
	return n
}

// bytes packs the digits. An odd number of digits is padded with a zero, first or last.
func (n nibbles) bytes(zeroFirst bool) (b []byte) {
	if len(n)%2 == 1 {
		if zeroFirst {
			n = append(nibbles{0}, n...)
		} else {
			n = append(append(nibbles{}, n...), 0)
		}
	}
	for i := 0; i < len(n); i += 2 {
		b = append(b, n[i]<<4|n[i+1])
	}
	return b
}

// oracle encrypts server id and nonce by the prose of the draft, digit by digit: halves are halves
// of the digits.
func oracle(t *rapid.T, key Key, text []byte) []byte {
	block, err := aes.NewCipher(key[:])
	if err != nil {
		t.Fatal(err)
	}
	if len(text) == 16 {
		out := make([]byte, 16)
		block.Encrypt(out, text)
		return out
	}
	digits := toNibbles(text)
	left, right := digits[:len(text)], digits[len(text):]
	mix := func(number byte, from, to nibbles, fromRight bool) nibbles {
		in := append(from.bytes(fromRight), make([]byte, 16)...)[:16]
		in[14], in[15] = byte(len(text)), number
		out := make([]byte, 16)
		block.Encrypt(out, in)
		mask := toNibbles(out)
		if !fromRight && len(to)%2 == 1 {
			mask = mask[1:] // the right half begins with the low nibble of its first byte
		}
		mixed := make(nibbles, len(to))
		for i := range to {
			mixed[i] = to[i] ^ mask[i]
		}
		return mixed
	}
	right = mix(1, left, right, false)
	left = mix(2, right, left, true)
	right = mix(3, left, right, false)
	left = mix(4, right, left, true)
	return append(append(nibbles{}, left...), right...).bytes(false)
}

// anyScheme draws a valid scheme.
func anyScheme(t *rapid.T) Scheme {
	s := Scheme{ID: uint8(rapid.IntRange(0, MaxID).Draw(t, "id")), Format: rapid.SampledFrom([]Format{QUICLB, QUICLB, Plain, Msquic, Mvfst}).Draw(t, "format")}
	switch s.Format {
	case Msquic:
		s.ID, s.ServerIDLength = 0, msquicServerID
		s.NonceLength = msquicNonce
	case Mvfst:
		s.ID, s.ServerIDLength = 0, rapid.IntRange(2, 4).Draw(t, "server id length")
		s.NonceLength = fixedNonce(Mvfst, s.ServerIDLength)
	default:
		s.ServerIDLength = rapid.IntRange(1, 15).Draw(t, "server id length")
		s.NonceLength = rapid.IntRange(4, 19-s.ServerIDLength).Draw(t, "nonce length")
	}
	if s.Format == QUICLB {
		copy(s.Key[:], bytesOf(t, 16, "key"))
	}
	return s
}

func bytesOf(t *rapid.T, n int, name string) []byte {
	return rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, name)
}

// TestCodecProperty: for all lengths of all formats, CIDs equal the oracle's, decode to the same
// server id and nonce whatever bytes follow, and do not decode under another config id.
func TestCodecProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := anyScheme(t)
		c, err := NewCodec(s)
		if err != nil {
			t.Fatal(err)
		}
		serverID, nonce := bytesOf(t, s.ServerIDLength, "server id"), bytesOf(t, s.NonceLength, "nonce")
		spare := rapid.Byte().Draw(t, "spare")
		before := bytesOf(t, 3, "before")
		cid := c.Encode(bytes.Clone(before), spare, serverID, nonce)
		if !bytes.Equal(cid[:3], before) {
			t.Fatalf("encode changed what it appends to: %x, was %x", cid[:3], before)
		}
		cid = cid[3:]
		if len(cid) != s.Length() {
			t.Fatalf("%d bytes, want %d", len(cid), s.Length())
		}
		if s.Format == QUICLB {
			want := append([]byte{s.ID<<5 | spare&0x1f}, oracle(t, s.Key, append(bytes.Clone(serverID), nonce...))...)
			if !bytes.Equal(cid, want) {
				t.Fatalf("%x, want %x", cid, want)
			}
		}
		longer := append(bytes.Clone(cid), bytesOf(t, 4, "after")...)
		gotID, gotNonce, err := c.Decode(longer)
		if err != nil || !bytes.Equal(gotID, serverID) || !bytes.Equal(gotNonce, nonce) {
			t.Fatalf("%x: %x, %x, %v, want %x, %x", cid, gotID, gotNonce, err, serverID, nonce)
		}
		if _, _, err := c.Decode(cid[:len(cid)-1]); err == nil {
			t.Fatalf("%d of %d bytes were read", len(cid)-1, len(cid))
		}
		if s.Format == QUICLB || s.Format == Plain {
			other := s
			other.ID = (s.ID + 1) % (MaxID + 1)
			o, err := NewCodec(other)
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := o.Decode(cid); err == nil {
				t.Fatalf("config %d read a CID of config %d", other.ID, s.ID)
			}
		}
	})
}

// TestDecoderProperty: the decoder reads a CID with the configuration that made it, and reports a
// CID of an unknown configuration.
func TestDecoderProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var schemes []Scheme
		known := map[uint8]*Codec{}
		for id := range uint8(MaxID + 1) {
			if !rapid.Bool().Draw(t, "known") {
				continue
			}
			s := anyScheme(t)
			if s.Format == Msquic || s.Format == Mvfst {
				continue
			}
			s.ID = id
			c, err := NewCodec(s)
			if err != nil {
				t.Fatal(err)
			}
			schemes, known[id] = append(schemes, s), c
		}
		d, err := NewDecoder(schemes...)
		if err != nil {
			t.Fatal(err)
		}
		cid := bytesOf(t, MaxLength, "cid")[:rapid.IntRange(0, MaxLength).Draw(t, "length")]
		got, ok := d.ServerID(cid)
		var want []byte
		if len(cid) > 0 && known[cid[0]>>5] != nil {
			want, _, err = known[cid[0]>>5].Decode(cid)
		} else {
			err = errors.New("no such configuration")
		}
		if ok != (err == nil) || !bytes.Equal(got, want) {
			t.Fatalf("%x: %x, %v, want %x, %v", cid, got, ok, want, err)
		}
	})
}
