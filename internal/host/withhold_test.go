package host

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/fit"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// tenantVIP is a VIP of a service of its own, with bindings for `ports` ports or for one range.
type tenantVIP struct {
	tenant    string
	created   int64
	number    byte
	ports     int
	rangeOf   uint16 // if not 0, one range of ports from 1000 to this one instead
	cookie    bool
	owned     bool // the server owns the VIP
	member    uint16
	secondDIP bool
}

func (v tenantVIP) addr() netip.Addr { return netip.AddrFrom4([4]byte{203, 0, 113, v.number}) }

// bindings returns the bindings of the VIP.
func (v tenantVIP) bindings() (out []plan.Binding) {
	b := binding(v.addr().String(), "10.20.1.11")
	if v.secondDIP {
		b = binding(v.addr().String(), "10.20.1.12")
	}
	b.Tenant, b.Created, b.Service, b.Cookie, b.Rewrite = v.tenant, v.created, fmt.Sprintf("%s-%d", v.tenant, v.created), v.cookie, !v.owned
	if v.member != 0 {
		b.Member = v.member
	}
	if v.rangeOf != 0 {
		b.Key.Port, b.Key.PortEnd, b.DIPPort = 1000, v.rangeOf, 0
		return []plan.Binding{b}
	}
	for i := range v.ports {
		b.Key.Port = uint16(1000 + i)
		out = append(out, b)
	}
	return out
}

// tenantPlan returns a plan of these VIPs.
func tenantPlan(vips ...tenantVIP) plan.Plan {
	p := plan.Plan{MTU: 1500, TunnelSources: []netip.Prefix{netip.MustParsePrefix("100.64.0.0/16")}}
	for _, v := range vips {
		p.Bindings = append(p.Bindings, v.bindings()...)
		if v.cookie {
			p.Cookies = append(p.Cookies, plan.CookieKeys{VIP: v.addr(), Mint: 1, Keys: []plan.CookieKey{{Epoch: 1}}})
		}
	}
	slices.SortFunc(p.Bindings, plan.CompareBindings)
	slices.SortFunc(p.Cookies, plan.CompareCookies)
	return p
}

// roomWorld is an agent with tables of limited capacity.
type roomWorld struct {
	t      *testing.T
	tables dataplane.FakeHost
	clock  *clock.Fake
	agent  *Agent
}

func newRoomWorld(t *testing.T, capacity map[string]uint64) *roomWorld {
	w := &roomWorld{t: t, clock: clock.NewFake(time.Unix(1000, 0))}
	w.tables.SetCapacity(capacity)
	w.restart()
	return w
}

func (w *roomWorld) restart() {
	w.agent = New(&w.tables, settings(forwarding), &prober{}, w.clock, nil)
}

// apply applies a plan and expires the bindings that it removes.
func (w *roomWorld) apply(p plan.Plan) {
	w.t.Helper()
	if err := w.agent.Apply(context.Background(), p); err != nil {
		w.t.Fatal(err)
	}
	w.clock.Advance(linger)
	if err := w.agent.Expire(); err != nil {
		w.t.Fatal(err)
	}
}

// bound returns the last byte of each VIP that has bindings in the tables, with their number.
func (w *roomWorld) bound() map[byte]int {
	out := map[byte]int{}
	state, _ := w.tables.State()
	for _, b := range state.Bindings {
		out[b.Key.VIP.As4()[3]]++
	}
	return out
}

