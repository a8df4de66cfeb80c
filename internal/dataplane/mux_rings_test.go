package dataplane

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/lb"
)

// TestAllBelowIsNeverWrong: it may say no, but yes only where no id is too large.
func TestAllBelowIsNeverWrong(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ring := rapid.SliceOfN(rapid.Uint16(), 64, 64).Draw(t, "ring")
		most := rapid.Uint16().Draw(t, "most")
		for i := range ring {
			if rapid.IntRange(0, 63).Draw(t, "any") > 0 {
				ring[i] = uint16(uint32(ring[i]) * (uint32(most) + 1) >> 16)
			}
		}
		count := int(most) + 1
		want := int(slices.Max(ring)) < count
		if got := allBelow(ring, count); got && !want || !got && want && count <= 1<<15 {
			t.Fatalf("%v for a ring with ids up to %d of %d", got, slices.Max(ring), count)
		}
	})
}

// TestRingsAreKept: rings that are not given again stay, what names them may change, and nothing is kept that is not there.
func TestRingsAreKept(t *testing.T) {
	f := newMuxFixture(t)
	s := MuxState{RingKeys: testKeys, TunnelSources: sources, Endpoints: []MuxEndpoint{
		endpointOf(muxVIP4, lb.TCP, 80, "10.9.0.1", "10.9.0.2"),
	}}
	key, given := s.Endpoints[0].Key, s.Endpoints[0].Ring
	keep := func() *MuxEndpoint {
		s.Endpoints = slices.Clone(s.Endpoints)
		e := &s.Endpoints[0]
		e.Ring, e.KeepRings, e.Members = nil, true, slices.Clone(e.Members)
		return e
	}
	refused := func(why string) {
		t.Helper()
		if err := f.mux.Apply(s); err == nil || !strings.Contains(err.Error(), why) {
			t.Fatalf("error %v: must say %q", err, why)
		}
	}
	first := s
	keep()
	refused("none was applied")
	f.apply(first)
	e := keep()
	e.Members[0].Outer = netip.MustParseAddr("10.9.0.9")
	f.apply(s)
	if ring, backup := f.mux.Rings(key); !slices.Equal(ring, given) || backup != nil {
		t.Errorf("the rings are %v and %v, expected %v alone", ring, backup, given)
	}
	e = keep()
	e.Members = e.Members[1:]
	refused("to be kept, but member")
	e = keep()
	e.Ring = given
	refused("both given and to be kept")
}
