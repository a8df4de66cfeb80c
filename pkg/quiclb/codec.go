package quiclb

import (
	"crypto/aes"
	"crypto/cipher"
	"fmt"
)

// Codec writes and reads the connection ids of one scheme. It is safe for concurrent use.
type Codec struct {
	scheme Scheme
	block  cipher.Block // nil: in clear
}

// NewCodec returns the codec of a valid scheme.
func NewCodec(s Scheme) (*Codec, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	c := &Codec{scheme: s}
	if s.Format == QUICLB {
		var err error
		if c.block, err = aes.NewCipher(s.Key[:]); err != nil {
			return nil, fmt.Errorf("key: %w", err)
		}
	}
	return c, nil
}

// Scheme returns the codec's scheme.
func (c *Codec) Scheme() Scheme { return c.scheme }

// Encode appends a connection id to dst. It panics unless server id and nonce have the lengths of
// the scheme. The bits of the first octet that the format does not define come from spare, which
// should be random. QUIC-LB does not define the low five bits, or puts the length of the CID minus
// one there for hardware that reads nothing else (section 3.3 of the draft).
func (c *Codec) Encode(dst []byte, spare byte, serverID, nonce []byte) []byte {
	if len(serverID) != c.scheme.ServerIDLength || len(nonce) != c.scheme.NonceLength {
		panic(fmt.Sprintf("quiclb: server id of %d and nonce of %d bytes, must be %d and %d",
			len(serverID), len(nonce), c.scheme.ServerIDLength, c.scheme.NonceLength))
	}
	at := len(dst)
	dst = append(append(append(dst, spare), serverID...), nonce...)
	cid := dst[at:]
	switch c.scheme.Format {
	case QUICLB, Plain:
		cid[0] = c.scheme.ID<<5 | spare&0x1f
		c.encrypt(cid[1:])
	case Mvfst:
		c.writeMvfst(cid, spare)
	}
	return dst
}

// encrypt replaces server id and nonce by their ciphertext.
func (c *Codec) encrypt(text []byte) {
	switch {
	case c.block == nil:
	case len(text) == oneBlock:
		c.block.Encrypt(text, text)
	default:
		(&fourPass{block: c.block}).encrypt(text)
	}
}

// writeMvfst writes the server id into a CID of mvfst, which has its version in the topmost two
// bits. In version 1 the server id follows directly, and its last two bits are in the third octet.
func (c *Codec) writeMvfst(cid []byte, spare byte) {
	version := byte(c.scheme.ServerIDLength - 1)
	if version > 1 {
		cid[0] = version<<6 | spare&0x3f
		return
	}
	id := uint16(cid[1])<<8 | uint16(cid[2])
	cid[0] = version<<6 | byte(id>>10)
	cid[1] = byte(id >> 2)
	cid[2] = byte(id<<6) | spare&0x3f
}

// Decode returns the server id and the nonce in a connection id. It ignores bytes beyond the
// scheme's length. It returns an error if the id does not belong to this scheme: it is shorter, or
// has another config id or version. Any other 20 bytes are an id of some server, because CIDs are
// not authenticated.
func (c *Codec) Decode(cid []byte) (serverID, nonce []byte, err error) {
	s := c.scheme
	if len(cid) < s.Length() {
		return nil, nil, fmt.Errorf("connection id: %d bytes: must be at least %d", len(cid), s.Length())
	}
	text := append([]byte(nil), cid[1:s.Length()]...)
	switch s.Format {
	case QUICLB, Plain:
		if id := cid[0] >> 5; id != s.ID {
			return nil, nil, fmt.Errorf("connection id: config id %d: must be %d", id, s.ID)
		}
		c.decrypt(text)
	case Mvfst:
		version := cid[0] >> 6
		if int(version) != s.ServerIDLength-1 {
			return nil, nil, fmt.Errorf("connection id: mvfst version %d: must be %d", version, s.ServerIDLength-1)
		}
		if version == 1 {
			id := uint16(cid[0]&0x3f)<<10 | uint16(cid[1])<<2 | uint16(cid[2]>>6)
			text[0], text[1] = byte(id>>8), byte(id)
		}
	}
	return text[:s.ServerIDLength:s.ServerIDLength], text[s.ServerIDLength:], nil
}

func (c *Codec) decrypt(text []byte) {
	switch {
	case c.block == nil:
	case len(text) == oneBlock:
		c.block.Decrypt(text, text)
	default:
		(&fourPass{block: c.block}).decrypt(text)
	}
}
