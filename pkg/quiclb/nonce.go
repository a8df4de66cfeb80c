package quiclb

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"math"
	"sync/atomic"
)

// nonces makes the values by which a generator's CIDs of one key differ: a counter of length bytes
// from a random start. Each value is returned once. It is safe for concurrent use.
type nonces struct {
	length int
	start  [maxNonce]byte
	given  atomic.Uint64
	// limit is the number of values; 0: no practical limit.
	limit uint64
	// shuffle hides the counter of a format that does not encrypt; its values repeat only after all
	// others. It is nil if the CID itself is encrypted.
	shuffle cipher.Block
}

func newNonces(s Scheme) *nonces {
	n := &nonces{length: s.NonceLength}
	rand.Read(n.start[:])
	if n.length < 8 {
		n.limit = 1 << (8 * n.length)
	}
	if s.Format == QUICLB {
		return n
	}
	var key Key
	rand.Read(key[:])
	block, err := aes.NewCipher(key[:])
	if err != nil {
		panic(err) // cannot fail: the key has 16 bytes
	}
	n.shuffle, n.limit = block, 0
	return n
}

// left returns the number of unused values.
func (n *nonces) left() uint64 {
	if n.limit == 0 {
		return math.MaxUint64
	}
	return n.limit - min(n.given.Load(), n.limit)
}

// next appends an unused value; false: there is none.
func (n *nonces) next(dst []byte) ([]byte, bool) {
	count := n.given.Add(1) - 1
	if n.limit > 0 && count >= n.limit {
		n.given.Store(n.limit) // keeps the count from wrapping, however often next is called
		return dst, false
	}
	at := len(dst)
	dst = append(dst, n.start[:n.length]...)
	value := dst[at:]
	for i := len(value) - 1; i >= 0 && count > 0; i-- {
		count += uint64(value[i])
		value[i] = byte(count)
		count >>= 8
	}
	if n.shuffle != nil {
		(&fourPass{block: n.shuffle}).encrypt(value)
	}
	return dst, true
}
