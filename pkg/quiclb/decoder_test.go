package quiclb

import (
	"encoding/hex"
	"strings"
	"testing"
)

// TestDestination checks the position of the destination id, by RFC 8999 alone.
func TestDestination(t *testing.T) {
	tests := []struct {
		datagram string
		length   int
		cid      string
		long, ok bool
	}{
		{"40aabbccddee", 4, "aabbccdd", false, true},
		// the greased bit is ignored, and the reader must check for a short packet
		{"00aabb", 4, "aabb", false, true},
		{"c000000001" + "03aabbcc" + "00", 4, "aabbcc", true, true},
		{"8000000001" + "00" + "00", 4, "", true, true},
		{"c000000001" + "04aabbcc", 4, "", false, false},
		{"c000000001", 4, "", false, false},
		{"40", 4, "", false, false},
		{"", 4, "", false, false},
	}
	for _, test := range tests {
		cid, long, ok := Destination(unhex(t, test.datagram), test.length)
		if hex.EncodeToString(cid) != test.cid || long != test.long || ok != test.ok {
			t.Errorf("%s: %x, %v, %v, want %s, %v, %v", test.datagram, cid, long, ok, test.cid, test.long, test.ok)
		}
	}
}

// TestNewDecoderRefuses: NewDecoder refuses schemes whose CIDs cannot be distinguished.
func TestNewDecoderRefuses(t *testing.T) {
	plain, msquic := Scheme{Format: Plain, ServerIDLength: 3, NonceLength: 13}, Scheme{Format: Msquic, ServerIDLength: 4, NonceLength: 9}
	for want, schemes := range map[string][]Scheme{
		"schemes[1].id: 0: must be unique":                    {plain, plain},
		"schemes[1].format: msquic: must be the only scheme":  {plain, msquic},
		"schemes[0].nonceLength: 3: must be 4 to 18":          {{Format: Plain, ServerIDLength: 3, NonceLength: 3}},
		`schemes[0].format: "": must be quiclb, quiclb-plain`: {{}},
	} {
		if _, err := NewDecoder(schemes...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
