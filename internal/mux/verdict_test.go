package mux

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/probe"
)

// naiveMember stores all results of a member's checks, and evaluates all of them each time.
type naiveMember struct {
	endpoint *plan.Endpoint
	plan.Member
	targets []probe.Target
	// results are those that counted, by check, with their numbers among all results.
	results [][]naiveResult
	// past are all results, as the member's history should have them.
	past []string
}

type naiveResult struct {
	number int
	good   bool
}

// naiveBatch is the time of a batch and the number of results after it.
type naiveBatch struct {
	at      time.Time
	results int
}

// check replays the first results of a check.
func (m *naiveMember) check(i, results int) health.Member {
	is := m.endpoint.Health.Checks[i]
	state := health.Begin(is.Initial == lb.InitialUp)
	for _, r := range m.results[i] {
		if r.number < results {
			state.Observe(r.good, is.Rise, is.Fall)
		}
	}
	return state
}

// up returns the combined state of the checks after that many results, and whether it is known.
func (m *naiveMember) up(results int) (up, known bool) {
	need := map[string]int{lb.CombineAll: len(m.results), lb.CombineAny: 1, lb.CombineAtLeast: int(m.endpoint.Health.AtLeast)}[m.endpoint.Health.Combine]
	good, unknown := 0, 0
	for i := range m.results {
		if state := m.check(i, results); state.Alive() {
			good++
		} else if !state.Asked() {
			unknown++
		}
	}
	return good >= need, good >= need || good+unknown < need
}

// naiveVerdict returns the verdict on a member after batches, and whether a result was ever known.
func (m *naiveMember) naiveVerdict(batches []naiveBatch, now time.Time) (alive, asked bool) {
	var d health.Damper
	up, asked := m.up(0)
	results := 0
	for _, b := range batches {
		for ; results < b.results; results++ {
			_, known := m.up(results + 1)
			asked = asked || known
		}
		next, _ := m.up(results)
		if p := m.endpoint.Health.Damping; p != nil && next != up {
			if next {
				d.Rose(b.at, *p)
			} else {
				d.Fell(b.at, *p)
			}
		}
		up = next
	}
	return up && !d.Holds(now), asked
}

// drawChecked draws endpoints with several checks, some of which are equal.
func drawChecked(t *rapid.T) []plan.Endpoint {
	var out []plan.Endpoint
	for i := range rapid.IntRange(1, 4).Draw(t, "endpoints") {
		e := plan.Endpoint{Key: lb.EndpointKey{VIP: netip.AddrFrom4([4]byte{203, 0, 113, byte(i / 2)}), Protocol: lb.TCP, Port: uint16(80 + i)}}
		e.Service = fmt.Sprint("service", i)
		e.FailOpen, e.BackupBelow = rapid.Bool().Draw(t, "fail open"), rapid.SampledFrom([]uint8{0, 50}).Draw(t, "backup below")
		h := &e.Health
		h.From, h.PanicBelow = lb.FromMux, rapid.SampledFrom([]uint8{0, 0, 50, 100}).Draw(t, "panic below")
		h.MinimumHealthy = rapid.Uint16Range(0, 3).Draw(t, "minimum")
		h.Combine = rapid.SampledFrom([]string{lb.CombineAll, lb.CombineAny, lb.CombineAtLeast}).Draw(t, "combine")
		if rapid.Bool().Draw(t, "damped") {
			h.Damping = &lb.Damping{Flips: rapid.Uint16Range(0, 2).Draw(t, "flips"), Within: 30 * time.Second, Hold: 10 * time.Second}
		}
		for range rapid.IntRange(1, 3).Draw(t, "checks") {
			h.Checks = append(h.Checks, lb.Check{
				Kind: lb.CheckTCP, Port: rapid.Uint16Range(8000, 8002).Draw(t, "port"), Rise: rapid.Uint32Range(1, 2).Draw(t, "rise"),
				Fall: rapid.Uint32Range(1, 2).Draw(t, "fall"), Initial: rapid.SampledFrom([]string{lb.InitialDown, lb.InitialUp}).Draw(t, "initial"),
			})
		}
		h.AtLeast = uint8(rapid.IntRange(1, len(h.Checks)).Draw(t, "at least"))
		for j := range rapid.IntRange(1, 4).Draw(t, "members") {
			dip := netip.AddrFrom4([4]byte{10, 20, byte(i % 2), byte(j)})
			e.Members = append(e.Members, plan.Member{
				ID: uint16(j), DIP: dip, Outer: dip, Port: e.Key.Port, Weight: rapid.Uint16Range(0, 2).Draw(t, "weight"),
				Backup: rapid.IntRange(0, 3).Draw(t, "backup") == 0,
			})
		}
		out = append(out, e)
	}
	return out
}

