package plan

import (
	"cmp"
	"net/netip"
)

// CookieKeys are the keys of the cookies of a VIP's endpoints: all that are live, so that what was stamped with any of them can be read.
type CookieKeys struct {
	VNI  uint32
	VIP  netip.Addr
	Keys []CookieKey // one or two, ordered by epoch; no two have one id
	// Mint is the epoch whose key cookies are stamped with; it is among Keys.
	Mint uint32
}

// CookieKey is a key of SipHash-1-3 (protocol section 1.6).
type CookieKey struct {
	Epoch uint32 // from 1
	Key   [16]byte
}

// ID is the bit of a cookie that names its key.
func (k *CookieKey) ID() uint8 { return uint8(k.Epoch & 1) }

// CIDKeys are the keys of the connection ids that a VIP's QUIC servers make: all that are live.
type CIDKeys struct {
	VNI  uint32
	VIP  netip.Addr
	Keys []CIDKey // one or two, ordered by epoch; no two have one configuration id
	// Mint is the epoch whose key servers make new ids with; it is among Keys.
	Mint uint32
}

// CIDKey is a key of AES-128 (draft-ietf-quic-load-balancers-21 section 5).
type CIDKey struct {
	Epoch uint32 // from 1
	Key   [16]byte
}

// CIDConfigs is how many configuration ids there are: three bits of a connection id's first octet, but for 7, which stands for ids that
// no mux can read (section 3 of the draft).
const CIDConfigs = 7

// ConfigID is the configuration id that names the key.
func (k *CIDKey) ConfigID() uint8 { return uint8(k.Epoch % CIDConfigs) }

// CompareCookies orders keys by VIP.
func CompareCookies(a, b CookieKeys) int {
	return cmp.Or(cmp.Compare(a.VNI, b.VNI), a.VIP.Compare(b.VIP))
}

// CompareCIDs orders keys by VIP.
func CompareCIDs(a, b CIDKeys) int {
	return cmp.Or(cmp.Compare(a.VNI, b.VNI), a.VIP.Compare(b.VIP))
}
