package plan

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/ring"
)

// RingKeyOf is the key that an endpoint's flows are hashed with, by the id in its state: base, which all muxes have, and the VIP's tweak of
// it. keys are the live ones, ordered by id: the first is base, whose own id stands for itself and no tweak; the others are secrets that
// managers alone have, of which the tweaks of all VIPs are made. So a host knows the keys of the VIPs that it serves and no other, and a
// key is replaced by an endpoint going to a later id. Not live: no such key.
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

// ringTweak is HMAC-SHA-256 of VNI and VIP under a secret, 8 bytes of it; never 0, which stands for none.
func ringTweak(secret Key, of lb.EndpointKey) uint64 {
	mac := hmac.New(sha256.New, secret.Key[:])
	vip := of.VIP.As16()
	mac.Write(append(binary.BigEndian.AppendUint32([]byte("shunt ring key "), of.VNI), vip[:]...))
	return max(1, binary.LittleEndian.Uint64(mac.Sum(nil)))
}

// hostRingKey is the whole key of an endpoint, as hosts get it: its id is that in the endpoint's state.
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
