package snat

import (
	"math/rand/v2"
	"testing"
)

// TestPoolIsTheNaiveOne: a port serves a remote endpoint once, and Take fails only if no port is
// free.
func TestPoolIsTheNaiveOne(t *testing.T) {
	type use struct {
		f    Flow
		port uint16
	}
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 4))
		p := NewPool(seed, 4)
		ranges := []Range{200, 700, 8191}
		p.Use(ranges)
		used := map[use]bool{}
		var all []use
		for i := range 5000 {
			if rng.IntN(3) > 0 {
				f := Flow{Protocol: []uint8{1, 6, 17}[rng.IntN(3)], Port: uint16(rng.IntN(2)), Addr: uint32(rng.IntN(8))}
				port, ok := p.Take(f)
				n := 0
				for _, r := range ranges {
					for k := range uint16(RangePorts) {
						if used[use{f, r.Port() + k}] {
							n++
						}
					}
				}
				if ok != (n < len(ranges)*RangePorts) {
					t.Fatalf("seed %d, step %d: %v with %d ports in use", seed, i, ok, n)
				}
				if ok {
					u := use{f, port}
					if used[u] || port>>3 != 200 && port>>3 != 700 && port>>3 != 8191 {
						t.Fatalf("seed %d, step %d: port %d serves %v twice, or is none of the pool's", seed, i, port, f)
					}
					used[u] = true
					all = append(all, u)
				}
			} else if len(all) > 0 {
				k := rng.IntN(len(all))
				p.Give(all[k].f, all[k].port)
				p.Give(all[k].f, all[k].port) // a second time does nothing
				delete(used, all[k])
				all[k] = all[len(all)-1]
				all = all[:len(all)-1]
			}
		}
		for _, r := range ranges {
			n := 0
			for u := range used {
				if RangeOf(u.port) == r {
					n++
				}
			}
			if p.InUse(r) != n {
				t.Fatalf("seed %d: %d connections in range %s, want %d", seed, p.InUse(r), r, n)
			}
		}
	}
}

func TestPoolTakesNoMemory(t *testing.T) {
	p := NewPool(1, 1000)
	p.Use([]Range{200, 201, 202, 203})
	i := uint32(0)
	if n := testing.AllocsPerRun(1000, func() {
		i++
		f := Flow{Protocol: 6, Port: 443, Addr: i}
		port, _ := p.Take(f)
		p.Give(f, port)
	}); n != 0 {
		t.Fatalf("%v allocations for a connection", n)
	}
}

func BenchmarkPool(b *testing.B) {
	p := NewPool(1, 100_000)
	var ranges []Range
	for r := range Range(16) {
		ranges = append(ranges, 200+r)
	}
	p.Use(ranges)
	live := make([]struct {
		f    Flow
		port uint16
	}, 4096)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		l := &live[i%len(live)]
		if l.port != 0 {
			p.Give(l.f, l.port)
		}
		l.f = Flow{Protocol: 6, Port: 443, Addr: uint32(i % 500)}
		l.port, _ = p.Take(l.f)
		i++
	}
}
