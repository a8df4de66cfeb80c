package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// inTables lists the outer destinations in the tables.
func inTables(f *dataplane.FakeHost) string {
	state, _ := f.State()
	var out []string
	for _, b := range state.Bindings {
		out = append(out, b.Outer.String())
	}
	return strings.Join(out, " ")
}

func TestBindingsOutliveTheirPlan(t *testing.T) {
	var tables dataplane.FakeHost
	c := clock.NewFake(time.Unix(0, 0))
	a := New(&tables, settings(forwarding), &prober{}, c, nil)
	apply := func(dips ...string) error {
		var p plan.Plan
		for _, dip := range dips {
			p.Bindings = append(p.Bindings, binding("203.0.113.10", dip))
		}
		return a.Apply(context.Background(), p)
	}
	expect := func(when, want string) {
		t.Helper()
		if err := a.Expire(); err != nil {
			t.Fatal(err)
		}
		if got := inTables(&tables); got != want {
			t.Errorf("%s: tables have %q, want %q", when, got, want)
		}
	}
	apply("10.20.1.11", "10.20.1.12", "10.20.1.13")
	apply("10.20.1.11")
	expect("two are taken out", "10.20.1.11 10.20.1.12 10.20.1.13")
	c.Advance(linger / 2)
	apply("10.20.1.11", "10.20.1.13")
	expect("one comes back", "10.20.1.11 10.20.1.13 10.20.1.12")
	apply("10.20.1.11")
	c.Advance(linger / 2)
	expect("the first one's time is over", "10.20.1.11 10.20.1.13")
	c.Advance(linger / 2)
	expect("and the other's", "10.20.1.11")

	apply("10.20.1.12")
	tables.FailApply(errors.New("full"))
	if err := apply("10.20.1.14"); err == nil {
		t.Error("a state that the tables refuse was taken")
	}
	tables.FailApply(nil)
	expect("what was refused left no trace", "10.20.1.12 10.20.1.11")
}

// TestLeaversOfOthersKeepTheirTime removes bindings of one tenant while another one's plan is too
// large. They stay for their grace period. The other's VIP waits for that, and is bound afterwards.
func TestLeaversOfOthersKeepTheirTime(t *testing.T) {
	for table, c := range map[string]struct {
		most uint64
		evil tenantVIP
	}{
		dataplane.TableBindings:      {20, tenantVIP{ports: 15}},
		dataplane.TableBindingParts:  {uint64(lb.PortBlocks(1000, 2001)+lb.PortBlocks(1000, 8190)) - 1, tenantVIP{rangeOf: 8190}},
		dataplane.TableHandshakes:    {20, tenantVIP{ports: 15, cookie: true, owned: true}},
		dataplane.TableFlowAddresses: {3, tenantVIP{ports: 1, secondDIP: true}},
	} {
		for _, withheld := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, something is withheld before: %v", table, withheld), func(t *testing.T) {
				w := newRoomWorld(t, map[string]uint64{table: c.most})
				good := tenantVIP{tenant: "good", created: 1, number: 1, ports: 6, cookie: c.evil.cookie, owned: c.evil.owned}
				if c.evil.rangeOf != 0 {
					good = tenantVIP{tenant: "good", created: 1, number: 1, rangeOf: 2001}
				}
				evil, other := c.evil, tenantVIP{tenant: "good", created: 2, number: 2, ports: 1}
				evil.tenant, evil.created, evil.number = "evil", 3, 3
				huge := tenantVIP{tenant: "evil", created: 4, number: 4, ports: 40, rangeOf: evil.rangeOf, cookie: evil.cookie, owned: evil.owned}
				if huge.rangeOf != 0 {
					huge.rangeOf = 65534
				}
				first, next := []tenantVIP{good, other}, []tenantVIP{other, evil}
				if table == dataplane.TableFlowAddresses {
					first, next = first[:1], next[1:]
				} else if withheld {
					first, next = append(first, huge), append(next, huge)
				}
				w.apply(tenantPlan(first...))
				had := w.bound()[1]
				if had == 0 {
					t.Fatal("the tenant has no bindings at first")
				}
				if err := w.agent.Apply(context.Background(), tenantPlan(next...)); err != nil {
					t.Fatal(err)
				}
				if got := w.bound(); got[1] != had || got[3] != 0 {
					t.Errorf("at once: bindings of VIPs %v, want the %d of 1 that leave, and none of 3", got, had)
				}
				if got := w.agent.Status().GetWithheld(); len(got) == 0 || got[0].GetTenant() != "evil" {
					t.Errorf("at once: withheld %v", got)
				}
				w.clock.Advance(withheldPace)
				if err := errors.Join(w.agent.Expire(), w.agent.Refit()); err != nil {
					t.Fatal(err)
				}
				if got := w.bound(); got[1] != had || got[3] != 0 {
					t.Errorf("before their time: bindings of VIPs %v, want the %d of 1 that leave, and none of 3", got, had)
				}
				w.clock.Advance(linger - withheldPace)
				if err := errors.Join(w.agent.Expire(), w.agent.Refit()); err != nil {
					t.Fatal(err)
				}
				if got, want := w.bound()[3], len(evil.bindings()); got != want || w.bound()[1] != 0 {
					t.Errorf("after their time: bindings of VIPs %v, want %d of 3 and none of 1", w.bound(), want)
				}
			})
		}
	}
}

