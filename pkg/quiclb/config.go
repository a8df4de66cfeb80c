package quiclb

import (
	"encoding/hex"
	"fmt"
	"io"
)

// Format is the encoding of a server's id in a connection id.
type Format string

const (
	// QUICLB is QUIC-LB with a key (draft-ietf-quic-load-balancers-21 sections 5.4.1 and 5.4.2).
	// Without the key an observer can neither read the server nor link two CIDs of one connection.
	QUICLB Format = "quiclb"
	// Plain is QUIC-LB in clear (section 5.4), for trusted networks and labs. Any observer can link
	// two CIDs of a connection.
	Plain Format = "quiclb-plain"
	// Msquic is the encoding of msquic with QUIC_LOAD_BALANCING_SERVER_ID_FIXED: a random byte, 4
	// bytes of server id, 9 bytes of its own. It has no bits for a config id.
	Msquic Format = "msquic"
	// Mvfst is the encoding that mvfst writes and Katran reads: two bits of version, then a host id
	// of 2 (version 1), 3 (2) or 4 bytes (3); 8 bytes in all. It has no bits for a config id.
	Mvfst Format = "mvfst"
)

const (
	// MaxID is the largest config id; 7 marks an unroutable CID (section 3.1 of the draft).
	MaxID = 6
	// MaxLength is the longest connection id of QUIC version 1 (RFC 9000 section 17.2).
	MaxLength = 20

	minServerID, maxServerID = 1, 15
	minNonce, maxNonce       = 4, 18
	maxServerIDAndNonce      = MaxLength - 1
	// oneBlock is the length of server id and nonce together that fills one block of AES.
	oneBlock = 16

	msquicServerID, msquicNonce = 4, 9
	mvfstLength                 = 8
)

// Key is the AES-128 key that a balancer and its servers share. It is printed as "(key)".
type Key [16]byte

// Format implements fmt.Formatter. No verb prints the key.
func (Key) Format(s fmt.State, _ rune) { io.WriteString(s, "(key)") }

// Scheme is the part of a configuration that a balancer and all servers behind it share.
type Scheme struct {
	// ID is the config id, 0 to MaxID, in the topmost three bits of each CID; 0 for Msquic and
	// Mvfst, which have no room for it.
	ID     uint8
	Format Format
	// Key is used by QUICLB only.
	Key Key
	// ServerIDLength and NonceLength are in bytes: 1 to 15 and 4 to 18, at most 19 together, for
	// QUICLB and Plain; fixed by the format for the others.
	ServerIDLength, NonceLength int
}

// Length returns the length of the scheme's CIDs in bytes.
func (s Scheme) Length() int { return 1 + s.ServerIDLength + s.NonceLength }

// Validate checks the scheme. The error names the field as in a file, its value and the allowed
// values.
func (s Scheme) Validate() error {
	if s.ID > MaxID {
		return fmt.Errorf("id: %d: must be 0 to %d", s.ID, MaxID)
	}
	switch s.Format {
	case QUICLB, Plain:
		return s.validateLengths()
	case Msquic, Mvfst:
	default:
		return fmt.Errorf("format: %q: must be %s, %s, %s or %s", s.Format, QUICLB, Plain, Msquic, Mvfst)
	}
	switch {
	case s.ID != 0:
		return fmt.Errorf("id: %d: must be 0 with format %s, which has no room for it", s.ID, s.Format)
	case s.Format == Msquic && s.ServerIDLength != msquicServerID:
		return fmt.Errorf("serverId: %d bytes: must be %d with format %s", s.ServerIDLength, msquicServerID, s.Format)
	case s.Format == Mvfst && (s.ServerIDLength < 2 || s.ServerIDLength > 4):
		return fmt.Errorf("serverId: %d bytes: must be 2 to 4 with format %s", s.ServerIDLength, s.Format)
	case s.NonceLength != fixedNonce(s.Format, s.ServerIDLength):
		return fmt.Errorf("nonceLength: %d: must be left out with format %s", s.NonceLength, s.Format)
	}
	return nil
}

