package quiclb

import (
	"crypto/rand"
	"fmt"
	"sync"
	"sync/atomic"
)

// Generator makes a server's connection ids, no two of which are equal as long as it lives (the package's documentation says what happens when it starts
// again). It is safe for concurrent use.
type Generator struct {
	minting atomic.Pointer[mint]
	length  int

	mu      sync.Mutex
	configs Configs
	// counts has the nonces of every key there was: a key that comes back goes on where it was.
	counts map[keyspace]*nonces
}

// keyspace is within what a nonce may be used once.
type keyspace struct {
	format Format
	key    Key
	length int
}

// mint is what new CIDs are made of.
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

// Set gives the generator other configurations. CIDs that it made stay what they are: a connection has them until it asks for new ones, so the balancer has to know their
// configuration for as long. The length of CIDs must stay, because libraries ask for it once.
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
	if g.length == 0 { // NewGenerator, before anybody has g: Length and Next read it without the lock
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

// Configs are those that were set last.
func (g *Generator) Configs() Configs {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append(Configs(nil), g.configs...)
}

// Length is the length of all CIDs in bytes.
func (g *Generator) Length() int { return g.length }

// Left is how many CIDs the key of the newest configuration is good for; math.MaxUint64: more than anybody counts to. A server with short nonces should see
// that its key is replaced in time.
func (g *Generator) Left() uint64 { return g.minting.Load().nonces.left() }

// Next returns a new connection id. When no nonce is left it is one that routes nowhere (section 3.2 of the draft): its connection goes by addresses and ports,
// and does not bear a migration.
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

// unroutable is a CID of no configuration, which tells its length.
func unroutable(length int) []byte {
	cid := make([]byte, length)
	rand.Read(cid)
	cid[0] = (MaxID+1)<<5 | byte(length-1)
	return cid
}

// Typed is a Generator for a library that has a type of its own for connection ids: it is a quic.ConnectionIDGenerator when T is a
// quic.ConnectionID of quic-go.
type Typed[T any] struct {
	generator *Generator
	convert   func([]byte) T
}

// For returns the generator for a library: convert makes its connection id of bytes, as quic.ConnectionIDFromBytes does.
func For[T any](g *Generator, convert func([]byte) T) *Typed[T] {
	return &Typed[T]{generator: g, convert: convert}
}

// GenerateConnectionID returns a new connection id. There is no error; libraries expect one.
func (t *Typed[T]) GenerateConnectionID() (T, error) { return t.convert(t.generator.Next()), nil }

// ConnectionIDLen is the length of all connection ids in bytes.
func (t *Typed[T]) ConnectionIDLen() int { return t.generator.Length() }
