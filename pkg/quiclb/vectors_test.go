package quiclb

import (
	"bytes"
	"encoding/hex"
	"testing"
)

func unhex(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestVectors checks the vectors of draft-ietf-quic-load-balancers-21, appendix B, and the example
// of section 5.4.2.4. The last encrypted vector begins with 0x12 in the draft, which is config id
// 0; its config id is 3. The second unencrypted vector is left out because its nonce has nine
// hexadecimal digits. The first octet of all vectors encodes the length.
func TestVectors(t *testing.T) {
	const key = "8f95f09245765f80256934e50c66207f"
	tests := []struct {
		id                        uint8
		key, serverID, nonce, cid string
	}{
		{0, "", "c4605e", "4504cc4f", "07c4605e4504cc4f"},
		{0, key, "ed793a", "ee080dbf", "0720b1d07b359d3c"},
		{1, key, "ed793a51d49b8f5fab65", "ee080dbf48", "2fcc381bc74cb4fbad2823a3d1f8fed2"},
		{2, key, "ed793a51d49b8f5f", "ee080dbf48c0d1e5", "504dd2d05a7b0de9b2b9907afb5ecf8cc3"},
		{3, key, "ed793a51d49b8f5fab", "ee080dbf48c0d1e55d", "725779c9cc86beb3a3a4a3ca96fce4bfe0cdbc"},
		{0, "fdf726a9893ec05c0632d3956680baf0", "31441a", "9c69c275", "0767947d29be054a"},
	}
	for _, test := range tests {
		serverID, nonce, cid := unhex(t, test.serverID), unhex(t, test.nonce), unhex(t, test.cid)
		s := Scheme{ID: test.id, Format: Plain, ServerIDLength: len(serverID), NonceLength: len(nonce)}
		if test.key != "" {
			s.Format, s.Key = QUICLB, Key(unhex(t, test.key))
		}
		c, err := NewCodec(s)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Encode(nil, byte(len(cid)-1), serverID, nonce); !bytes.Equal(got, cid) {
			t.Errorf("encode %s, %s: %x, want %s", test.serverID, test.nonce, got, test.cid)
		}
		gotID, gotNonce, err := c.Decode(cid)
		if err != nil || !bytes.Equal(gotID, serverID) || !bytes.Equal(gotNonce, nonce) {
			t.Errorf("decode %s: %x, %x, %v, want %s, %s", test.cid, gotID, gotNonce, err, test.serverID, test.nonce)
		}
	}
}

// TestFixedFormats checks, bit by bit, where msquic and mvfst place the server id.
func TestFixedFormats(t *testing.T) {
	tests := []struct {
		format               Format
		serverID, nonce, cid string
		spare                byte
	}{
		{Msquic, "a1b2c3d4", "010203040506070809", "99a1b2c3d4010203040506070809", 0x99},
		// Version 1: 01 and the 16 bits 1010000110110010, then six bits that are free.
		{Mvfst, "a1b2", "0102030405", "686cbf0102030405", 0xff},
		{Mvfst, "a1b2c3", "01020304", "bfa1b2c301020304", 0xff},
		{Mvfst, "a1b2c3d4", "010203", "c0a1b2c3d4010203", 0x00},
	}
	for _, test := range tests {
		config := Config{Format: test.format, ServerID: unhex(t, test.serverID)}
		c, err := NewCodec(config.Scheme())
		if err != nil {
			t.Fatal(err)
		}
		if got := hex.EncodeToString(c.Encode(nil, test.spare, config.ServerID, unhex(t, test.nonce))); got != test.cid {
			t.Errorf("%s: encode %s: %s, want %s", test.format, test.serverID, got, test.cid)
		}
		got, _, err := c.Decode(unhex(t, test.cid))
		if err != nil || hex.EncodeToString(got) != test.serverID {
			t.Errorf("%s: decode %s: %x, %v, want %s", test.format, test.cid, got, err, test.serverID)
		}
	}
}
