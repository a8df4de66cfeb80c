package backup

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

var errMalformed = errors.New("is malformed, though its checksum is right")

// Decode reads an archive. It verifies the checksum first and returns no part of an incomplete
// archive. The archive's values are slices of content.
func Decode(content []byte) (*Archive, error) {
	records, err := verify(content)
	if err != nil {
		return nil, err
	}
	d := decoder{rest: records, at: headBytes}
	a := &Archive{}
	if err := d.expect(typeHeader, &a.Header); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	if err := d.expect(typeSecrets, &a.Secrets); err != nil {
		return nil, fmt.Errorf("secrets: %w", err)
	}
	for len(d.rest) > 0 {
		k, err := d.key()
		if err != nil {
			return nil, fmt.Errorf("key %d: %w", len(a.Keys), err)
		}
		a.Keys = append(a.Keys, k)
	}
	if err := a.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	return a, nil
}

// verify returns the records of complete content in a known format.
func verify(content []byte) ([]byte, error) {
	if !strings.HasPrefix(magic, string(content[:min(len(magic), len(content))])) || len(content) == 0 {
		return nil, ErrNoBackup
	}
	if len(content) < headBytes {
		return nil, fmt.Errorf("%w: it ends after %d bytes", ErrTruncated, len(content))
	}
	// This is at the same place in every newer format.
	if format := binary.BigEndian.Uint16(content[len(magic):]); format > Format || format == 0 {
		if damage := checkEnd(content); damage != nil {
			return nil, damage
		}
		return nil, fmt.Errorf("%w: format %d: must be 1 to %d", ErrNewer, format, Format)
	}
	if err := checkEnd(content); err != nil {
		return nil, err
	}
	return content[headBytes : len(content)-endBytes], nil
}

// checkEnd checks the end mark and the checksum.
func checkEnd(content []byte) error {
	at := len(content) - endBytes
	if at < headBytes || !bytes.HasPrefix(content[at:], []byte(endMark)) {
		return fmt.Errorf("%w or its end is damaged: it ends after %d bytes without an end mark", ErrTruncated, len(content))
	}
	if length := binary.BigEndian.Uint64(content[at+len(endMark):]); length != uint64(at) {
		return fmt.Errorf("%w: the end mark stands at byte %d and says %d: bytes are missing, added or changed", ErrDamaged, at, length)
	}
	sum := content[len(content)-sha256.Size:]
	if got := sha256.Sum256(content[:len(content)-sha256.Size]); !bytes.Equal(got[:], sum) {
		return fmt.Errorf("%w: SHA-256 %x: must be %x, as its end says", ErrDamaged, got, sum)
	}
	return nil
}

// decoder splits content into records.
type decoder struct {
	rest []byte
	at   int
}

// record returns the next one.
func (d *decoder) record() (kind byte, content []byte, err error) {
	if len(d.rest) < recordBytes {
		return 0, nil, fmt.Errorf("%w: byte %d: a record is missing", errMalformed, d.at)
	}
	kind, size := d.rest[0], int64(binary.BigEndian.Uint32(d.rest[1:]))
	if size > int64(len(d.rest)-recordBytes) {
		return 0, nil, fmt.Errorf("%w: byte %d: a record of %d bytes: there are %d", errMalformed, d.at, size, len(d.rest)-recordBytes)
	}
	content, d.rest = d.rest[recordBytes:recordBytes+size], d.rest[recordBytes+size:]
	d.at += recordBytes + int(size)
	return kind, content, nil
}

// expect reads a record of JSON.
func (d *decoder) expect(want byte, into any) error {
	kind, content, err := d.record()
	if err != nil {
		return err
	}
	if kind != want {
		return fmt.Errorf("%w: record of type %d: must be %d", errMalformed, kind, want)
	}
	return decodeJSON(content, into)
}

func (d *decoder) key() (Key, error) {
	kind, content, err := d.record()
	switch {
	case err != nil:
		return Key{}, err
	case kind != typeKey:
		return Key{}, fmt.Errorf("%w: record of type %d: must be %d", errMalformed, kind, typeKey)
	case len(content) < keyBytes || len(content) < keyBytes+int(binary.BigEndian.Uint16(content)):
		return Key{}, fmt.Errorf("%w: record of %d bytes: it is too short for its key", errMalformed, len(content))
	}
	size := int(binary.BigEndian.Uint16(content))
	return Key{
		Name: string(content[2 : 2+size]), Revision: int64(binary.BigEndian.Uint64(content[2+size:])), Value: content[keyBytes+size:],
	}, nil
}
