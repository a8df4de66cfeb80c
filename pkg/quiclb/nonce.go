package quiclb

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"math"
	"sync/atomic"
)

// nonces are the values that a generator's CIDs of one key differ by: those of a counter of length bytes under a random start, each of which is given out
// once. It is safe for concurrent use.
type nonces struct {
	length int
	start  [maxNonce]byte
	given  atomic.Uint64
	// limit is how many there are; 0: more than anybody counts to.
	limit uint64
	// shuffle hides the counter of a format that does not encrypt; then values come again after all the others. Nil: the CID's own encryption does.
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
		panic(err) // 16 bytes are a key
	}
	n.shuffle, n.limit = block, 0
	return n
}

// left is how many values there are still.
func (n *nonces) left() uint64 {
	if n.limit == 0 {
		return math.MaxUint64
	}
	return n.limit - min(n.given.Load(), n.limit)
}

// next appends a value that was not given out before; false: there is none.
func (n *nonces) next(dst []byte) ([]byte, bool) {
	count := n.given.Add(1) - 1
	if n.limit > 0 && count >= n.limit {
		n.given.Store(n.limit) // however often it is tried, the count does not come round
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