// dead returns the VIPs of members with the verdict dead.
func (w *roomWorld) dead() (out []byte) {
	for _, e := range w.agent.checks.Take(true).Endpoints {
		if n := e.Key.VIP.As4()[3]; len(e.Dead) > 0 && !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}

// TestTenantThatFillsAHostIsWithheld fills each table in turn by one tenant. It checks that later
// changes of others are applied, that the tenant's members without a binding are dead for muxes,
// and that the tenant gets its bindings when there is room.
func TestTenantThatFillsAHostIsWithheld(t *testing.T) {
	for table, c := range map[string]struct {
		most uint64
		evil tenantVIP
	}{
		dataplane.TableBindings:      {39, tenantVIP{ports: 38}},
		dataplane.TableBindingParts:  {7, tenantVIP{rangeOf: 2001}},
		dataplane.TableCookieKeys:    {1, tenantVIP{ports: 1, cookie: true}},
		dataplane.TableHandshakes:    {3, tenantVIP{ports: 4, cookie: true, owned: true}},
		dataplane.TableFlowAddresses: {4, tenantVIP{ports: 1, secondDIP: true}},
	} {
		t.Run(table, func(t *testing.T) {
			w := newRoomWorld(t, map[string]uint64{table: c.most})
			good, evil, flood := tenantVIP{tenant: "good", created: 1, number: 1, ports: 1}, tenantVIP{tenant: "evil", created: 2, number: 2, ports: 1}, c.evil
			flood.tenant, flood.created, flood.number = "evil", 3, 3
			added := tenantVIP{tenant: "good", created: 4, number: 4, ports: 1}
			if table == dataplane.TableCookieKeys {
				evil.cookie = true
			}
			w.apply(tenantPlan(good, evil, flood))
			check := func(when string, want map[byte]int) {
				t.Helper()
				if got := w.bound(); !maps.Equal(got, want) {
					t.Errorf("%s: bindings of VIPs %v, want %v", when, got, want)
				}
				if got := w.dead(); !slices.Equal(got, []byte{3}) {
					t.Errorf("%s: dead members of VIPs %v, want those of 3", when, got)
				}
				st := w.agent.Status()
				if got := st.GetWithheld(); len(got) != 1 || got[0].GetVip() != "203.0.113.3" || got[0].GetTenant() != "evil" || got[0].GetTable() != table || got[0].GetHeld() {
					t.Errorf("%s: withheld %v", when, got)
				}
				if want := "table " + table + " is full: VIPs 203.0.113.3 of tenants/evil are not served"; st.GetError() != want {
					t.Errorf("%s: status %q, want %q", when, st.GetError(), want)
				}
			}
			check("at first", map[byte]int{1: 1, 2: 1})
			good.member = 5
			if table != dataplane.TableFlowAddresses {
				w.apply(tenantPlan(good, evil, flood, added))
				check("another tenant adds a VIP", map[byte]int{1: 1, 2: 1, 4: 1})
				w.restart()
				w.apply(tenantPlan(good, evil, flood, added))
				check("after a restart", map[byte]int{1: 1, 2: 1, 4: 1})
			}
			flood = tenantVIP{tenant: "evil", created: 3, number: 3, ports: 1}
			w.apply(tenantPlan(good, evil, flood))
			if got := w.bound(); got[3] != 1 {
				t.Errorf("with room: bindings of VIPs %v", got)
			}
			if got := w.dead(); len(got) != 0 || len(w.agent.Status().GetWithheld()) != 0 || w.agent.Status().GetError() != "" {
				t.Errorf("with room: dead members of VIPs %v, status %v", got, w.agent.Status())
			}
		})
	}
}

// TestHostVIPThatGrowsKeepsWhatItHas checks that a VIP whose change does not fit keeps its
// bindings. Its members without one are dead, the others are not.
func TestHostVIPThatGrowsKeepsWhatItHas(t *testing.T) {
	w := newRoomWorld(t, map[string]uint64{dataplane.TableBindings: 8})
	good, evil := tenantVIP{tenant: "good", created: 1, number: 1, ports: 2}, tenantVIP{tenant: "evil", created: 2, number: 2, ports: 3}
	w.apply(tenantPlan(good, evil))
	evil.ports = 7
	w.apply(tenantPlan(good, evil))
	if got, want := w.bound(), map[byte]int{1: 2, 2: 3}; !maps.Equal(got, want) {
		t.Errorf("bindings of VIPs %v, want %v", got, want)
	}
	if st := w.agent.Status().GetWithheld(); len(st) != 1 || !st[0].GetHeld() {
		t.Errorf("withheld %v, want 203.0.113.2, held", st)
	}
	var dead []uint16
	for _, e := range w.agent.checks.Take(false).Endpoints {
		if len(e.Dead) > 0 {
			dead = append(dead, e.Key.Port)
		}
		for id, words := range e.Words {
			if want := "its host has no room for it: table bindings is full"; words != want {
				t.Errorf("member %d: %q, want %q", id, words, want)
			}
		}
	}
	if !slices.Equal(dead, []uint16{1003, 1004, 1005, 1006}) {
		t.Errorf("dead members on ports %v, want those without a binding", dead)
	}
	evil.ports = 4
	w.apply(tenantPlan(good, evil))
	for _, e := range w.agent.checks.Take(false).Endpoints {
		if len(e.Dead) > 0 || len(e.Alive) > 0 {
			t.Errorf("with room: verdicts %v", e)
		}
	}
	if got := w.bound(); got[2] != 4 {
		t.Errorf("with room: bindings of VIPs %v", got)
	}
}

// TestHostLooksForRoomByItself checks that room that is freed later is used without another plan.
func TestHostLooksForRoomByItself(t *testing.T) {
	w := newRoomWorld(t, map[string]uint64{dataplane.TableBindings: 2})
	p := tenantPlan(tenantVIP{tenant: "good", created: 1, number: 1, ports: 1}, tenantVIP{tenant: "evil", created: 2, number: 2, ports: 2})
	if err := w.agent.Apply(context.Background(), p); err != nil {
		t.Fatal(err)
	}
	w.tables.SetCapacity(nil)
	for _, step := range []struct {
		pass time.Duration
		want int
	}{{0, 0}, {withheldPace, 2}} {
		w.clock.Advance(step.pass)
		if err := w.agent.Refit(); err != nil {
			t.Fatal(err)
		}
		if got := w.bound()[2]; got != step.want {
			t.Errorf("after %s: %d bindings, want %d", step.pass, got, step.want)
		}
	}
}

// TestHostPlansOfAnySizeAreApplied checks, after random plans, that the tables hold all bindings of
// a VIP or its previous ones, and never more than fits; that a member is dead if and only if it has
// no binding; and that the tenant that takes least loses nothing while another has VIPs to give up.
func TestHostPlansOfAnySizeAreApplied(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const most = 30
		w := newRoomWorld(t, map[string]uint64{dataplane.TableBindings: most, dataplane.TableCookieKeys: 3})
		for step := range rapid.IntRange(1, 5).Draw(rt, "steps") {
			var vips []tenantVIP
			for n := range byte(8) {
				v := tenantVIP{
					tenant: []string{"a", "b", "c"}[n%3], created: int64(n), number: n + 1,
					ports: rapid.IntRange(0, 12).Draw(rt, "ports"), cookie: rapid.Bool().Draw(rt, "cookie"),
				}
				if v.ports > 0 {
					vips = append(vips, v)
				}
			}
			before := w.bound()
			p := tenantPlan(vips...)
			w.apply(p)
			bound, withheld := w.bound(), map[byte]string{}
			for _, s := range w.agent.Status().GetWithheld() {
				withheld[netip.MustParseAddr(s.GetVip()).As4()[3]] = s.GetTable()
			}
			total, wanted := 0, map[string]int{}
			for _, n := range bound {
				total += n
			}
			if total > most {
				rt.Fatalf("step %d: %d bindings", step, total)
			}
			for _, v := range vips {
				wanted[v.tenant] += v.ports
				_, is := withheld[v.number]
				switch n := bound[v.number]; {
				case !is && n != v.ports:
					rt.Fatalf("step %d: VIP %d has %d bindings, want %d", step, v.number, n, v.ports)
				case is && n != 0 && n != before[v.number]:
					rt.Fatalf("step %d: VIP %d is withheld and has %d bindings, had %d and wants %d", step, v.number, n, before[v.number], v.ports)
				}
			}
			// Naive: a member is dead if its port has no binding.
			have := map[bindingKey]bool{}
			state, _ := w.tables.State()
			for _, b := range state.Bindings {
				have[keyOf(b)] = true
			}
			dead := map[lb.EndpointKey]bool{}
			for _, e := range w.agent.checks.Take(true).Endpoints {
				dead[e.Key] = len(e.Dead) > 0
			}
			for _, b := range p.Bindings {
				if dead[b.Key] == have[keyOf(b)] {
					rt.Fatalf("step %d: %v port %d: has a binding: %v, dead: %v; withheld %v", step, b.Key.VIP, b.Key.Port, have[keyOf(b)], dead[b.Key], w.agent.Status().GetWithheld())
				}
			}
			if step > 0 {
				continue
			}
			// Independent of the history: no tenant below a third of the table loses bindings for
			// lack of them.
			for _, v := range vips {
				if withheld[v.number] == dataplane.TableBindings && wanted[v.tenant] <= most/3 {
					rt.Fatalf("VIP %d of %s is withheld, which wants %d bindings: wanted %v", v.number, v.tenant, wanted[v.tenant], wanted)
				}
			}
		}
	})
}

