package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

// KeyPurpose is the use of keys.
type KeyPurpose string

// KeysOfCookies belong to one VIP. KeysOfCIDs (QUIC connection ids) belong to one service, because
// a server cannot see by which of the service's VIPs a connection came.
const (
	KeysOfCookies KeyPurpose = "cookie"
	KeysOfCIDs    KeyPurpose = "cid"
)

// KeyPhase is the progress of a key change. Each phase except the last two ends when all its nodes
// applied the plan that it began with. At every moment a mux that serves a VIP reads every stamp
// that a host may make (design section 9.7).
type KeyPhase string

const (
	// KeysSpread: muxes get the new key, which is not in use yet.
	KeysSpread KeyPhase = "spread"
	// KeysReturn: a scope needs its keys again after a time without need. Muxes get all of them;
	// hosts have none.
	KeysReturn KeyPhase = "return"
	// KeysSwitch: hosts get the key and stamp with it.
	KeysSwitch KeyPhase = "switch"
	// KeysRest: all hosts stamp with the new key; stamps of the previous key are still read, for
	// silent connections.
	KeysRest KeyPhase = "rest"
	// KeysSteady: there is one key.
	KeysSteady KeyPhase = "steady"
)

// KeyPhases lists all phases in the order in which keys pass through them.
var KeyPhases = []KeyPhase{KeysSpread, KeysReturn, KeysSwitch, KeysRest, KeysSteady}

// KeySet holds the live keys of a purpose and scope.
type KeySet struct {
	// Keys has one or two keys, ordered by epoch; the second has the next epoch.
	Keys  []SetKey
	Phase KeyPhase
	// Since is when the phase began.
	Since time.Time
	// Service has the VIP, or is the scope itself. Keys are not handed from one service to another.
	Service string
}

// SetKey is a key of a KeySet.
type SetKey struct {
	Epoch uint32 // from 1
	Key   [16]byte
	Made  time.Time
	// Shuffled: cookies name members by shuffled ids under this key (cookie.SecretOf). False for
	// connection ids, and for keys of builds before this field.
	Shuffled bool
}

// NewKeySet returns a set whose first key is being sent to muxes.
func NewKeySet(service string, first SetKey) KeySet {
	return KeySet{Keys: []SetKey{first}, Phase: KeysSpread, Since: first.Made, Service: service}
}

// newest returns the last key.
func (k *KeySet) newest() SetKey { return k.Keys[len(k.Keys)-1] }

// Again returns the keys of a scope that needs them again. It keeps all, because a host that did
// not receive the change may have stamped with any.
func (k *KeySet) Again(now time.Time) KeySet {
	return KeySet{Keys: k.Keys, Phase: KeysReturn, Since: now, Service: k.Service}
}

// Mint returns the epoch for new stamps.
func (k *KeySet) Mint() uint32 {
	if k.Phase == KeysSpread {
		return k.Keys[0].Epoch
	}
	return k.newest().Epoch
}

// OfHosts returns the keys that hosts have; none while muxes get the first key, or all keys again.
func (k *KeySet) OfHosts() []SetKey {
	switch k.Phase {
	case KeysSpread:
		return k.Keys[:len(k.Keys)-1]
	case KeysReturn:
		return nil
	}
	return k.Keys
}

// Waits reports whether the phase waits for nodes.
func (k *KeySet) Waits() bool { return k.Phase != KeysRest && k.Phase != KeysSteady }

// Rotate begins the replacement of the key. wrong is the reason when it must not begin. rest is how
// long a key is read after hosts stop using it; shuffled is SetKey.Shuffled of the new key.
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

// Step returns the next phase if the current one is over. acked reports whether all nodes of the
// phase applied it.
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

// Due returns when the next step or rotation is due by time; zero when it depends on nodes. With
// lifetime 0 keys are not rotated by age.
func (k *KeySet) Due(rest, lifetime time.Duration) time.Time {
	switch {
	case k.Phase == KeysRest:
		return k.Since.Add(rest)
	case k.Phase == KeysSteady && lifetime > 0:
		return k.newest().Made.Add(lifetime)
	}
	return time.Time{}
}

// Needs reports whether a service has endpoints with keys of the purpose.
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

// Fade reports whether a VIP of a service has endpoints that no longer have keys of the purpose but
// whose connections still carry cookies or ids made with them.
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

// CookieKeys holds all live cookie keys of a VIP's endpoints, so that stamps of any of them can be
// read.
type CookieKeys struct {
	VNI  uint32
	VIP  netip.Addr
	Keys []CookieKey // one or two, ordered by epoch, with different ids
	// Mint is the epoch of the key for new cookies; it is in Keys.
	Mint uint32
}

// CookieKey is a key of SipHash-1-3 (protocol section 1.6). Shuffled is as in SetKey.
type CookieKey struct {
	Epoch    uint32 // from 1
	Key      [16]byte
	Shuffled bool
}

// ID returns the bit of a cookie that names its key.
func (k *CookieKey) ID() uint8 { return uint8(k.Epoch & 1) }

// CIDKeys holds all live keys of the connection ids that a VIP's QUIC servers make.
type CIDKeys struct {
	VNI  uint32
	VIP  netip.Addr
	Keys []CIDKey // one or two, ordered by epoch, with different configuration ids
	// Mint is the epoch of the key for new ids; it is in Keys.
	Mint uint32
}

// CIDKey is a key of AES-128 (draft-ietf-quic-load-balancers-21 section 5).
type CIDKey struct {
	Epoch uint32 // from 1
	Key   [16]byte
}

// CIDConfigs is the number of configuration ids: three bits of a connection id's first octet,
// without 7, which marks ids that no mux can read (section 3.1 of the draft).
const CIDConfigs = 7

// ConfigID returns the configuration id that names the key.
func (k *CIDKey) ConfigID() uint8 { return uint8(k.Epoch % CIDConfigs) }

// MuxCookies returns the keys of a VIP for muxes.
func (k *KeySet) MuxCookies(vip netip.Addr) CookieKeys { return cookieKeys(vip, k.Keys, k.Mint()) }

// HostCookies returns the keys of a VIP for hosts; false: they have none yet.
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

// CIDs returns the keys of a VIP for muxes.
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
