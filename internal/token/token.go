// Package token implements the text form of join and access tokens. It is pure.
package token

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"
)

const (
	prefix      = "shunt1"
	idBytes     = 8
	secretBytes = 32
	form        = "must be shunt1.CA-HASH.ID.SECRET, as `shunt token create` prints it"
)

// Token lets one node join: it names the manager's CA, so that the node can verify the manager, and
// authenticates the node.
type Token struct {
	// CA is the SHA-256 of the manager's CA certificate (DER).
	CA     [sha256.Size]byte
	ID     string // 16 hexadecimal digits
	Secret [secretBytes]byte
}

// New returns a token from random bytes, at least RandomBytes of them.
func New(ca [sha256.Size]byte, random []byte) Token {
	t := Token{CA: ca, ID: hex.EncodeToString(random[:idBytes])}
	copy(t.Secret[:], random[idBytes:RandomBytes])
	return t
}

// RandomBytes is the number of random bytes that New uses.
const RandomBytes = idBytes + secretBytes

// String returns "shunt1.CA-HASH.ID.SECRET".
func (t Token) String() string {
	return strings.Join([]string{prefix, hex.EncodeToString(t.CA[:]), t.ID, base64.RawURLEncoding.EncodeToString(t.Secret[:])}, ".")
}

// Parse parses a token, ignoring surrounding space. Errors never contain the secret.
func Parse(s string) (Token, error) {
	parts := strings.Split(strings.TrimSpace(s), ".")
	if len(parts) != 4 || parts[0] != prefix {
		return Token{}, fmt.Errorf("join token: %d parts: %s", len(parts), form)
	}
	var t Token
	ca, err := hex.DecodeString(parts[1])
	if err != nil || len(ca) != len(t.CA) || hex.EncodeToString(ca) != parts[1] {
		return Token{}, fmt.Errorf("join token: CA hash: %s", form)
	}
	id, err := hex.DecodeString(parts[2])
	if err != nil || len(id) != idBytes || hex.EncodeToString(id) != parts[2] {
		return Token{}, fmt.Errorf("join token: id: %s", form)
	}
	secret, err := base64.RawURLEncoding.Strict().DecodeString(parts[3])
	if err != nil || len(secret) != secretBytes {
		return Token{}, fmt.Errorf("join token: secret: %s", form)
	}
	copy(t.CA[:], ca)
	copy(t.Secret[:], secret)
	t.ID = parts[2]
	return t, nil
}

// SecretHash returns the hash of the secret that a manager stores.
func (t Token) SecretHash() [sha256.Size]byte { return sha256.Sum256(t.Secret[:]) }

// Matches compares with a stored hash in constant time.
func (t Token) Matches(hash []byte) bool {
	h := t.SecretHash()
	return subtle.ConstantTimeCompare(h[:], hash) == 1
}