func (s Scheme) validateLengths() error {
	switch {
	case s.ServerIDLength < minServerID || s.ServerIDLength > maxServerID:
		return fmt.Errorf("serverId: %d bytes: must be %d to %d", s.ServerIDLength, minServerID, maxServerID)
	case s.NonceLength < minNonce || s.NonceLength > maxNonce:
		return fmt.Errorf("nonceLength: %d: must be %d to %d", s.NonceLength, minNonce, maxNonce)
	case s.ServerIDLength+s.NonceLength > maxServerIDAndNonce:
		return fmt.Errorf("nonceLength: %d: must be at most %d with a server id of %d bytes: both have %d",
			s.NonceLength, maxServerIDAndNonce-s.ServerIDLength, s.ServerIDLength, maxServerIDAndNonce)
	}
	return nil
}

// fixedNonce returns the number of bytes that belong to the server in a CID of a format with fixed
// lengths.
func fixedNonce(f Format, serverID int) int {
	if f == Msquic {
		return msquicNonce
	}
	return mvfstLength - 1 - serverID
}

// Config is one configuration of a server.
type Config struct {
	// ID, Format and Key are as in Scheme.
	ID     uint8
	Format Format
	Key    Key
	// ServerID is the server's id before encryption. Its topmost 12 bits are the balancer's member.
	ServerID []byte
	// NonceLength is in bytes; 0 for Msquic and Mvfst.
	NonceLength int
	// Active reports whether new CIDs may be made under it. The others only serve CIDs in use.
	Active bool
}

// Scheme returns the part of the configuration that the balancer has, too.
func (c Config) Scheme() Scheme {
	s := Scheme{ID: c.ID, Format: c.Format, Key: c.Key, ServerIDLength: len(c.ServerID), NonceLength: c.NonceLength}
	if (c.Format == Msquic || c.Format == Mvfst) && c.NonceLength == 0 {
		s.NonceLength = fixedNonce(c.Format, len(c.ServerID))
	}
	return s
}

// Validate checks the configuration. The error names the field as in a file, its value and the
// allowed values.
func (c Config) Validate() error { return c.Scheme().Validate() }

// String returns the configuration without its key, as in "quiclb config 2, server id 007000,
// 17-byte ids".
func (c Config) String() string {
	return fmt.Sprintf("%s config %d, server id %s, %d-byte ids", c.Format, c.ID, hex.EncodeToString(c.ServerID), c.Scheme().Length())
}

// Configs are a server's configurations. The last active one is the newest.
type Configs []Config

// Newest returns the configuration for new CIDs; false: none is active.
func (cs Configs) Newest() (Config, bool) {
	for i := len(cs) - 1; i >= 0; i-- {
		if cs[i].Active {
			return cs[i], true
		}
	}
	return Config{}, false
}

// Validate checks each configuration and the set: config ids are unique, one is active, and a
// format without config ids is the only one.
func (cs Configs) Validate() error {
	if len(cs) == 0 {
		return fmt.Errorf("configs: none: must be 1 to %d", MaxID+1)
	}
	seen := map[uint8]int{}
	for i, c := range cs {
		if err := c.Validate(); err != nil {
			return fmt.Errorf("configs[%d].%w", i, err)
		}
		if first, ok := seen[c.ID]; ok {
			return fmt.Errorf("configs[%d].id: %d: must be unique, configs[%d] has it", i, c.ID, first)
		}
		seen[c.ID] = i
		if (c.Format == Msquic || c.Format == Mvfst) && len(cs) > 1 {
			return fmt.Errorf("configs[%d].format: %s: must be the only configuration, because its ids do not tell which one they are of", i, c.Format)
		}
	}
	if _, ok := cs.Newest(); !ok {
		return fmt.Errorf("configs: %d, none active: must be at least one", len(cs))
	}
	return nil
}
