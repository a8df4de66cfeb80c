package mux

import (
	"maps"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/probe"
)

// naiveRoster asks for each member by its name, each time.
type naiveRoster struct{ *roster }

func (r naiveRoster) each(endpoints []plan.Endpoint, f func(vip netip.Addr, m *member)) {
	for _, e := range endpoints {
		for _, pm := range e.Members {
			m := r.members[backend{e.Key, lb.BackendKey{DIP: pm.DIP, Port: pm.Port}}]
			if m != nil && pm.Weight > 0 {
				f(e.Key.VIP, m)
			}
		}
	}
}

func (r naiveRoster) served(endpoints []plan.Endpoint) map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for _, e := range endpoints {
		for _, pm := range e.Members {
			if pm.Weight > 0 && r.bit(e.Key, pm) {
				out[e.Key.VIP] = true
			}
		}
	}
	return out
}

func (r naiveRoster) unsettled(endpoints []plan.Endpoint) map[netip.Addr]bool {
	first := map[netip.Addr]uint64{}
	r.each(endpoints, func(vip netip.Addr, m *member) {
		if before, known := first[vip]; m.state.Alive() && (!known || m.back < before) {
			first[vip] = m.back
		}
	})
	out := map[netip.Addr]bool{}
	r.each(endpoints, func(vip netip.Addr, m *member) {
		if !m.state.Alive() && (!m.asked || m.once && (m.good > 0 || m.seen < first[vip])) {
			out[vip] = true
		}
	})
	return out
}

// TestRosterAgainstNaive: what is remembered of members is what is found by their names, through plans and probes.
func TestRosterAgainstNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRoster(func(lb.EndpointKey, uint16) (bool, bool) { return false, false }, func(lb.EndpointKey) mark { return mark{} })
		random := func() []plan.Endpoint {
			var out []plan.Endpoint
			for i := range rapid.IntRange(0, 4).Draw(t, "endpoints") {
				e := plan.Endpoint{Key: lb.EndpointKey{VIP: netip.AddrFrom4([4]byte{203, 0, 113, byte(i / 2)}), Protocol: lb.TCP, Port: uint16(80 + i)}}
				e.FailOpen, e.Check.Rise, e.Check.Fall = rapid.Bool().Draw(t, "fail open"), 1, 1
				for j := range rapid.IntRange(0, 3).Draw(t, "members") {
					dip := netip.AddrFrom4([4]byte{10, 20, 1, byte(j)})
					e.Members = append(e.Members, plan.Member{ID: uint16(j), DIP: dip, Outer: dip, Port: e.Key.Port, Weight: uint16(rapid.IntRange(0, 1).Draw(t, "weight"))})
				}
				out = append(out, e)
			}
			return out
		}
		var now, before []plan.Endpoint
		t.Repeat(map[string]func(*rapid.T){
			"plan": func(*rapid.T) {
				before, now = now, random()
				r.apply(now)
			},
			"obeyed": func(*rapid.T) { r.prune() },
			"probe": func(t *rapid.T) {
				for target := range r.byTarget {
					if rapid.Bool().Draw(t, "probed") {
						r.observe(probe.Result{Target: target, Good: rapid.Bool().Draw(t, "good")})
					}
				}
			},
			"": func(t *rapid.T) {
				for _, endpoints := range [][]plan.Endpoint{now, before, now} {
					naive, all := naiveRoster{r}, func(netip.Addr) bool { return true }
					if got, want := r.served(endpoints, all), naive.served(endpoints); !maps.Equal(got, want) {
						t.Fatalf("served %v, expected %v", got, want)
					}
					if got, want := r.unsettled(endpoints), naive.unsettled(endpoints); !maps.Equal(got, want) {
						t.Fatalf("unsettled %v, expected %v", got, want)
					}
				}
			},
		})
	})
}
