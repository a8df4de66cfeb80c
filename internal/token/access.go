package token

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"strings"
)

// AccessPrefix begins every access token, so that scanners of leaked secrets know it.
const AccessPrefix = "shunt_"

// Access is the token of a person or a program.
type Access struct {
	ID     string // 16 hexadecimal digits
	Secret [secretBytes]byte
}

// errAccess never shows what was read.
var errAccess = errors.New("access token: must be shunt_ID_SECRET, as `shunt access create` prints it")

// NewAccess makes an access token from random bytes, at least RandomBytes of them.
func NewAccess(random []byte) Access {
	a := Access{ID: hex.EncodeToString(random[:idBytes])}
	copy(a.Secret[:], random[idBytes:RandomBytes])
	return a
}

// String writes "shunt_ID_SECRET".
func (a Access) String() string {
	return AccessPrefix + a.ID + "_" + base64.RawURLEncoding.EncodeToString(a.Secret[:])
}

// ParseAccess reads an access token. Its errors never show the secret.
func ParseAccess(s string) (Access, error) {
	rest, ok := strings.CutPrefix(s, AccessPrefix)
	id, text, found := strings.Cut(rest, "_")
	raw, err := hex.DecodeString(id)
	if !ok || !found || err != nil || len(raw) != idBytes || hex.EncodeToString(raw) != id {
		return Access{}, errAccess
	}
	secret, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(secret) != secretBytes {
		return Access{}, errAccess
	}
	a := Access{ID: id}
	copy(a.Secret[:], secret)
	return a, nil
}

// SecretHash is what a manager keeps of the secret. The secret is 256 random bits: nothing slower than SHA-256 is
// needed to keep it from being found.
func (a Access) SecretHash() [sha256.Size]byte { return sha256.Sum256(a.Secret[:]) }

// Matches compares with a kept hash in constant time.
func (a Access) Matches(hash []byte) bool {
	h := a.SecretHash()
	return subtle.ConstantTimeCompare(h[:], hash) == 1
}
