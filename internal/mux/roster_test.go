package mux

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/probe"
)

// naiveRoster looks up each member by its key each time.
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

func (r naiveRoster) served(endpoints []plan.Endpoint, reachable func(netip.Addr) bool) map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for _, e := range endpoints {
		healthy := 0
		for _, pm := range e.Members {
			if pm.Weight > 0 && r.bit(e.Key, pm) && reachable(pm.Outer) {
				healthy++
			}
		}
		if healthy >= max(int(e.Health.MinimumHealthy), 1) {
			out[e.Key.VIP] = true
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
		if !m.alive() && !m.damped && (!m.asked || m.once && (m.good > 0 || m.seen < first[vip])) {
			out[vip] = true
		}
	})
	return out
}

// targets returns the targets of members that need to be probed.
func (r naiveRoster) targets(endpoints []plan.Endpoint) map[probe.Target]bool {
	out := map[probe.Target]bool{}
	for _, e := range endpoints {
		for _, pm := range e.Members {
			if r.members[backend{e.Key, lb.BackendKey{DIP: pm.DIP, Port: pm.Port}}].probed() {
				for _, c := range e.Health.Checks {
					out[probe.Wanted(c, pm.DIP, pm.Port, probe.Way{Endpoint: e.Key, Outer: pm.Outer, Encap: e.Encap, Member: pm.ID})] = true
				}
			}
		}
	}
	return out
}

// TestRosterAgainstNaive: the indexes of the member table equal lookups by key, through plans and
// probes.
func TestRosterAgainstNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRoster(func(lb.EndpointKey, uint16) (bool, bool) { return false, false }, func(lb.EndpointKey) mark { return mark{} })
		random := func() []plan.Endpoint {
			var out []plan.Endpoint
			for i := range rapid.IntRange(0, 4).Draw(t, "endpoints") {
				e := plan.Endpoint{Key: lb.EndpointKey{VIP: netip.AddrFrom4([4]byte{203, 0, 113, byte(i / 2)}), Protocol: lb.TCP, Port: uint16(80 + i)}}
				for range rapid.IntRange(1, 3).Draw(t, "checks") {
					c := lb.Check{Port: uint16(rapid.IntRange(0, 2).Draw(t, "check port")), Rise: 1, Fall: 1}
					c.Through = rapid.SampledFrom([]string{lb.ThroughDirect, lb.ThroughDirect, lb.ThroughTunnel}).Draw(t, "through")
					c.Initial = rapid.SampledFrom([]string{lb.InitialDown, lb.InitialDown, lb.InitialUp}).Draw(t, "initial")
					e.Health.Checks = append(e.Health.Checks, c)
				}
				e.Service, e.Encap = rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "service"), lb.EncapGUE
				e.Health.Combine = rapid.SampledFrom([]string{lb.CombineAll, lb.CombineAny}).Draw(t, "combine")
				if rapid.Bool().Draw(t, "damped") {
					e.Health.Damping = &lb.Damping{Flips: 1, Within: time.Minute, Hold: 15 * time.Second}
				}
				e.FailOpen, e.Health.PanicBelow = rapid.Bool().Draw(t, "fail open"), rapid.SampledFrom([]uint8{0, 60}).Draw(t, "panic below")
				e.Health.MinimumHealthy = rapid.Uint16Range(0, 2).Draw(t, "minimum")
				e.Health.From = rapid.SampledFrom([]string{lb.FromMux, lb.FromHost, lb.FromBoth}).Draw(t, "from")
				for j := range rapid.IntRange(0, 3).Draw(t, "members") {
					dip := netip.AddrFrom4([4]byte{10, 20, 1, byte(j)})
					e.Members = append(e.Members, plan.Member{ID: uint16(j), DIP: dip, Outer: dip, Port: e.Key.Port, Weight: uint16(rapid.IntRange(0, 1).Draw(t, "weight"))})
				}
				out = append(out, e)
			}
			return out
		}
		// obeyed is the applied plan, applied the one being applied. undo reverts it.
		var obeyed, applied []plan.Endpoint
		var undo []func()
		when, told := time.Unix(1000, 0), map[probe.Target]bool{}
		served, unsettled, all := map[netip.Addr]bool{}, map[netip.Addr]bool{}, func(netip.Addr) bool { return true }
		t.Repeat(map[string]func(*rapid.T){
			"plan": func(*rapid.T) {
				if len(undo) > 0 {
					return
				}
				next, before := random(), applied
				for i := range next { // some do not change
					if at := slices.IndexFunc(applied, func(e plan.Endpoint) bool { return e.Key == next[i].Key }); at >= 0 && rapid.Bool().Draw(t, "same") {
						next[i] = applied[at]
					}
				}
				changes := plan.Differences(applied, next)
				decisions := r.apply(changes, when)
				applied = next
				undo = append(undo, func() {
					r.takeBack(changes, decisions, when)
					applied = before
				})
			},
			"obeyed": func(*rapid.T) {
				r.prune()
				obeyed, undo = applied, nil
			},
			"taken back": func(*rapid.T) {
				for _, back := range undo {
					back()
				}
				undo = nil
			},
			"targets": func(*rapid.T) {
				told = map[probe.Target]bool{}
				for _, target := range r.targets() {
					told[target] = true
				}
			},
			"retarget": func(t *rapid.T) {
				if r.moved {
					return
				}
				start, stop := r.retarget()
				for _, target := range start {
					if told[target] {
						t.Fatalf("%v is probed already", target)
					}
					told[target] = true
				}
				for _, target := range stop {
					if !told[target] {
						t.Fatalf("%v is not probed", target)
					}
					delete(told, target)
				}
			},
			"probe": func(t *rapid.T) {
				var batch []probe.Result
				for _, target := range slices.SortedFunc(maps.Keys(r.byTarget), compareTargets) {
					for range rapid.IntRange(0, 2).Draw(t, "probed") {
						result := probe.Result{Target: target, Good: rapid.Bool().Draw(t, "good"), Void: rapid.IntRange(0, 5).Draw(t, "void") == 0}
						result.Silent = !result.Good && rapid.Bool().Draw(t, "silent")
						batch = append(batch, result)
					}
				}
				r.observe(batch, when, func(probe.Target) bool { return true })
			},
			"others": func(t *rapid.T) {
				r.othersSay(drawVerdicts(t), when)
			},
			"cut off": func(t *rapid.T) {
				var batch []probe.Result
				for _, target := range slices.SortedFunc(maps.Keys(r.byTarget), compareTargets) {
					batch = append(batch, probe.Result{Target: target, Silent: true})
				}
				r.observe(batch, when, func(probe.Target) bool { return true })
			},
			"hear": func(t *rapid.T) {
				r.hear(drawVerdicts(t), when)
				r.moved, r.heard.retarget = r.moved || r.heard.retarget, false
			},
			"time": func(t *rapid.T) {
				when = when.Add(time.Duration(rapid.IntRange(0, 20).Draw(t, "seconds")) * time.Second)
				r.moved = r.standIn(when) || r.moved
				r.tick(when)
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
				listed, checks := 0, 0
				for target, members := range r.byTarget {
					listed += len(members)
					for i, m := range members {
						if int(m.at) != i+1 || m.target != target || m.of.group == nil {
							t.Fatalf("check %d of %v is %+v", i, target, m)
						}
					}
				}
				there := 0
				for _, e := range applied {
					there += len(e.Members)
					checks += len(e.Members) * len(e.Health.Checks)
				}
				if listed != checks || len(r.groups) != len(applied) {
					t.Fatalf("%d checks of targets and %d groups, of %d checks and %d endpoints", listed, len(r.groups), checks, len(applied))
				}
				verifyDoubt(t, r, when)
				naive := naiveRoster{r}
				if want := naive.targets(applied); !r.moved && len(r.turned) == 0 && !maps.Equal(told, want) {
					t.Fatalf("%v are probed, not %v", told, want)
				}
				r.look(all, func(vip netip.Addr, v vipHealth) {
					delete(served, vip)
					delete(unsettled, vip)
					if v.served {
						served[vip] = true
					}
					if v.unsettled {
						unsettled[vip] = true
					}
				})
				if want := naive.served(obeyed, all); !maps.Equal(served, want) {
					t.Fatalf("served %v, expected %v", served, want)
				}
				if want := naive.unsettled(obeyed); !maps.Equal(unsettled, want) {
					t.Fatalf("unsettled %v, expected %v", unsettled, want)
				}
				if len(undo) == 0 && len(r.members) != there {
					t.Fatalf("%d members of %d", len(r.members), there)
				}
			},
		})
	})
}

