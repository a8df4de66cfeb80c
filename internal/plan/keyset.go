package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

// KeyPurpose is what keys are for.
type KeyPurpose string

// KeysOfCookies are of one VIP, KeysOfCIDs (QUIC connection ids) of one service: a server cannot tell by which of the service's VIPs a connection
// came.
const (
	KeysOfCookies KeyPurpose = "cookie"
	KeysOfCIDs    KeyPurpose = "cid"
)

// KeyPhase is how far a change of keys is. Each phase but the last two ends when all nodes that it is about obey the plan that it began with:
// at every moment a mux that serves a VIP reads what any host may stamp (design section 9.7).
type KeyPhase string

const (
	// KeysSpread: muxes get the new key, which nobody uses yet.
	KeysSpread KeyPhase = "spread"
	// KeysReturn: a scope needs its keys again after it did not. Muxes get all of them; hosts have none.
	KeysReturn KeyPhase = "return"
	// KeysSwitch: hosts get it, and stamp with it.
	KeysSwitch KeyPhase = "switch"
	// KeysRest: all hosts stamp with it; what was stamped with the one before is still read, for connections that are silent.
	KeysRest KeyPhase = "rest"
	// KeysSteady: there is one key.
	KeysSteady KeyPhase = "steady"
)

// KeyPhases are all phases, in the order in which keys are in them.
var KeyPhases = []KeyPhase{KeysSpread, KeysReturn, KeysSwitch, KeysRest, KeysSteady}

// KeySet are the live keys of a purpose and scope.
type KeySet struct {
	// Keys are one or two, ordered by epoch, the second being the epoch after the first.
	Keys  []SetKey
	Phase KeyPhase
	// Since is when the phase began.
	Since time.Time
	// Service has the VIP, or is the scope itself. Keys do not pass from one to another.
	Service string
}

// SetKey is a key of a KeySet.
type SetKey struct {
	Epoch uint32 // from 1
	Key   [16]byte
	Made  time.Time
	// Shuffled: cookies name members by shuffled ids under it (cookie.SecretOf). False of connection ids, and of keys that builds before this field made.
	Shuffled bool
}

// NewKeySet has its first key on the way to muxes.
func NewKeySet(service string, first SetKey) KeySet {
	return KeySet{Keys: []SetKey{first}, Phase: KeysSpread, Since: first.Made, Service: service}
}

// newest is the key that was made last.
func (k *KeySet) newest() SetKey { return k.Keys[len(k.Keys)-1] }

// Again are the keys of a scope that needs them after it did not. All are kept: a host that did not hear of that may have stamped with any.
func (k *KeySet) Again(now time.Time) KeySet {
	return KeySet{Keys: k.Keys, Phase: KeysReturn, Since: now, Service: k.Service}
}

// Mint is the epoch that is used for what is new.
func (k *KeySet) Mint() uint32 {
	if k.Phase == KeysSpread {
		return k.Keys[0].Epoch
	}
	return k.newest().Epoch
}

// OfHosts are the keys that hosts have; none while muxes get the first, or all of them again.
func (k *KeySet) OfHosts() []SetKey {
	switch k.Phase {
	case KeysSpread:
		return k.Keys[:len(k.Keys)-1]
	case KeysReturn:
		return nil
	}
	return k.Keys
}

// Waits tells whether the phase waits for nodes.
func (k *KeySet) Waits() bool { return k.Phase != KeysRest && k.Phase != KeysSteady }

// Rotate begins to replace the key. It says why not when it must not begin: rest is how long a key is read after hosts ceased to use it;
// shuffled is SetKey.Shuffled of the new one.
func (k *KeySet) Rotate(key [16]byte, shuffled bool, now time.Time, rest time.Duration) (next KeySet, wrong string) {
	switch next = *k; {
	case k.Phase == KeysRest && now.Sub(k.Since) >= rest:
		next, _ = k.Step(now, true, rest)
	case k.Phase == KeysRest:
		return *k, fmt.Sprintf("must wait until %s: until then epoch %d is read beside epoch %d", k.Since.Add(rest).UTC().Format(time.RFC3339), k.Keys[0].Epoch, k.newest().Epoch)
	case k.Phase == KeysReturn, k.Waits() && len(k.Keys) == 1:
		return *k, fmt.Sprintf("must wait until nodes have the key of epoch %d", k.newest().Epoch)
	case k.Phase != KeysSteady:
		return *k, fmt.Sprintf("must wait until the rotation to epoch %d is over", k.newest().Epoch)
	}
	next.Keys = []SetKey{next.Keys[0], {Epoch: next.Keys[0].Epoch + 1, Key: key, Made: now, Shuffled: shuffled}}
	next.Phase, next.Since = KeysSpread, now
	return next, ""
}

