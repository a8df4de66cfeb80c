package mux

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/probe"
)

// drawSteps draws a plan that differs from before in some of each kind of object.
func drawSteps(t *rapid.T, before plan.Plan) plan.Plan {
	p := drawPlan(t)
	for i := range p.Endpoints {
		e := &p.Endpoints[i]
		if e.Key.Port == 443 {
			e.Key.Protocol, e.Affinity = lb.UDP, lb.AffinityCookie
			e.QUIC = &lb.QUIC{Format: lb.QUICLB, ServerIDLength: 3, NonceLength: 13}
			if rapid.IntRange(0, 3).Draw(t, "format") == 0 {
				e.QUIC = &lb.QUIC{Format: rapid.SampledFrom([]string{lb.QUICLBPlain, lb.QUICMsquic, lb.QUICMvfst}).Draw(t, "in clear"), ServerIDLength: 2, NonceLength: 4}
			}
		}
		if form := rapid.SampledFrom([]string{"", lb.CookieEVC, lb.CookieEVC, lb.CookieCO}).Draw(t, "form"); e.Key.Port == 80 && form != "" {
			e.Affinity, e.Cookie = lb.AffinityCookie, form
		}
		same := func(o plan.Endpoint) bool { return o.Key == e.Key }
		if at := slices.IndexFunc(before.Endpoints, same); at >= 0 && rapid.IntRange(0, 3).Draw(t, "changes") > 0 {
			*e = before.Endpoints[at]
			continue
		}
		e.RingCode = rapid.Uint8Range(6, 7).Draw(t, "code")
		e.Encap = rapid.SampledFrom([]string{lb.EncapIPIP, lb.EncapGUE}).Draw(t, "encap")
		e.Health.From = rapid.SampledFrom([]string{lb.FromMux, lb.FromHost, lb.FromBoth}).Draw(t, "from")
		for j := range e.Members {
			e.Members[j].Down = rapid.IntRange(0, 5).Draw(t, "down") == 0
		}
	}
	p.CIDs, p.Cookies = drawCIDs(t, before.CIDs, p.Endpoints), drawCookies(t, before.Cookies, p.Endpoints)
	p.TunnelSources = []netip.Prefix{netip.MustParsePrefix("100.64.0.0/16")}
	if p.Services, p.Sources = before.Services, before.Sources; rapid.IntRange(0, 2).Draw(t, "services") == 0 {
		p.Services = nil
		for i, vip := range []string{"203.0.113.10", "203.0.113.11", "2001:db8:f::10"} {
			if s := (plan.Service{Name: string(rune('a' + i)), VIPs: []netip.Addr{netip.MustParseAddr(vip)}}); rapid.Bool().Draw(t, "service") {
				s.Limits.Packets = rapid.Uint64Range(0, 2).Draw(t, "packets")
				s.SourcesOf = rapid.SampledFrom([]string{"", "inside"}).Draw(t, "sources")
				if s.SourcesOf == "" && rapid.Bool().Draw(t, "own sources") {
					s.Sources.Deny = []netip.Prefix{netip.PrefixFrom(s.VIPs[0], rapid.IntRange(30, 32).Draw(t, "bits"))}
				}
				p.Services = append(p.Services, s)
			}
		}
		allow := netip.PrefixFrom(netip.MustParseAddr("10.0.0.0"), rapid.IntRange(8, 9).Draw(t, "bits"))
		p.Sources = []plan.Sources{{Policy: "inside", Sources: lb.Sources{Allow: []netip.Prefix{allow}}}}
	}
	if rapid.IntRange(0, 9).Draw(t, "network") == 0 {
		p.MTU, p.RingKeys = 1400, []plan.Key{{ID: 3, Key: [16]byte{2}}}
	}
	return p
}

// drawCIDs draws the keys of the VIPs of QUIC endpoints, unchanged or rotated; sometimes they are
// missing.
func drawCIDs(t *rapid.T, before []plan.CIDKeys, endpoints []plan.Endpoint) (out []plan.CIDKeys) {
	for _, e := range endpoints {
		key := vipOf(e.Key)
		if e.QUIC == nil || plan.CIDsOf(out, key) != nil || rapid.IntRange(0, 8).Draw(t, "no key yet") == 0 {
			continue
		}
		keys := plan.CIDsOf(before, key)
		if keys == nil || rapid.IntRange(0, 2).Draw(t, "rotation") == 0 {
			epoch := rapid.Uint32Range(1, 20).Draw(t, "epoch")
			keys = []plan.CIDKey{{Epoch: epoch, Key: [16]byte{byte(epoch), 1}}, {Epoch: epoch + 1, Key: [16]byte{byte(epoch), 2}}}[:rapid.IntRange(1, 2).Draw(t, "live")]
		}
		out = append(out, plan.CIDKeys{VIP: key.VIP, Keys: keys, Mint: keys[0].Epoch})
		slices.SortFunc(out, plan.CompareCIDs)
	}
	return out
}

