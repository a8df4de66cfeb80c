package mux

import (
	"maps"
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/health"
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
		if before, known := first[vip]; m.alive() && (!known || m.back < before) {
			first[vip] = m.back
		}
	})
	out := map[netip.Addr]bool{}
	r.each(endpoints, func(vip netip.Addr, m *member) {
		if !m.alive() && (!m.asked || m.once && (m.good > 0 || m.seen < first[vip])) {
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
				e.Check.From = rapid.SampledFrom([]string{lb.FromMux, lb.FromHost, lb.FromBoth}).Draw(t, "from")
				for j := range rapid.IntRange(0, 3).Draw(t, "members") {
					dip := netip.AddrFrom4([4]byte{10, 20, 1, byte(j)})
					e.Members = append(e.Members, plan.Member{ID: uint16(j), DIP: dip, Outer: dip, Port: e.Key.Port, Weight: uint16(rapid.IntRange(0, 1).Draw(t, "weight"))})
				}
				out = append(out, e)
			}
			return out
		}
		var now, before []plan.Endpoint
		when := time.Unix(1000, 0)
		t.Repeat(map[string]func(*rapid.T){
			"plan": func(*rapid.T) {
				before, now = now, random()
				r.apply(now, when)
			},
			"obeyed": func(*rapid.T) { r.prune() },
			"probe": func(t *rapid.T) {
				for target := range r.byTarget {
					if rapid.Bool().Draw(t, "probed") {
						r.observe(probe.Result{Target: target, Good: rapid.Bool().Draw(t, "good")})
					}
				}
			},
			"hear": func(t *rapid.T) {
				r.hear(drawVerdicts(t), when)
			},
			"time": func(t *rapid.T) {
				when = when.Add(time.Duration(rapid.IntRange(0, 20).Draw(t, "seconds")) * time.Second)
				r.standIn(when)
			},
			"": func(t *rapid.T) {
				for key, g := range r.groups {
					var tally health.Tally
					for i, pm := range g.Members {
						m := r.members[backend{key, lb.BackendKey{DIP: pm.DIP, Port: pm.Port}}]
						if g.members[i] != m || m.ID != pm.ID {
							t.Fatalf("member %d of %v is not the one of its name", i, key)
						}
						tally.Add(m.standing())
					}
					if g.tally != tally {
						t.Fatalf("%v counts %+v, its members come to %+v", key, g.tally, tally)
					}
				}
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

// drawVerdicts draws what hosts say of the endpoints of the test above, and of others.
func drawVerdicts(t *rapid.T) plan.Verdicts {
	v := plan.Verdicts{Full: rapid.Bool().Draw(t, "full")}
	for i := range 4 {
		e := plan.EndpointVerdicts{Key: lb.EndpointKey{VIP: netip.AddrFrom4([4]byte{203, 0, 113, byte(i / 2)}), Protocol: lb.TCP, Port: uint16(80 + i)}}
		for id := range uint16(4) {
			switch rapid.IntRange(0, 3).Draw(t, "said") {
			case 0:
				e.Alive = append(e.Alive, id)
			case 1:
				e.Dead = append(e.Dead, id)
			case 2:
				e.Unknown = append(e.Unknown, id)
			}
		}
		v.Endpoints = append(v.Endpoints, e)
	}
	return v
}
