package backup

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"math"
)

// Encode writes the archive.
func Encode(w io.Writer, a *Archive) error {
	if err := a.check(); err != nil {
		return fmt.Errorf("write backup: %w", err)
	}
	e := encoder{w: w, sum: sha256.New()}
	e.write(binary.BigEndian.AppendUint16([]byte(magic), Format))
	e.json(typeHeader, a.Header)
	e.json(typeSecrets, a.Secrets)
	for i := range a.Keys {
		k := &a.Keys[i]
		head := binary.BigEndian.AppendUint16(nil, uint16(len(k.Name)))
		head = append(head, k.Name...)
		head = binary.BigEndian.AppendUint64(head, uint64(k.Revision))
		e.record(typeKey, head, k.Value)
	}
	end := binary.BigEndian.AppendUint64([]byte(endMark), uint64(e.n))
	e.write(end)
	e.write(e.sum.Sum(nil))
	if e.err != nil {
		return fmt.Errorf("write backup: %w", e.err)
	}
	return nil
}

// encoder keeps the first error.
type encoder struct {
	w   io.Writer
	sum hash.Hash
	n   int64
	err error
}

func (e *encoder) write(b []byte) {
	if e.err != nil {
		return
	}
	e.sum.Write(b)
	n, err := e.w.Write(b)
	e.n, e.err = e.n+int64(n), err
}

func (e *encoder) record(kind byte, parts ...[]byte) {
	size := 0
	for _, p := range parts {
		size += len(p)
	}
	if size > math.MaxUint32 && e.err == nil {
		e.err = fmt.Errorf("a record of %d bytes: must be less than 4 GiB", size)
	}
	e.write(binary.BigEndian.AppendUint32([]byte{kind}, uint32(size)))
	for _, p := range parts {
		e.write(p)
	}
}

func (e *encoder) json(kind byte, v any) {
	content, err := json.Marshal(v)
	if err != nil && e.err == nil {
		e.err = err
	}
	e.record(kind, content)
}
