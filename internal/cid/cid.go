// Package cid reads the connection ids of QUIC servers: the member of an endpoint that they name
// (protocol section 3.2), and their position in a datagram. The mux does the same in
// bpf/lib/quic.h; tests check that both are equal. It is pure.
package cid

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
)

// Format is the format of servers' connection ids.
type Format uint8

// The formats. In all of them the member id is the first 12 bits of the format's server id or host
// id, in clear or before encryption.
const (
	// QUICLB is that of draft-ietf-quic-load-balancers-21: one octet whose first three bits name a
	// configuration, then server id and nonce under its AES-128 key.
	QUICLB Format = 1
	// Plain is QUICLB without keys: server id and nonce in clear.
	Plain Format = 2
	// MSQUIC is that of msquic with a FixedServerID: a random octet, then the four octets of the
	// id.
	MSQUIC Format = 3
	// MVFST is that of mvfst and Katran: the first two bits are the version. 1: a host id of 16
	// bits follows them; 2 and 3: one of 24 or 32 bits follows the first octet.
	MVFST Format = 4
)

const (
	// Unroutable is the value of the first three bits of a connection id of QUICLB and Plain that
	// belongs to no configuration (draft section 3.1).
	Unroutable = 7
	// MaxLength is the maximum length of a connection id, in octets (RFC 9000 section 17.2).
	MaxLength = 20
	// MemberBits is the number of bits of a member id.
	MemberBits = 12
)

// Config is one configuration of the connection ids of QUICLB and Plain, with its id.
type Config struct {
	ID  uint8    // below Unroutable
	Key [16]byte // QUICLB only
	// ServerID and Nonce are lengths in octets: 2 to 15 and 4 to 18, at most 19 together.
	ServerID, Nonce uint8
}

// plain returns the length of server id and nonce together.
func (c Config) plain() int { return int(c.ServerID) + int(c.Nonce) }

// Set holds the format and the configurations of an endpoint's connection ids.
type Set struct {
	Format Format
	// Configs are for QUICLB and Plain: at most seven with different ids.
	Configs []Config
}

// Check refuses a set by which no connection id could be read.
func (s Set) Check() error {
	switch s.Format {
	case MSQUIC, MVFST:
		if len(s.Configs) > 0 {
			return errors.New("configurations: not with this format")
		}
		return nil
	case QUICLB, Plain:
	default:
		return fmt.Errorf("format %d: must be %d to %d", s.Format, QUICLB, MVFST)
	}
	seen := [Unroutable]bool{}
	for _, c := range s.Configs {
		switch {
		case c.ID >= Unroutable:
			return fmt.Errorf("configuration %d: must be below %d", c.ID, Unroutable)
		case seen[c.ID]:
			return fmt.Errorf("configuration %d: given twice", c.ID)
		case c.ServerID < 2 || c.ServerID > 15:
			return fmt.Errorf("configuration %d: server id of %d octets: must be 2 to 15", c.ID, c.ServerID)
		case c.Nonce < 4 || c.Nonce > 18:
			return fmt.Errorf("configuration %d: nonce of %d octets: must be 4 to 18", c.ID, c.Nonce)
		case c.plain() > MaxLength-1:
			return fmt.Errorf("configuration %d: server id and nonce of %d octets: must be at most %d together", c.ID, c.plain(), MaxLength-1)
		}
		seen[c.ID] = true
	}
	return nil
}

// Length returns the minimum number of octets of a readable connection id with this first octet, 0
// if there is none.
func (s Set) Length(first byte) int {
	switch s.Format {
	case MSQUIC:
		return 5
	case MVFST:
		return []int{0, 3, 4, 5}[first>>6]
	}
	if c := s.config(first); c != nil {
		return 1 + c.plain()
	}
	return 0
}

// config returns the configuration of a connection id with this first octet.
func (s Set) config(first byte) *Config {
	for i := range s.Configs {
		if s.Configs[i].ID == first>>5 {
			return &s.Configs[i]
		}
	}
	return nil
}

// Member returns the member id in a connection id; false if there is none. Octets after those of
// the format belong to the server.
func (s Set) Member(id []byte) (member uint16, ok bool) {
	if len(id) == 0 || s.Length(id[0]) == 0 || len(id) < s.Length(id[0]) {
		return 0, false
	}
	switch {
	case s.Format == MVFST && id[0]>>6 == 1:
		host := uint16(id[0])<<10 | uint16(id[1])<<2 | uint16(id[2])>>6
		return host >> (16 - MemberBits), true
	case s.Format == MSQUIC || s.Format == MVFST:
		return top(id[1:]), true
	}
	c := s.config(id[0])
	text := id[1 : 1+c.plain()]
	switch {
	case s.Format == Plain:
		return top(text), true
	case len(text) == aes.BlockSize:
		return top(c.single(text)), true
	}
	return top(c.fourPass(text)), true
}

// top returns the first 12 bits of a server id.
func top(b []byte) uint16 { return binary.BigEndian.Uint16(b) >> (16 - MemberBits) }

// block returns AES-128 under the configuration's key.
func (c Config) block() cipher.Block {
	block, err := aes.NewCipher(c.Key[:])
	if err != nil {
		panic(err) // never: the key has 16 bytes
	}
	return block
}

// single decrypts one block (draft section 4.4.1).
func (c Config) single(text []byte) []byte {
	out := make([]byte, aes.BlockSize)
	c.block().Decrypt(out, text)
	return out
}

// fourPass decrypts the left half of server id and nonce (draft section 4.4.2), which contains the
// member id, with three of the four passes. The draft's text of decryption clears left_1; that must
// be right_1.
func (c Config) fourPass(text []byte) []byte {
	left, right := split(text)
	c.pass(len(text), 4, right, left)
	c.pass(len(text), 3, left, right)
	c.pass(len(text), 2, right, left)
	return left
}

// split returns copies of both halves. They share a middle octet: the left half has its higher four
// bits, the right half the lower.
func split(text []byte) (left, right []byte) {
	n := len(text)
	half := (n + 1) / 2
	left, right = append([]byte(nil), text[:half]...), append([]byte(nil), text[n-half:]...)
	if n%2 == 1 {
		left[half-1] &= 0xf0
		right[0] &= 0x0f
	}
	return left, right
}

// pass changes one half of n octets by the other: passes 1 and 3 the right one. The input of the
// encryption is the half, padded, with n and the number of the pass.
func (c Config) pass(n int, number byte, by, half []byte) {
	var in [aes.BlockSize]byte
	copy(in[:], by)
	in[14], in[15] = byte(n), number
	c.block().Encrypt(in[:], in[:])
	for i := range half {
		half[i] ^= in[i]
	}
	switch {
	case n%2 == 0:
	case number%2 == 1:
		half[0] &= 0x0f
	default:
		half[len(half)-1] &= 0xf0
	}
}