// TestBindingsOfAVIPThatIsGivenUpDoNotStay checks that a VIP that lost its bindings, because the
// tables refused them, leaves none in the tables. A VIP that is held, and leaving bindings of
// another VIP, stay.
func TestBindingsOfAVIPThatIsGivenUpDoNotStay(t *testing.T) {
	const table = dataplane.TableBindings
	full := fit.NewFitting()
	full.Capacity = map[string]uint64{table: 6}
	f := fitting{Fitting: full}
	var leavers []leaver
	for n, c := range []fit.Claim{
		{Name: "given up", Tenant: "a", Created: 3, Need: []fit.Need{{Table: table, Units: 9}}},
		{Name: "held", Tenant: "b", Created: 2, Had: []fit.Need{{Table: table, Units: 3}}, Need: []fit.Need{{Table: table, Units: 9}}, Served: true},
		{Name: "served", Tenant: "c", Created: 1, Need: []fit.Need{{Table: table, Units: 1}}},
	} {
		v := tenantVIP{tenant: c.Tenant, number: byte(n + 1), ports: 1}
		b := v.bindings()[0]
		f.vips, full.Claims = append(f.vips, vipOf(b.Key)), append(full.Claims, c)
		leavers = append(leavers, leaver{Binding: b})
	}
	full.Choose()
	if w := full.Withheld(); len(w) != 2 || w[0].Held || !w[1].Held {
		t.Fatalf("withheld %v", w)
	}
	var stay []byte
	for _, l := range f.staying(leavers) {
		stay = append(stay, l.Key.VIP.As4()[3])
	}
	if !slices.Equal(stay, []byte{2, 3}) {
		t.Errorf("bindings of VIPs %v stay, want those of 2 and 3", stay)
	}
}