// drawCookies draws the keys of the VIPs of TCP endpoints with cookies, likewise.
func drawCookies(t *rapid.T, before []plan.CookieKeys, endpoints []plan.Endpoint) (out []plan.CookieKeys) {
	for _, e := range endpoints {
		key := vipOf(e.Key)
		if e.Cookie == "" || plan.CookiesOf(out, key).Keys != nil || rapid.IntRange(0, 8).Draw(t, "no cookie key yet") == 0 {
			continue
		}
		keys := plan.CookiesOf(before, key).Keys
		if keys == nil || rapid.IntRange(0, 2).Draw(t, "rotation of cookies") == 0 {
			epoch := rapid.Uint32Range(1, 20).Draw(t, "epoch of cookies")
			keys = []plan.CookieKey{{Epoch: epoch, Key: [16]byte{byte(epoch), 3}}, {Epoch: epoch + 1, Key: [16]byte{byte(epoch), 4}}}[:rapid.IntRange(1, 2).Draw(t, "live cookie keys")]
		}
		out = append(out, plan.CookieKeys{VIP: key.VIP, Keys: keys, Mint: keys[0].Epoch})
		slices.SortFunc(out, plan.CompareCookies)
	}
	return out
}

// bare returns a wanted state, sorted, without the parts that tables overwrite.
func bare(s dataplane.MuxState) dataplane.MuxState {
	s.Endpoints, s.VIPs = append([]dataplane.MuxEndpoint{}, s.Endpoints...), append([]dataplane.MuxVIP{}, s.VIPs...)
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		e.UseBackup, e.Members = false, append([]dataplane.MuxMember{}, e.Members...)
		e.Ring, e.BackupRing = append([]uint16{}, e.Ring...), append([]uint16{}, e.BackupRing...)
		for j := range e.Members {
			e.Members[j].Alive = false
		}
	}
	slices.SortFunc(s.Endpoints, func(a, b dataplane.MuxEndpoint) int { return plan.CompareKeys(a.Key, b.Key) })
	slices.SortFunc(s.VIPs, func(a, b dataplane.MuxVIP) int { return a.VIP.Compare(b.VIP) })
	for i, v := range s.VIPs {
		if v.Sources != nil {
			s.VIPs[i].Sources = &dataplane.SourceList{Digest: v.Sources.Digest}
		}
	}
	// A VIP without settings has the defaults.
	s.VIPs = slices.DeleteFunc(s.VIPs, func(v dataplane.MuxVIP) bool { return v.Limits == lb.Limits{} && v.Sources == nil })
	return s
}

// checkSteps checks that tables and lists of the agent equal those of an agent that was given only
// the last plan.
func (w *world) checkSteps(t *rapid.T) {
	a := w.agent
	fresh := a.o
	tables, run := &tables{journal: &journal{}}, w.t.TempDir()
	fresh.Tables, fresh.RunDir, fresh.Speaker, fresh.Hops, fresh.Prober = tables, run, &speaker{journal: tables.journal}, &hops{}, &prober{}
	other, err := New(fresh)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Apply(context.Background(), a.plan); err != nil {
		t.Fatal(err)
	}
	other.HopsChanged(a.hops)
	if got, want := bare(w.tables.state), bare(tables.state); !reflect.DeepEqual(got, want) {
		t.Fatalf("the tables were given\n%+v\nnot\n%+v", got, want)
	}
	wanted, targets := map[netip.Addr]bool{}, map[probe.Target]bool{}
	bits, backups := map[dataplane.MemberKey]bool{}, map[lb.EndpointKey]bool{}
	for _, e := range a.plan.Endpoints {
		g := a.roster.groups[e.Key]
		if !reflect.DeepEqual(g.Endpoint, e) || !a.unsure && a.rings.made[e.Key] == nil {
			t.Fatalf("%v is known as %+v, with rings of %+v", e.Key, g.Endpoint, a.rings.made[e.Key])
		}
		backups[e.Key] = g.decision.Backup
		for i, m := range e.Members {
			wanted[m.Outer] = true
			bits[dataplane.MemberKey{Endpoint: e.Key, Member: m.ID}] = a.roster.bit(e.Key, m)
			if g.members[i].probed() {
				targets[probe.Of(e.Health.Checks[0], m.DIP, m.Port)] = true
			}
		}
	}
	if len(a.roster.groups) != len(a.plan.Endpoints) || len(a.rings.made) > len(a.plan.Endpoints) || len(a.roster.members) != len(bits) {
		t.Fatalf("%d groups, %d rings, %d members", len(a.roster.groups), len(a.rings.made), len(a.roster.members))
	}
	if !maps.Equal(bits, w.tables.alive) {
		t.Fatalf("the tables' bits are %v, not %v", w.tables.alive, bits)
	}
	for key, use := range backups {
		if w.tables.backup[key] != use {
			t.Fatalf("backups of %v: %v", key, !use)
		}
	}
	if want := slices.SortedFunc(maps.Keys(wanted), netip.Addr.Compare); !slices.Equal(w.hops.want, want) {
		t.Fatalf("the ways to %v are followed, not to %v", w.hops.want, want)
	}
	told := map[probe.Target]bool{}
	for _, target := range w.prober.targets {
		told[target] = true
	}
	if !maps.Equal(told, targets) {
		t.Fatalf("%v are probed, not %v", told, targets)
	}
	for outer := range wanted {
		if a.mtus[outer] != pathMTU(a.plan.MTU, a.hops[outer]) {
			t.Fatalf("path MTU to %v: %d", outer, a.mtus[outer])
		}
	}
	if len(a.mtus) != len(wanted) {
		t.Fatalf("path MTUs %v to %v", a.mtus, wanted)
	}
	if most := len(other.sources); len(a.sources) > most {
		t.Fatalf("%d lists of sources are kept, of %d", len(a.sources), most)
	}
	served, naive := map[netip.Addr]bool{}, naiveRoster{a.roster}
	for vip, v := range a.roster.vips.all {
		if v.served {
			served[vip] = true
		}
	}
	if want := naive.served(a.plan.Endpoints, a.reachableLocked); !maps.Equal(served, want) {
		t.Fatalf("%v can be served, not %v", served, want)
	}
	inTables := vips(a.told)
	if !maps.Equal(a.inTables, inTables) {
		t.Fatalf("VIPs in the tables: %v, not %v", a.inTables, inTables)
	}
}