// TestLeaversOfTheFullTenantGiveWay checks that a tenant that replaces its own bindings, where both
// do not fit, has the new ones immediately.
func TestLeaversOfTheFullTenantGiveWay(t *testing.T) {
	w := newRoomWorld(t, map[string]uint64{dataplane.TableBindings: 20})
	good, gone := tenantVIP{tenant: "good", created: 1, number: 1, ports: 2}, tenantVIP{tenant: "good", created: 2, number: 2, ports: 1}
	evil, next := tenantVIP{tenant: "evil", created: 3, number: 3, ports: 15}, tenantVIP{tenant: "evil", created: 4, number: 4, ports: 15}
	w.apply(tenantPlan(good, gone, evil))
	if err := w.agent.Apply(context.Background(), tenantPlan(good, next)); err != nil {
		t.Fatal(err)
	}
	if got, want := w.bound(), map[byte]int{1: 2, 2: 1, 4: 15}; !maps.Equal(got, want) {
		t.Errorf("bindings of VIPs %v, want %v: the other tenant's stay for their time", got, want)
	}
	if got := w.agent.Status().GetWithheld(); len(got) != 0 {
		t.Errorf("withheld %v", got)
	}
}

// TestRangeThatChangesEndsNoTimeOfOthers replaces a port range by one that overlaps it. The tables
// cannot have both. Other bindings stay for their grace period.
func TestRangeThatChangesEndsNoTimeOfOthers(t *testing.T) {
	w := newRoomWorld(t, nil)
	good, wide := tenantVIP{tenant: "good", created: 1, number: 1, ports: 2}, tenantVIP{tenant: "evil", created: 2, number: 2, rangeOf: 2001}
	w.apply(tenantPlan(good, wide))
	wide.rangeOf = 3001
	if err := w.agent.Apply(context.Background(), tenantPlan(wide)); err != nil {
		t.Fatal(err)
	}
	if got, want := w.bound(), map[byte]int{1: 2, 2: 1}; !maps.Equal(got, want) {
		t.Errorf("bindings of VIPs %v, want %v", got, want)
	}
}

// TestLeaversOfOthersInRealTables lets one tenant fill a real table of a host, that of handshakes,
// and request more, while bindings of another one leave.
func TestLeaversOfOthersInRealTables(t *testing.T) {
	tables := newTestNet(t, 1500).attach()
	c := clock.NewFake(time.Unix(1000, 0))
	a := New(tables, settings(forwarding), &prober{}, c, nil)
	const leaving, more = 100, 200
	most := int(tables.Capacity()[dataplane.TableHandshakes])
	good, added := tenantVIP{tenant: "good", created: 1, number: 1, ports: leaving}, tenantVIP{tenant: "evil", created: 4, number: 4, ports: more}
	rest := tenantVIP{tenant: "evil", created: 3, number: 3, ports: most - 2*leaving}
	follow := func(vips ...tenantVIP) {
		t.Helper()
		for i := range vips {
			vips[i].cookie, vips[i].owned = true, true
		}
		if err := a.Apply(context.Background(), tenantPlan(vips...)); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(when string, v tenantVIP, want bool) {
		t.Helper()
		for _, b := range v.bindings() {
			if tables.Has(&b) != want {
				t.Fatalf("%s: VIP %d port %d: has a binding: %v, want %v", when, v.number, b.Key.Port, !want, want)
			}
		}
	}
	follow(good, rest)
	expect("at first", good, true)
	follow(rest, added)
	expect("at once", good, true)
	expect("at once", added, false)
	c.Advance(linger)
	if err := errors.Join(a.Expire(), a.Refit()); err != nil {
		t.Fatal(err)
	}
	expect("after their time", good, false)
	expect("after their time", added, true)
	if got := a.Status().GetWithheld(); len(got) != 0 {
		t.Errorf("withheld %v", got)
	}
}
