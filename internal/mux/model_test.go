package mux

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/bgp"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/probe"
)

// careful is a speaker that checks, when a state is set, that the data plane has every announced
// VIP.
type careful struct {
	bgp.Fake
	tables *tables
	broken string
}

func (c *careful) Set(ctx context.Context, want bgp.State) error {
	known := map[netip.Addr]bool{}
	for _, e := range c.tables.state.Endpoints {
		known[e.Key.VIP] = true
	}
	for _, r := range want.Routes {
		if !known[r.Prefix.Addr()] {
			c.broken = fmt.Sprintf("%v announced, tables know %v", r.Prefix, known)
		}
	}
	return c.Fake.Set(ctx, want)
}

// guarded is a data plane that checks, when it removes a VIP, that the VIP is not announced.
type guarded struct {
	*tables
	speaker *careful
}

func (g *guarded) Apply(s dataplane.MuxState) error {
	known := map[netip.Addr]bool{}
	for _, e := range s.Endpoints {
		known[e.Key.VIP] = true
	}
	for _, r := range g.speaker.State().Routes {
		if !known[r.Prefix.Addr()] {
			g.speaker.broken = fmt.Sprintf("tables forget %v while it is announced", r.Prefix)
		}
	}
	return g.tables.Apply(s)
}

// oracle returns the VIPs that must be announced: those with an endpoint that has at least its
// minimum of members with weight that are alive in the tables.
func oracle(p plan.Plan, alive map[dataplane.MemberKey]bool) []netip.Addr {
	var out []netip.Addr
	for _, e := range p.Endpoints {
		n := 0
		for _, m := range e.Members {
			if m.Weight > 0 && alive[dataplane.MemberKey{Endpoint: e.Key, Member: m.ID}] {
				n++
			}
		}
		if n >= max(int(e.Health.MinimumHealthy), 1) && !slices.Contains(out, e.Key.VIP) {
			out = append(out, e.Key.VIP)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

// drawPlan picks VIPs, ports and backends from small pools, so that plans overlap.
func drawPlan(t *rapid.T) plan.Plan {
	p := planOf(nil)
	p.Node.BGP.Peers = nil
	for _, vip := range []string{"203.0.113.10", "203.0.113.11", "2001:db8:f::10"} {
		for _, port := range []uint16{80, 443} {
			if !rapid.Bool().Draw(t, "endpoint") {
				continue
			}
			e := planOf([]string{vip}).Endpoints[0]
			e.Key = lb.EndpointKey{VIP: netip.MustParseAddr(vip), Protocol: lb.TCP, Port: port}
			e.Generation = rapid.Int64Range(1, 3).Draw(t, "generation")
			e.FailOpen, e.BackupBelow = rapid.Bool().Draw(t, "failOpen"), 50
			e.Health.PanicBelow = rapid.SampledFrom([]uint8{0, 60}).Draw(t, "panicBelow")
			e.Health.MinimumHealthy = rapid.Uint16Range(0, 2).Draw(t, "minimum")
			for i := range 3 {
				if !rapid.Bool().Draw(t, "member") {
					continue
				}
				dip := netip.AddrFrom4([4]byte{10, 20, byte(i), 11})
				e.Members = append(e.Members, plan.Member{
					ID: uint16(i), DIP: dip, Port: 8080, Outer: dip, Weight: rapid.Uint16Range(0, 1).Draw(t, "weight"),
					Backup: rapid.Bool().Draw(t, "backup"),
				})
			}
			p.Endpoints = append(p.Endpoints, e)
		}
	}
	return p
}

// aliveOf returns the health of all members of the plan as the agent reports it, which differs from
// the tables of endpoints that fail open.
func aliveOf(a *Agent) map[string]bool {
	out := map[string]bool{}
	for _, m := range a.Status().Members {
		if vip := netip.MustParseAddr(m.Vip); a.linger.has(vip) {
			continue
		}
		out[fmt.Sprint(m.Vip, m.Port, m.Dip)] = m.Alive
	}
	return out
}

func (s *careful) announced() (vips []netip.Addr) {
	for _, r := range s.State().Routes {
		vips = append(vips, r.Prefix.Addr())
	}
	return vips
}

func TestRoutesFollowTablesUnderAnyEvents(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t)
		speaker := &careful{tables: w.tables}
		linger := time.Duration(rapid.IntRange(0, 3).Draw(rt, "linger")) * time.Second
		start := func() {
			a := w.agent.o
			a.Speaker, a.Tables, a.Linger = speaker, &guarded{w.tables, speaker}, linger
			agent, err := New(a)
			if err != nil {
				rt.Fatal(err)
			}
			w.agent = agent
		}
		start()
		ctx := context.Background()
		current, applied := planOf(nil), false
		for range rapid.IntRange(1, 40).Draw(rt, "events") {
			switch rapid.IntRange(0, 5).Draw(rt, "event") {
			case 0:
				next := drawPlan(rt)
				fits := rapid.IntRange(0, 4).Draw(rt, "fits") > 0
				w.tables.fail = nil
				if !fits {
					w.tables.fail = fmt.Errorf("does not fit")
				}
				if err := w.agent.Apply(ctx, next); (err == nil) != fits {
					rt.Fatalf("apply: %v", err)
				}
				if w.tables.fail = nil; fits {
					current, applied = next, true
				}
			case 1, 2, 3:
				if len(w.prober.targets) == 0 {
					continue
				}
				slices.SortFunc(w.prober.targets, compareTargets)
				target := rapid.SampledFrom(w.prober.targets).Draw(rt, "target")
				w.agent.Probed([]probe.Result{result(target, rapid.Bool().Draw(rt, "good"))})
			case 4:
				w.clock.Advance(time.Second)
				if applied && rapid.Bool().Draw(rt, "look") {
					w.agent.forgetLingering(ctx)
				}
			case 5:
				before := aliveOf(w.agent)
				start()
				if applied {
					if err := w.agent.Apply(ctx, current); err != nil {
						rt.Fatal(err)
					}
					if after := aliveOf(w.agent); !maps.Equal(before, after) {
						rt.Fatalf("alive after a restart: %v, before: %v", after, before)
					}
				}
			}
			w.agent.Speak(ctx)
			if speaker.broken != "" {
				rt.Fatal(speaker.broken)
			}
			if !applied {
				continue
			}
			want := oracle(current, w.tables.alive)
			for _, vip := range speaker.announced() {
				if !slices.Contains(want, vip) {
					rt.Fatalf("announced %v, want %v", speaker.announced(), want)
				}
			}
			if len(speaker.announced()) < len(want) {
				// Held down, but not without limit.
				w.agent.Speak(ctx)
				w.clock.Advance(comebackWait)
				w.agent.Speak(ctx)
			}
			if announced := speaker.announced(); !slices.Equal(announced, want) {
				rt.Fatalf("announced %v, want %v", announced, want)
			}
		}
	})
}
