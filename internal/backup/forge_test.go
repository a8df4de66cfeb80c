package backup

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
)

// ended appends an end with the correct checksum to head and records.
func ended(content []byte) []byte {
	out := append(bytes.Clone(content), endMark...)
	out = binary.BigEndian.AppendUint64(out, uint64(len(content)))
	sum := sha256.Sum256(out)
	return append(out, sum[:]...)
}

// ofFormat returns an archive with another format number.
func ofFormat(whole []byte, format uint16) []byte {
	content := bytes.Clone(whole[:len(whole)-endBytes])
	binary.BigEndian.PutUint16(content[len(magic):], format)
	return ended(content)
}
