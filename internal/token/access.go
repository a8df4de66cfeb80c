package token

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"strings"
)

// AccessPrefix is the prefix of every access token, so that scanners for leaked secrets recognize
// it.
const AccessPrefix = "shunt_"

// Access is the token of a person or a program.
type Access struct {
	ID     string // 16 hexadecimal digits
	Secret [secretBytes]byte
}

// errAccess never contains the input.
var errAccess = errors.New("access token: must be shunt_ID_SECRET, as `shunt access create` prints it")

// NewAccess returns an access token from random bytes, at least RandomBytes of them.
func NewAccess(random []byte) Access {
	a := Access{ID: hex.EncodeToString(random[:idBytes])}
	copy(a.Secret[:], random[idBytes:RandomBytes])
	return a
}

// String returns "shunt_ID_SECRET".
func (a Access) String() string {
	return AccessPrefix + a.ID + "_" + base64.RawURLEncoding.EncodeToString(a.Secret[:])
}

// ParseAccess parses an access token. Errors never contain the secret.
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

// SecretHash returns the hash of the secret that a manager stores. SHA-256 is slow enough, because
// the secret has 256 random bits.
func (a Access) SecretHash() [sha256.Size]byte { return sha256.Sum256(a.Secret[:]) }

// Matches compares with a stored hash in constant time.
func (a Access) Matches(hash []byte) bool {
	h := a.SecretHash()
	return subtle.ConstantTimeCompare(h[:], hash) == 1
}
