package sim

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"

	"github.com/shuntlb/shunt/internal/cid"
)

// Schemes of forgeries, in addition to Cookies and Published.
const (
	// QUICLB are connection ids of 17 octets under AES. PlainCID are the same unencrypted.
	QUICLB   Rule = "quiclb"
	PlainCID Rule = "quiclb-plain"
	// PublishedExact are Cheetah's cookies as its P4 programs read them (section IV-C): all 16 bits
	// are the index, which must match a server's exactly. Published is its FastClick element, which
	// takes the index modulo the size of its table.
	PublishedExact Rule = "cheetah-p4"
)

// publishedBuckets is how many buckets the FastClick element has by default (BUCKETS).
const publishedBuckets = 256

// ForgedSchemes are the schemes that are forged.
var ForgedSchemes = []Rule{Published, PublishedExact, Cookies, PlainCID, QUICLB}

// token is a cookie in its first two octets, or a connection id.
type token [1 + 16]byte

func tokenOf(cookie uint16) (t token) {
	binary.BigEndian.PutUint16(t[:], cookie)
	return t
}

func (t *token) cookie() uint16 { return binary.BigEndian.Uint16(t[:]) }

// scheme is how a packet identifies its server.
type scheme interface {
	// mint returns the token of a member for packets of a connection. read returns the member of a
	// token.
	mint(f *Flow, id uint16, r *rand.Rand) token
	read(f *Flow, t *token) (id uint16, ok bool)
	// bits returns how many bits an attacker may change: all except the id of the key. flip changes
	// one. move changes the bits where an unencrypted id would be, by a difference.
	bits() int
	flip(t *token, bit int)
	move(t *token, difference uint16)
	// names returns how many of the bits identify the server.
	names() int
}

// schemeOf returns a scheme for a pool of `servers` servers.
func schemeOf(rule Rule, servers int) scheme {
	switch rule {
	case Cookies:
		return cookieScheme{}
	case Published:
		return publishedScheme{table: uint16(max(publishedBuckets, 1<<bits.Len(uint(servers-1))))}
	case PublishedExact:
		return exactScheme{}
	}
	set := cid.Set{Format: cid.Plain, Configs: []cid.Config{{ID: 2, Key: cookieKeys[0], ServerID: 3, Nonce: 13}}}
	if rule == QUICLB {
		set.Format = cid.QUICLB
	}
	return cidScheme{set}
}

// fifteen holds the methods that cookies share: 15 bits, all of which identify the server.
type fifteen struct{}

func (fifteen) bits() int  { return publishedBits }
func (fifteen) names() int { return publishedBits }

func (fifteen) flip(t *token, bit int) { *t = tokenOf(t.cookie() ^ 1<<bit) }

// cookieScheme is Shunt's.
type cookieScheme struct{ fifteen }

func (cookieScheme) mint(f *Flow, id uint16, _ *rand.Rand) token {
	return tokenOf(encodeCookie(f.bound(), 0, id))
}

func (cookieScheme) read(f *Flow, t *token) (uint16, bool) {
	return decodeCookie(f.bound(), t.cookie())
}

func (cookieScheme) move(t *token, difference uint16) {
	*t = tokenOf(t.cookie() ^ difference)
}

// publishedScheme is that of Cheetah's FastClick element: the index is taken modulo the size of the
// table of servers, a power of two that holds them.
type publishedScheme struct {
	fifteen
	table uint16
}

func (publishedScheme) mint(f *Flow, id uint16, _ *rand.Rand) token {
	return tokenOf(publishedCookie(id, f.Hash()))
}

func (s publishedScheme) read(f *Flow, t *token) (uint16, bool) {
	return publishedCookie(t.cookie(), f.Hash()) % s.table, true
}

func (publishedScheme) move(t *token, difference uint16) { *t = tokenOf(t.cookie() ^ difference) }

// exactScheme is that of Cheetah's P4 programs: sixteen bits are the index XOR a hash.
type exactScheme struct{}

func (exactScheme) bits() int  { return 16 }
func (exactScheme) names() int { return 16 }

func (exactScheme) mint(f *Flow, id uint16, _ *rand.Rand) token {
	return tokenOf(id ^ uint16(f.Hash()))
}

func (exactScheme) read(f *Flow, t *token) (uint16, bool) { return t.cookie() ^ uint16(f.Hash()), true }

func (exactScheme) flip(t *token, bit int) { *t = tokenOf(t.cookie() ^ 1<<bit) }

func (exactScheme) move(t *token, difference uint16) { *t = tokenOf(t.cookie() ^ difference) }

// cidScheme is connection ids, as muxes read them.
type cidScheme struct{ set cid.Set }

func (s cidScheme) mint(_ *Flow, id uint16, r *rand.Rand) (t token) {
	var fill [cid.MaxLength]byte
	for i := range fill {
		fill[i] = byte(r.Uint32())
	}
	copy(t[:], s.set.Mint(0, id, fill))
	return t
}

func (s cidScheme) read(_ *Flow, t *token) (uint16, bool) { return s.set.Member(t[:]) }

func (cidScheme) bits() int  { return 8 * (len(token{}) - 1) }
func (cidScheme) names() int { return cid.MemberBits }

func (cidScheme) flip(t *token, bit int) { t[1+bit/8] ^= 0x80 >> (bit % 8) }

func (cidScheme) move(t *token, difference uint16) {
	binary.BigEndian.PutUint16(t[1:], binary.BigEndian.Uint16(t[1:])^difference<<(16-cid.MemberBits))
}
