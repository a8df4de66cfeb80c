package place

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// settled returns a world without limits and loads that has settled. With its bound either nothing
// is ever evened out, or everything is.
func settled(rt *rapid.T, bound uint32, zones ...string) *life {
	b := Bounds{VIPs: bound}
	l := &life{world: newWorld(b), p: New(b)}
	for i := range rapid.IntRange(2, 9).Draw(rt, "muxes") {
		l.setMux(Mux{Name: fmt.Sprintf("mux%d", i), Zone: rapid.SampledFrom(zones).Draw(rt, "zone")})
	}
	for i := range rapid.IntRange(1, 40).Draw(rt, "vips") {
		l.setVIP(VIP{Key: keyN(i), Replicas: rapid.IntRange(1, 3).Draw(rt, "replicas")})
	}
	l.step(rt)
	return l
}

const never = 1_000_000

func (l *life) anyMux(rt *rapid.T) Mux {
	return l.muxes[rapid.SampledFrom(slices.Sorted(maps.Keys(l.muxes))).Draw(rt, "mux")]
}

// TestMuxLeaves: a mux that leaves moves each of its VIPs once, and no others.
func TestMuxLeaves(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l := settled(rt, never, "a", "b", "c")
		m := l.anyMux(rt)
		forced := 0
		for k, on := range l.on {
			// If it already has as many muxes as there are, there is no other to move to.
			if slices.Contains(on, m.Name) && len(l.muxes) > len(on) {
				forced++
			}
			_ = k
		}
		switch rapid.IntRange(0, 2).Draw(rt, "how") {
		case 0:
			l.dropMux(m.Name)
		case 1:
			m.Drain = true
			l.setMux(m)
		default:
			m.Down = true
			l.setMux(m)
		}
		before := maps.Clone(l.on)
		if gained := l.step(rt); gained != forced {
			rt.Fatalf("%d VIPs went to another mux, %d had to", gained, forced)
		}
		for k, on := range before {
			if !slices.Contains(on, m.Name) && !slices.Equal(on, l.on[k]) {
				rt.Fatalf("%v went from %v to %v when %s left", k, on, l.on[k], m.Name)
			}
		}
	})
}

// TestMuxComes: a new mux in an existing zone only takes VIPs that even out: no other mux gains
// any, and it ends with at most its part.
func TestMuxComes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		bound := rapid.SampledFrom([]uint32{0, 10, never}).Draw(rt, "bound")
		l := settled(rt, bound, "a")
		before, gained, total := maps.Clone(l.on), 0, 0
		l.setMux(Mux{Name: "new", Zone: "a"})
		gained = l.step(rt)
		for k, on := range l.on {
			total += len(on)
			if len(on) > len(before[k]) {
				gained-- // it lacked muxes
			}
			for _, name := range on {
				if name != "new" && !slices.Contains(before[k], name) {
					rt.Fatalf("%v went from %v to %v when a mux came", k, before[k], on)
				}
			}
		}
		part := (total + len(l.muxes) - 1) / len(l.muxes)
		if bound == never && gained > 0 || gained > part {
			rt.Fatalf("%d VIPs moved, %d is its part", gained, part)
		}
		l.check(rt)
	})
}

// TestOneVIP: adding, removing or changing a VIP moves no other.
func TestOneVIP(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l := settled(rt, never, "a", "b", "c")
		before := maps.Clone(l.on)
		v := VIP{Key: keyN(rapid.IntRange(0, 50).Draw(rt, "vip")), Replicas: rapid.IntRange(1, 4).Draw(rt, "replicas")}
		was := len(before[v.Key])
		if was > 0 && rapid.Bool().Draw(rt, "drop") {
			l.dropVIP(v.Key)
		} else {
			l.setVIP(v)
		}
		if gained := l.step(rt); gained > max(0, v.Replicas-was) {
			rt.Fatalf("%d muxes gained for %+v, which was on %d", gained, v, was)
		}
		for k, on := range before {
			if k != v.Key && !slices.Equal(on, l.on[k]) {
				rt.Fatalf("%v went from %v to %v because of %v", k, on, l.on[k], v.Key)
			}
		}
	})
}

// TestNewZone: the first mux of a zone gets one mux of each VIP that was twice in a zone, and
// nothing else moves.
func TestNewZone(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l := settled(rt, never, "a", "b")
		forced := 0
		for k, on := range l.on {
			if len(l.zones(on)) < len(on) || len(on) < l.vips[k].Replicas {
				forced++
			}
		}
		l.setMux(Mux{Name: "new", Zone: "c"})
		if gained := l.step(rt); gained != forced {
			rt.Fatalf("%d VIPs came to the new zone, %d had to", gained, forced)
		}
	})
}

// TestTiesMix: the VIPs of a mux that leaves spread over all others, not over those with the next
// names.
func TestTiesMix(t *testing.T) {
	p := New(DefaultBounds)
	for i := range 10 {
		p.SetMux(Mux{Name: fmt.Sprintf("mux%d", i)})
	}
	for i := range 1000 {
		p.SetVIP(VIP{Key: keyN(i), Replicas: 2})
	}
	p.Step()
	pairs := map[string]int{}
	for i := range 1000 {
		pairs[fmt.Sprint(p.Muxes(keyN(i)))]++
	}
	for pair, n := range pairs {
		if n > 60 {
			t.Errorf("%s has %d VIPs in common of 1000, want about 22", pair, n)
		}
	}
	if len(pairs) != 45 {
		t.Errorf("%d pairs of muxes have VIPs in common, want all 45", len(pairs))
	}
}

// TestRoomByALighterVIP: a VIP that gets another mux because a third one freed space takes less of
// its other muxes, and a VIP without any mux is placed there in the same step.
func TestRoomByALighterVIP(t *testing.T) {
	key := func(n byte) Key { return Key{VIP: netip.AddrFrom4([4]byte{203, 0, 0, n})} }
	p := Place(DefaultBounds,
		[]Mux{{Name: "mux0", Packets: 50}, {Name: "mux1", VIPs: 1}, {Name: "mux2", Packets: 200, BasePackets: 60}},
		[]VIP{{Key: key(1), Replicas: 1, By: ByLoad, Load: 100}, {Key: key(2), Replicas: 1}, {Key: key(3), Replicas: 3, By: ByLoad, Load: 100}},
		map[Key][]string{key(2): {"mux1"}, key(3): {"mux0", "mux2"}},
	)
	for k, want := range map[Key][]string{key(1): {"mux2"}, key(2): {"mux2"}, key(3): {"mux0", "mux1", "mux2"}} {
		if got := p.Muxes(k); !slices.Equal(got, want) {
			t.Errorf("%v is on %v, want %v", k, got, want)
		}
	}
}