// untidyTables report more room than they have.
type untidyTables struct {
	dataplane.FakeHost
	says map[string]uint64
}

func (u *untidyTables) Capacity() map[string]uint64 { return u.says }

// TestHostGivesUpVIPsThatTheTablesHaveNoRoomForAnyMore checks that tables that refuse even their
// previous plan get a plan in the end. Bindings of the VIPs that are given up do not stay in them
// as leavers.
func TestHostGivesUpVIPsThatTheTablesHaveNoRoomForAnyMore(t *testing.T) {
	tables := untidyTables{says: map[string]uint64{dataplane.TableBindings: 100}}
	a := New(&tables, settings(forwarding), &prober{}, clock.NewFake(time.Unix(1000, 0)), nil)
	p := tenantPlan(tenantVIP{tenant: "good", created: 1, number: 1, ports: 2}, tenantVIP{tenant: "evil", created: 2, number: 2, ports: 4})
	if err := a.Apply(context.Background(), p); err != nil {
		t.Fatal(err)
	}
	tables.SetCapacity(map[string]uint64{dataplane.TableBindings: 3})
	if err := a.Apply(context.Background(), p); err != nil {
		t.Fatal(err)
	}
	state, _ := tables.State()
	for _, b := range state.Bindings {
		if b.Key.VIP.As4()[3] != 1 {
			t.Errorf("the tables have %v port %d", b.Key.VIP, b.Key.Port)
		}
	}
	if len(state.Bindings) != 2 {
		t.Errorf("%d bindings, want the two of the other tenant", len(state.Bindings))
	}
	if st := a.Status().GetWithheld(); len(st) != 1 || st[0].GetVip() != "203.0.113.2" || st[0].GetHeld() {
		t.Errorf("withheld %v, want 203.0.113.2, not held", st)
	}
}