// Step is the next phase, if the present one is over: acked tells whether all nodes that it is about obey it.
func (k *KeySet) Step(now time.Time, acked bool, rest time.Duration) (next KeySet, over bool) {
	next = *k
	next.Since = now
	switch {
	case (k.Phase == KeysSpread || k.Phase == KeysReturn) && acked:
		next.Phase = KeysSwitch
	case k.Phase == KeysSwitch && acked && len(k.Keys) > 1:
		next.Phase = KeysRest
	case k.Phase == KeysSwitch && acked:
		next.Phase = KeysSteady
	case k.Phase == KeysRest && now.Sub(k.Since) >= rest:
		next.Phase, next.Keys = KeysSteady, k.Keys[1:]
	default:
		return *k, false
	}
	return next, true
}

// Due is when the next step or the next rotation is due by time; zero when nodes decide. With lifetime 0 nothing is rotated by age.
func (k *KeySet) Due(rest, lifetime time.Duration) time.Time {
	switch {
	case k.Phase == KeysRest:
		return k.Since.Add(rest)
	case k.Phase == KeysSteady && lifetime > 0:
		return k.newest().Made.Add(lifetime)
	}
	return time.Time{}
}

// Needs tells whether a service has endpoints with keys of the purpose.
func (p KeyPurpose) Needs(s *lb.Service) bool {
	for i := range s.Endpoints {
		if p.needs(&s.Endpoints[i]) {
			return true
		}
	}
	return false
}

func (p KeyPurpose) needs(e *lb.Endpoint) bool {
	if p == KeysOfCIDs {
		return e.Cookies() && e.QUIC != nil && e.QUIC.Keyed()
	}
	return e.StampsTCP()
}

// Fade reports whether a VIP of a service has endpoints that have keys of the purpose no more, whose connections still carry what was made with them.
func (p KeyPurpose) Fade(s *lb.Service, vip netip.Addr, states map[lb.EndpointKey]EndpointState) (fade bool) {
	EachEndpoint(s, func(key lb.EndpointKey, ep *lb.Endpoint) {
		if st, known := states[key]; known && key.VIP == vip {
			fade = fade || p.fades(ep, &st)
		}
	})
	return fade
}

func (p KeyPurpose) fades(ep *lb.Endpoint, st *EndpointState) bool {
	if !st.Fades(ep) {
		return false
	}
	if p == KeysOfCIDs {
		return st.QUIC != nil && st.QUIC.Keyed()
	}
	return st.QUIC == nil
}

// CookieKeys are the keys of the cookies of a VIP's endpoints: all that are live, so that what was stamped with any of them can be read.
type CookieKeys struct {
	VNI  uint32
	VIP  netip.Addr
	Keys []CookieKey // one or two, ordered by epoch; no two have one id
	// Mint is the epoch whose key cookies are stamped with; it is among Keys.
	Mint uint32
}

// CookieKey is a key of SipHash-1-3 (protocol section 1.6). Shuffled is as in SetKey.
type CookieKey struct {
	Epoch    uint32 // from 1
	Key      [16]byte
	Shuffled bool
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
// no mux can read (section 3.1 of the draft).
const CIDConfigs = 7

// ConfigID is the configuration id that names the key.
func (k *CIDKey) ConfigID() uint8 { return uint8(k.Epoch % CIDConfigs) }

// MuxCookies are the keys of a VIP as muxes need them.
func (k *KeySet) MuxCookies(vip netip.Addr) CookieKeys { return cookieKeys(vip, k.Keys, k.Mint()) }

// HostCookies are the keys of a VIP as hosts need them; false: they have none yet.
func (k *KeySet) HostCookies(vip netip.Addr) (CookieKeys, bool) {
	return cookieKeys(vip, k.OfHosts(), k.Mint()), len(k.OfHosts()) > 0
}

func cookieKeys(vip netip.Addr, keys []SetKey, mint uint32) CookieKeys {
	out := CookieKeys{VIP: vip, Mint: mint}
	for _, s := range keys {
		out.Keys = append(out.Keys, CookieKey{Epoch: s.Epoch, Key: s.Key, Shuffled: s.Shuffled})
	}
	return out
}

// CIDs are the keys of a VIP as muxes need them.
func (k *KeySet) CIDs(vip netip.Addr) CIDKeys {
	out := CIDKeys{VIP: vip, Mint: k.Mint()}
	for _, s := range k.Keys {
		out.Keys = append(out.Keys, CIDKey{Epoch: s.Epoch, Key: s.Key})
	}
	return out
}

// CompareCookies orders keys by VIP.
func CompareCookies(a, b CookieKeys) int {
	return cmp.Or(cmp.Compare(a.VNI, b.VNI), a.VIP.Compare(b.VIP))
}

// CompareCIDs orders keys by VIP.
func CompareCIDs(a, b CIDKeys) int {
	return cmp.Or(cmp.Compare(a.VNI, b.VNI), a.VIP.Compare(b.VIP))
}