// TestVerdictsAgainstNaive: batches of results, with duplicates and results that do not count, and
// time give members, endpoints, VIPs and alive bits the state that a replay of the full history
// gives. Silence may isolate the mux, but it has no grace period here.
func TestVerdictsAgainstNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRoster(func(lb.EndpointKey, uint16) (bool, bool) { return false, false }, func(lb.EndpointKey) mark { return mark{} })
		now := time.Unix(1000, 0)
		endpoints := drawChecked(t)
		r.apply(plan.Differences(nil, endpoints), now)
		r.prune()
		var members []*naiveMember
		var targets []probe.Target
		decisions, bits := map[lb.EndpointKey]health.Decision{}, map[dataplane.MemberKey]bool{}
		for i := range endpoints {
			e := &endpoints[i]
			for _, pm := range e.Members {
				m := &naiveMember{endpoint: e, Member: pm, results: make([][]naiveResult, len(e.Health.Checks))}
				for _, c := range e.Health.Checks {
					m.targets = append(m.targets, probe.Of(c, pm.DIP, pm.Port))
				}
				members, targets = append(members, m), append(targets, m.targets...)
			}
			for _, b := range r.bits(r.groups[e.Key]) {
				bits[dataplane.MemberKey{Endpoint: b.Endpoint, Member: b.Member}] = b.Alive
			}
			decisions[e.Key] = health.Decision{}
		}
		var batches []naiveBatch
		results := 0
		follow := func(c change) {
			for _, b := range c.bits {
				bits[dataplane.MemberKey{Endpoint: b.Endpoint, Member: b.Member}] = b.Alive
			}
		}
		verify := func() {
			tallies, healthy := map[lb.EndpointKey]*health.Tally{}, map[lb.EndpointKey]int{}
			for i := range endpoints {
				tallies[endpoints[i].Key] = &health.Tally{}
			}
			for _, m := range members {
				key := m.endpoint.Key
				alive, asked := m.naiveVerdict(batches, now)
				tallies[key].Add(health.Standing{Weight: m.Weight, Backup: m.Backup, Alive: alive, Asked: asked})
				got, _ := r.groups[key].find(m.ID, -1)
				if got.alive() != alive || got.asked != asked {
					t.Fatalf("%v of %v is %v (asked: %v), expected %v (%v), after %v of %+v", m.DIP, key, got.alive(), got.asked, alive, asked, m.results, m.endpoint.Health)
				}
				if alive && m.Weight > 0 {
					healthy[key]++
				}
				var past []string
				for _, p := range got.history.Results() {
					past = append(past, fmt.Sprint(p.Check, p.Good, p.Void, p.Words))
				}
				if want := m.past[max(len(m.past)-health.KeptResults, 0):]; fmt.Sprint(past) != fmt.Sprint(want) {
					t.Fatalf("history of %v: %v, expected %v", m.DIP, past, want)
				}
			}
			served := map[netip.Addr]bool{}
			for i := range endpoints {
				e := &endpoints[i]
				want := health.Decide(decisions[e.Key], *tallies[e.Key], health.Policy{BackupBelow: e.BackupBelow, FailOpen: e.FailOpen, PanicBelow: e.Health.PanicBelow})
				if decisions[e.Key] = want; r.decision(e.Key) != want {
					t.Fatalf("decided %+v of %v, expected %+v", r.decision(e.Key), e.Key, want)
				}
				enough := healthy[e.Key]
				if want.Open() {
					enough = 0
					for _, pm := range e.Members {
						if pm.Weight > 0 {
							enough++
						}
					}
				}
				served[e.Key.VIP] = served[e.Key.VIP] || enough >= max(int(e.Health.MinimumHealthy), 1)
			}
			for _, m := range members {
				alive, _ := m.naiveVerdict(batches, now)
				if want := alive || decisions[m.endpoint.Key].Open(); bits[dataplane.MemberKey{Endpoint: m.endpoint.Key, Member: m.ID}] != want {
					t.Fatalf("the tables have %v for %v of %v, expected %v", !want, m.DIP, m.endpoint.Key, want)
				}
			}
			r.look(func(netip.Addr) bool { return true }, func(netip.Addr, vipHealth) {})
			for vip, want := range served {
				if r.vips.get(vip).served != want {
					t.Fatalf("%v is served: %v, expected %v", vip, !want, want)
				}
			}
		}
		verify()
		for range rapid.IntRange(1, 25).Draw(t, "batches") {
			now = now.Add(time.Duration(rapid.IntRange(0, 6).Draw(t, "seconds")) * time.Second)
			// Changes that are due are applied first, as Run does by its timer.
			if due := r.due(); !due.IsZero() && !now.Before(due) {
				follow(r.tick(now))
			}
			verify()
			mood := rapid.SampledFrom([]int{1, 9}).Draw(t, "mood")
			var batch []probe.Result
			for range rapid.IntRange(0, 12).Draw(t, "results") {
				result := probe.Result{Target: rapid.SampledFrom(targets).Draw(t, "target"), At: now, Words: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "words")}
				result.Good = rapid.IntRange(0, 9).Draw(t, "good") < mood
				result.Silent = !result.Good && rapid.Bool().Draw(t, "silent")
				if rapid.IntRange(0, 4).Draw(t, "void") == 0 {
					result.Void, result.Good = true, false
				}
				batch = append(batch, result)
				results++
				for _, m := range members {
					for i, target := range m.targets {
						if target != result.Target {
							continue
						}
						m.past = append(m.past, fmt.Sprint(i, result.Good, result.Void, result.Words))
						if !result.Void {
							m.results[i] = append(m.results[i], naiveResult{results - 1, result.Good})
						}
					}
				}
			}
			batches = append(batches, naiveBatch{now, results})
			follow(r.observe(batch, now, func(probe.Target) bool { return true }))
			verify()
		}
	})
}
