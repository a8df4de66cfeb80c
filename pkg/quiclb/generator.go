package quiclb

import (
	"crypto/rand"
	"fmt"
	"sync"
	"sync/atomic"
)

// Generator makes the connection ids of a server. No two of its ids are equal during its lifetime;
// the package documentation describes restarts. It is safe for concurrent use.
type Generator struct {
	minting atomic.Pointer[mint]
	length  int

	mu      sync.Mutex
	configs Configs
	// counts holds the nonces of every key used so far, so that a key that is set again continues
	// its count.
	counts map[keyspace]*nonces
}

// keyspace is the scope in which each nonce may be used once.
type keyspace struct {
	format Format
	key    Key
	length int
}

// mint holds the values that new CIDs are made from.
type mint struct {
	codec    *Codec
	serverID []byte
	nonces   *nonces
}

// NewGenerator returns a generator of CIDs under the newest active configuration.
func NewGenerator(configs Configs) (*Generator, error) {
	g := &Generator{counts: map[keyspace]*nonces{}}
	if err := g.Set(configs); err != nil {
		return nil, err
	}
	return g, nil
}

// Set replaces the configurations. Existing CIDs stay valid: a connection uses them until it
// requests new ones, so the balancer must hold their configuration until then. The length of CIDs
// must not change, because libraries read it once.
func (g *Generator) Set(configs Configs) error {
	if err := configs.Validate(); err != nil {
		return err
	}
	newest, _ := configs.Newest()
	scheme := newest.Scheme()
	codec, err := NewCodec(scheme)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.length != 0 && g.length != scheme.Length() {
		return fmt.Errorf("configs: connection ids of %d bytes: must be %d, as they were when the server started", scheme.Length(), g.length)
	}
	// only in NewGenerator, before g is shared, because Length and Next read it without the lock
	if g.length == 0 {
		g.length = scheme.Length()
	}
	space := keyspace{scheme.Format, scheme.Key, scheme.NonceLength}
	if g.counts[space] == nil {
		g.counts[space] = newNonces(scheme)
	}
	g.configs = append(Configs(nil), configs...)
	g.minting.Store(&mint{codec: codec, serverID: append([]byte(nil), newest.ServerID...), nonces: g.counts[space]})
	return nil
}

// Configs returns the configurations that were set last.
func (g *Generator) Configs() Configs {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append(Configs(nil), g.configs...)
}

// Length returns the length of all CIDs in bytes.
func (g *Generator) Length() int { return g.length }

// Left returns how many more CIDs the key of the newest configuration can make; math.MaxUint64
// means no practical limit. A server with short nonces should have its key replaced in time.
func (g *Generator) Left() uint64 { return g.minting.Load().nonces.left() }

// Next returns a new connection id. When no nonce is left, the id is unroutable (section 3.2 of the
// draft): its connection is balanced by addresses and ports and does not survive a migration.
func (g *Generator) Next() []byte {
	m := g.minting.Load()
	var space [maxNonce]byte
	nonce, ok := m.nonces.next(space[:0])
	if !ok {
		return unroutable(g.length)
	}
	var spare [1]byte
	rand.Read(spare[:])
	return m.codec.Encode(make([]byte, 0, MaxLength), spare[0], m.serverID, nonce)
}

// unroutable returns a CID that belongs to no configuration and encodes its length.
func unroutable(length int) []byte {
	cid := make([]byte, length)
	rand.Read(cid)
	cid[0] = (MaxID+1)<<5 | byte(length-1)
	return cid
}

// Typed adapts a Generator to a library with its own connection id type: it is a
// quic.ConnectionIDGenerator when T is a quic.ConnectionID of quic-go.
type Typed[T any] struct {
	generator *Generator
	convert   func([]byte) T
}

// For returns the generator for a library. convert makes the library's connection id from bytes, as
// quic.ConnectionIDFromBytes does.
func For[T any](g *Generator, convert func([]byte) T) *Typed[T] {
	return &Typed[T]{generator: g, convert: convert}
}

// GenerateConnectionID returns a new connection id. The error is always nil; libraries require it.
func (t *Typed[T]) GenerateConnectionID() (T, error) { return t.convert(t.generator.Next()), nil }

// ConnectionIDLen returns the length of all connection ids in bytes.
func (t *Typed[T]) ConnectionIDLen() int { return t.generator.Length() }