// verifyDoubt compares all members with the index of damped ones, the service counts, and the
// conditions for held checks.
func verifyDoubt(t *rapid.T, r *roster, now time.Time) {
	services := map[string]int{}
	damped := 0
	for key, g := range r.groups {
		services[g.Service]++
		for _, m := range g.members {
			if m.damped {
				damped++
			}
			if m.damped != r.damped[m] || m.damped && (m.damper == nil || g.Health.Damping == nil) {
				t.Fatalf("%d of %v is damped: %v, listed: %v", m.ID, key, m.damped, r.damped[m])
			}
			if up, _ := m.combine(g.needed); up != m.up {
				t.Fatalf("%d of %v is up: %v, its checks come to %v", m.ID, key, m.up, up)
			}
			for _, c := range m.checks {
				if c.held && (c.state.Alive() || !c.fell) {
					t.Fatalf("a check of %d of %v is held: %+v", m.ID, key, c)
				}
				said := r.doubt.others[key][m.ID]
				if c.held && r.doubt.Phase() == health.Conceding && said != saidAlive || c.held && r.doubt.Phase() == health.Holding && said == saidDead {
					t.Fatalf("a check of %d of %v is held in phase %v, others say %v", m.ID, key, r.doubt.Phase(), said)
				}
			}
			if m.turning {
				t.Fatalf("%d of %v is left in the middle", m.ID, key)
			}
		}
	}
	if damped != len(r.damped) {
		t.Fatalf("%d members are damped, %d listed", damped, len(r.damped))
	}
	for name, n := range services {
		if s := r.doubt.services[name]; s == nil || s.endpoints != n {
			t.Fatalf("%s has %d endpoints, counted as %+v", name, n, s)
		}
	}
	if len(services) != len(r.doubt.services) {
		t.Fatalf("%d services, counted as %d", len(services), len(r.doubt.services))
	}
	if due := r.due(); damped > 0 && (due.IsZero() || r.dampedDue.IsZero()) {
		t.Fatalf("%d members are damped, and nothing is due", damped)
	}
}

// drawVerdicts draws host reports on the endpoints of the test above, and on others.
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
