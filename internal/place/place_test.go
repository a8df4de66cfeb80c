package place

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// life is a placer and the world with its inputs.
type life struct {
	*world
	p *Placer
	// loads and capacities are drawn only if these are set.
	loads, capacities, away bool
}

func newLife(rt *rapid.T) *life {
	b := Bounds{VIPs: rapid.SampledFrom([]uint32{0, 10, 50}).Draw(rt, "bound"), Load: rapid.SampledFrom([]uint32{0, 25}).Draw(rt, "load bound")}
	return &life{world: newWorld(b), p: New(b)}
}

func (l *life) setMux(m Mux) {
	l.muxes[m.Name] = m
	l.p.SetMux(m)
}

func (l *life) setVIP(v VIP) {
	l.vips[v.Key] = v
	l.p.SetVIP(v)
}

func (l *life) dropMux(name string) {
	delete(l.muxes, name)
	for k, on := range l.kept {
		l.kept[k] = slices.DeleteFunc(slices.Clone(on), func(n string) bool { return n == name })
	}
	l.p.DropMux(name)
}

func (l *life) dropVIP(k Key) {
	delete(l.vips, k)
	delete(l.on, k)
	delete(l.kept, k)
	l.p.DropVIP(k)
}

func (l *life) drawMux(rt *rapid.T) Mux {
	m := Mux{
		Name:  fmt.Sprintf("mux%d", rapid.IntRange(0, 6).Draw(rt, "mux")),
		Zone:  rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "zone"),
		Drain: rapid.IntRange(0, 5).Draw(rt, "drain") == 0,
		Down:  rapid.IntRange(0, 5).Draw(rt, "down") == 0,
	}
	if l.away {
		m.Away = rapid.IntRange(0, 5).Draw(rt, "away") == 0
	}
	if l.capacities {
		m.VIPs = rapid.SampledFrom([]uint32{0, 1, 3, 6}).Draw(rt, "capacity")
		m.BaseVIPs = rapid.SampledFrom([]uint32{0, 0, 2}).Draw(rt, "base")
	}
	if l.capacities && l.loads {
		m.Packets = rapid.SampledFrom([]uint64{0, 50, 200}).Draw(rt, "packets")
		m.BasePackets = rapid.SampledFrom([]uint64{0, 0, 60}).Draw(rt, "base packets")
	}
	return m
}

func (l *life) drawVIP(rt *rapid.T) VIP {
	v := VIP{Key: keyN(rapid.IntRange(0, 11).Draw(rt, "vip")), Replicas: rapid.IntRange(0, 4).Draw(rt, "replicas")}
	if l.loads {
		v.By = By(rapid.IntRange(0, 1).Draw(rt, "by"))
		v.Load = rapid.SampledFrom([]uint64{0, 1, 7, 30, 100}).Draw(rt, "load")
	}
	return v
}

func (l *life) happen(rt *rapid.T) {
	switch rapid.IntRange(0, 9).Draw(rt, "event") {
	case 0:
		if len(l.muxes) > 0 {
			l.dropMux(rapid.SampledFrom(slices.Sorted(maps.Keys(l.muxes))).Draw(rt, "which"))
		}
	case 1:
		if len(l.vips) > 0 {
			l.dropVIP(rapid.SampledFrom(slices.SortedFunc(maps.Keys(l.vips), Key.Compare)).Draw(rt, "which"))
		}
	case 2, 3, 4:
		l.setMux(l.drawMux(rt))
	default:
		l.setVIP(l.drawVIP(rt))
	}
}

// step runs a step and stores the result; it returns the number of muxes that VIPs gained.
func (l *life) step(rt *rapid.T) (gained int) {
	before := maps.Clone(l.on)
	told := map[Key]bool{}
	for _, c := range l.p.Step() {
		told[c.Key] = true
		if !slices.Equal(c.Was, before[c.Key]) || !slices.Equal(c.Now, l.p.Muxes(c.Key)) {
			rt.Fatalf("change %+v: was on %v, is on %v", c, before[c.Key], l.p.Muxes(c.Key))
		}
		for _, name := range c.Now {
			if !slices.Contains(c.Was, name) {
				gained++
			}
		}
	}
	l.on = map[Key][]string{}
	for k := range l.vips {
		l.on[k] = l.p.Muxes(k)
		if !told[k] && !slices.Equal(before[k], l.on[k]) {
			rt.Fatalf("%v went from %v to %v, and nobody was told", k, before[k], l.on[k])
		}
	}
	l.kept = maps.Clone(l.on)
	return gained
}

