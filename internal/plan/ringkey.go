package plan

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/ring"
)

// RingKeyOf returns the hash key for an endpoint's flows, by the key id in its state, as the base
// key that all muxes have and the VIP's tweak of it. keys are the live ones, ordered by id. The
// first is the base; its own id selects the base without a tweak. The others are secrets of the
// managers, from which the tweaks of all VIPs are derived. So a host has only the keys of the VIPs
// that it serves, and a key is replaced by moving an endpoint to a later id. live is false if there
// is no such key.
func RingKeyOf(keys []Key, id uint32, of lb.EndpointKey) (base Key, tweak uint64, live bool) {
	at := slices.IndexFunc(keys, func(k Key) bool { return k.ID == id })
	switch {
	case at < 0 && len(keys) == 0:
		return Key{}, 0, false
	case at <= 0:
		return keys[0], 0, at == 0
	}
	return keys[0], ringTweak(keys[at], of), true
}

// ringTweak returns 8 bytes of the HMAC-SHA-256 of VNI and VIP under a secret; never 0, which means
// no tweak.
func ringTweak(secret Key, of lb.EndpointKey) uint64 {
	mac := hmac.New(sha256.New, secret.Key[:])
	vip := of.VIP.As16()
	mac.Write(append(binary.BigEndian.AppendUint32([]byte("shunt ring key "), of.VNI), vip[:]...))
	return max(1, binary.LittleEndian.Uint64(mac.Sum(nil)))
}

// hostRingKey returns the complete key of an endpoint for its hosts; its id is that in the
// endpoint's state.
func hostRingKey(keys []Key, id uint32, of lb.EndpointKey) (Key, bool) {
	base, tweak, live := RingKeyOf(keys, id, of)
	if !live {
		return Key{}, false
	}
	out, whole := Key{ID: id}, ring.KeyOf(base.Key).Tweaked(tweak)
	binary.LittleEndian.PutUint64(out.Key[:8], whole.K0)
	binary.LittleEndian.PutUint64(out.Key[8:], whole.K1)
	return out, true
}
