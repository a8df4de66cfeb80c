package cid

import (
	"crypto/aes"
	"encoding/binary"
	"fmt"
)

// Mint returns a connection id that names a member, as a server of the set makes it, for tests and
// measurements. `of` is the index of the configuration of QUICLB and Plain; for MVFST it is the
// version, 1 to 3. fill provides MaxLength octets for the parts that the format leaves open: the
// rest of the first octet, instance, nonce, other octets of the server.
func (s Set) Mint(of int, member uint16, fill [MaxLength]byte) []byte {
	id := fill[:]
	switch s.Format {
	case MSQUIC:
		putTop(id[1:], member)
		return id[:14]
	case MVFST:
		id[0] = id[0]&0x3f | byte(of)<<6
		if of == 1 {
			host := member<<(16-MemberBits) | uint16(id[2]&0xf)
			id[0], id[1], id[2] = byte(of)<<6|byte(host>>10), byte(host>>2), byte(host<<6)|id[3]&0x3f
		} else {
			putTop(id[1:], member)
		}
		return id[:8]
	}
	c := s.Configs[of]
	id = id[:1+c.plain()]
	id[0] = c.ID<<5 | id[0]&0x1f
	putTop(id[1:], member)
	switch {
	case s.Format == Plain:
	case c.plain() == aes.BlockSize:
		c.block().Encrypt(id[1:], id[1:])
	default:
		c.seal(id[1:])
	}
	return id
}

// putTop writes a member id into the first 12 bits of a server id.
func putTop(b []byte, member uint16) {
	binary.BigEndian.PutUint16(b, member<<(16-MemberBits)|uint16(b[1]&0xf))
}

// seal encrypts server id and nonce by four passes, in place (draft section 5.4.2).
func (c Config) seal(text []byte) {
	left, right := split(text)
	for pass := byte(1); pass <= 4; pass++ {
		from, to := left, right
		if pass%2 == 0 {
			from, to = right, left
		}
		c.pass(len(text), pass, from, to)
	}
	copy(text, left)
	if len(text)%2 == 1 {
		text[len(left)-1] |= right[0]
		right = right[1:]
	}
	copy(text[len(left):], right)
}

// String returns the configuration without its key.
func (c Config) String() string {
	return fmt.Sprintf("configuration %d, server id of %d octets, nonce of %d", c.ID, c.ServerID, c.Nonce)
}