func (l *life) check(rt *rapid.T) {
	if faults := l.faults(); len(faults) > 0 {
		rt.Fatalf("%d faults: %s\nmuxes %+v\nVIPs %+v\non %v", len(faults), faults[0], l.muxes, l.vips, l.on)
	}
	short := map[Key]bool{}
	for _, problem := range l.p.Problems() {
		short[problem.Key] = true
		v, muxes := l.vips[problem.Key], 0
		for _, m := range l.muxes {
			if live(m) {
				muxes++
			}
		}
		if problem.Placed != len(l.on[v.Key]) || problem.Wanted != v.Replicas || problem.Muxes != muxes || (problem.Reason == FewMuxes) != (problem.Placed >= muxes) {
			rt.Fatalf("problem %+v of %+v on %v", problem, v, l.on[v.Key])
		}
	}
	for k, v := range l.vips {
		if short[k] != (len(l.on[k]) < v.Replicas) {
			rt.Fatalf("%+v on %v: short is %v", v, l.on[k], short[k])
		}
	}
	for name := range l.muxes {
		vips, packets := l.p.Use(name)
		if v, p, _ := l.used(name); v != vips || p != packets {
			rt.Fatalf("%s has %d VIPs and %d packets, says %d and %d", name, v, p, vips, packets)
		}
	}
}

// rules: after any history the decision breaks no rule, and equals a decision from scratch.
func rules(rt *rapid.T) {
	l := newLife(rt)
	l.loads, l.capacities, l.away = rapid.Bool().Draw(rt, "loads"), rapid.Bool().Draw(rt, "capacities"), rapid.Bool().Draw(rt, "away")
	for range rapid.IntRange(1, 12).Draw(rt, "steps") {
		for range rapid.IntRange(1, 12).Draw(rt, "events") {
			l.happen(rt)
		}
		again := l.scratch(rt)
		l.step(rt)
		l.check(rt)
		for k := range l.vips {
			if other := again.Muxes(k); !slices.Equal(other, l.on[k]) {
				rt.Fatalf("%v is on %v, from scratch on %v", k, l.on[k], other)
			}
		}
		if n := len(l.p.Step()); n > 0 {
			rt.Fatalf("%d changes although nothing happened", n)
		}
	}
}

func TestRules(t *testing.T) { rapid.Check(t, rules) }

func FuzzRules(f *testing.F) { f.Fuzz(rapid.MakeFuzz(rules)) }

// TestMostReplicas: with numbers of VIPs as the only limit, no other assignment has more replicas.
func TestMostReplicas(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l := newLife(rt)
		l.capacities = true
		for range rapid.IntRange(1, 4).Draw(rt, "steps") {
			for range rapid.IntRange(1, 12).Draw(rt, "events") {
				l.happen(rt)
			}
			l.step(rt)
			placed := 0
			for _, on := range l.on {
				placed += len(on)
			}
			if most := l.mostReplicas(); placed != most {
				rt.Fatalf("%d replicas, %d are possible\nmuxes %+v\nVIPs %+v\non %v", placed, most, l.muxes, l.vips, l.on)
			}
		}
	})
}

// TestFromNothing: without limits, every VIP is in the maximum number of zones, and muxes of a zone
// differ by at most one VIP.
func TestFromNothing(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l := newLife(rt)
		l.bounds.VIPs = 1000
		l.p = New(l.bounds)
		zones := map[string]bool{}
		for i := range rapid.IntRange(1, 12).Draw(rt, "muxes") {
			m := Mux{Name: fmt.Sprintf("mux%d", i), Zone: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "zone")}
			zones[m.Zone] = true
			l.setMux(m)
		}
		for i := range rapid.IntRange(1, 60).Draw(rt, "vips") {
			l.setVIP(VIP{Key: keyN(i), Replicas: rapid.IntRange(1, 5).Draw(rt, "replicas")})
		}
		l.step(rt)
		for k, v := range l.vips {
			on := l.on[k]
			if len(on) != min(v.Replicas, len(l.muxes)) || len(l.zones(on)) != min(len(on), len(zones)) {
				rt.Fatalf("%+v is on %v of %+v", v, on, l.muxes)
			}
		}
		for _, a := range l.muxes {
			for _, b := range l.muxes {
				if x, y := l.measure(a.Name, ByVIPs), l.measure(b.Name, ByVIPs); a.Zone == b.Zone && x > y+1 {
					rt.Fatalf("%s has %d VIPs, %s of the same zone %d", a.Name, x, b.Name, y)
				}
			}
		}
	})
}
