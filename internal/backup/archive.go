// Package backup defines the format of backups: all data that restores a cluster of managers, in
// one file whose damage is detected before any of it is used. docs/ops/backup.md describes it for
// operators.
//
//	magic "shuntbak" | format, 2 bytes | records | end mark "shuntend" |
//	length of all before the mark, 8 bytes | SHA-256 of all before
//
// A record is a type of one byte, a length of four, and so many bytes: one header (JSON), one with
// the secrets (JSON), and one for each key of the store, ordered by key: length of the key (2
// bytes), key, revision of its last change (8 bytes), value. Numbers are big-endian.
package backup

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Format is the version of the format that Encode writes and the newest that Decode reads.
const Format = 1

const (
	magic   = "shuntbak"
	endMark = "shuntend"
	// headBytes and endBytes are the sizes before and after the records.
	headBytes = len(magic) + 2
	endBytes  = len(endMark) + 8 + sha256.Size
	// recordBytes is the size before a record's content.
	recordBytes = 1 + 4
	// keyBytes is the size of a key's record without key and value.
	keyBytes = 2 + 8
)

// Types of records.
const (
	typeHeader  = 1
	typeSecrets = 2
	typeKey     = 3
)

// Errors that callers may check.
var (
	// ErrNoBackup: the content is not a backup.
	ErrNoBackup = errors.New("is not a backup of Shunt")
	// ErrDamaged: the content was changed after it was written.
	ErrDamaged = errors.New("is damaged")
	// ErrTruncated: the end is missing.
	ErrTruncated = errors.New("is truncated")
	// ErrNewer: a newer version of the program wrote it.
	ErrNewer = errors.New("was written by a newer version of shunt")
)

// Archive is a cluster's state at one revision of its store.
type Archive struct {
	Header  Header
	Secrets Secrets
	// Keys are ordered by key, without duplicates.
	Keys []Key
}

// Header describes the content of an archive.
type Header struct {
	// Time is when the state was read.
	Time time.Time `json:"time"`
	// Version and Commit are those of the manager that wrote it, Schema that of the store's
	// content.
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	Schema  string `json:"schema"`
	// Revision is that of the store, Epoch the last epoch.
	Revision int64 `json:"revision"`
	Epoch    int64 `json:"epoch"`
	// Cluster is the name in the CA's certificate, CA the hexadecimal SHA-256 of the certificate.
	Cluster string `json:"cluster"`
	CA      string `json:"ca"`
	// Keys is the number of keys; Counts are the numbers of their contents, such as "Service" or
	// "audit".
	Keys   int            `json:"keys"`
	Counts map[string]int `json:"counts"`
}

// Secrets holds the data of managers outside of the store.
type Secrets struct {
	// CA and CAKey are PEM.
	CA    []byte `json:"ca"`
	CAKey []byte `json:"ca_key"`
	// StoreKey decrypts the secrets in the store.
	StoreKey []byte `json:"store_key"`
}

// Key is a key of the store.
type Key struct {
	Name string
	// Revision is that of its last change.
	Revision int64
	Value    []byte
}

// check returns an error if the archive violates its own rules.
func (a *Archive) check() error {
	if a.Header.Keys != len(a.Keys) {
		return fmt.Errorf("header: keys: %d: must be %d, as many as there are", a.Header.Keys, len(a.Keys))
	}
	for i := range a.Keys {
		k := &a.Keys[i]
		switch {
		case k.Name == "" || len(k.Name) > 0xffff:
			return fmt.Errorf("key %d: %d bytes: must be 1 to 65535", i, len(k.Name))
		case i > 0 && k.Name <= a.Keys[i-1].Name:
			return fmt.Errorf("key %q: must be after %q", k.Name, a.Keys[i-1].Name)
		case k.Revision < 1 || k.Revision > a.Header.Revision:
			return fmt.Errorf("key %q: revision: %d: must be 1 to %d, the archive's", k.Name, k.Revision, a.Header.Revision)
		}
	}
	return nil
}

// decodeJSON reads a record of JSON.
func decodeJSON(content []byte, into any) error {
	if err := json.Unmarshal(content, into); err != nil {
		return fmt.Errorf("%w: %w", errMalformed, err)
	}
	return nil
}