// TestStepsEndWhereAWholePlanDoes: after any sequence of plans, that fit or do not, with probes and
// path MTUs between them, the tables and all lists are those of an agent that was given only the
// last plan.
func TestStepsEndWhereAWholePlanDoes(t *testing.T) {
	changed := 0
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t)
		o := w.agent.o
		o.Ring, o.Linger = BuildRing, time.Duration(rapid.IntRange(0, 2).Draw(rt, "linger"))*time.Second
		var err error
		if w.agent, err = New(o); err != nil {
			rt.Fatal(err)
		}
		ctx, last, applied := context.Background(), planOf(nil), false
		for range rapid.IntRange(1, 25).Draw(rt, "events") {
			switch rapid.IntRange(0, 6).Draw(rt, "event") {
			case 0, 1:
				next := drawSteps(rt, last)
				w.tables.fail, w.tables.room = nil, 0
				switch rapid.IntRange(0, 5).Draw(rt, "fits") {
				case 0:
					w.tables.fail = errors.New("does not fit")
				case 1:
					w.tables.room = 3
				case 2:
					// Health changes while the tables do.
					w.tables.during = func() {
						w.tables.during = nil
						for _, target := range w.prober.targets {
							w.agent.Probed([]probe.Result{result(target, true)})
						}
					}
				}
				before := w.tables.changes
				if err := w.agent.Apply(ctx, next); err == nil {
					last, applied = next, true
				} else if w.tables.fail == nil && w.tables.room == 0 {
					rt.Fatal(err)
				}
				changed += w.tables.changes - before
				w.tables.fail, w.tables.room, w.tables.during = nil, 0, nil
			case 2, 3:
				for _, target := range slices.SortedFunc(slices.Values(w.prober.targets), compareTargets) {
					if rapid.Bool().Draw(rt, "probed") {
						w.agent.Probed([]probe.Result{result(target, rapid.Bool().Draw(rt, "good"))})
					}
				}
			case 4:
				hops := map[netip.Addr]netdev.NextHop{}
				for i := range byte(3) {
					mtu := rapid.SampledFrom([]int{1300, 1500, 9000}).Draw(rt, "mtu")
					hops[netip.AddrFrom4([4]byte{10, 20, i, 11})] = netdev.NextHop{Ifindex: rapid.SampledFrom([]int{0, 4}).Draw(rt, "way"), MTU: mtu, Resolved: true}
				}
				w.agent.HopsChanged(hops)
			case 5:
				w.clock.Advance(time.Second)
				if applied {
					w.agent.forgetLingering(ctx)
				}
			case 6:
				w.agent.Heard(drawVerdicts(rt))
				w.agent.StandIn()
			}
			w.agent.Speak(ctx)
			if applied {
				w.checkSteps(rt)
			}
		}
	})
	if changed == 0 {
		t.Error("the tables were never given a change")
	}
}
