package dataplane

import (
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

// TestBackendSet compares the set with a map, nearly full and with keys given again under another index.
func TestBackendSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const room = 8
		s, oracle, byIndex := newBackendSet(room), map[backendKey]*backendRef{}, map[uint32]*backendRef{}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			index := rapid.Uint32Range(0, room-1).Draw(t, "index")
			k := backendKey{outer: netip.AddrFrom4([4]byte{10, 0, 0, rapid.Byte().Draw(t, "host") % 20}), mtu: 1500}
			if b := byIndex[index]; b != nil {
				s.remove(b)
				delete(byIndex, index)
				if oracle[b.backendKey] == b {
					delete(oracle, b.backendKey)
				}
			} else {
				b := &backendRef{backendKey: k, index: index}
				s.put(b)
				oracle[k], byIndex[index] = b, b
			}
			for host := range byte(20) {
				k := backendKey{outer: netip.AddrFrom4([4]byte{10, 0, 0, host}), mtu: 1500}
				if got := s.get(k); got != oracle[k] {
					t.Fatalf("%v: %v, expected %v", k, got, oracle[k])
				}
			}
			for i, b := range s.byIndex {
				if b != byIndex[uint32(i)] {
					t.Fatalf("index %d: %v, expected %v", i, b, byIndex[uint32(i)])
				}
			}
		}
	})
}
