package manager

import (
	"strings"
	"testing"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/pki"
)

// TestWhatATenantStoresIsBounded checks that a caller of role tenant is refused a change that gives
// its objects too many bytes or policies. A change that makes them fewer, and other callers'
// changes, are accepted.
func TestWhatATenantStoresIsBounded(t *testing.T) {
	v := newView(testSecrets(t))
	put := func(name string, size int) *record {
		r := &record{obj: &lb.Policy{Name: name, Tenant: "shop"}, size: size}
		v.holdLocked(r, 1)
		return r
	}
	large := put("large", maxTenantStored-100)
	write := func(role string) *write {
		w := newWrite(v.snapshot())
		w.by = identity{role: role, tenant: "shop"}
		return w
	}
	policy := &lb.Policy{Name: "new", Tenant: "shop"}
	for _, c := range []struct {
		what, role string
		old        *record
		next       lb.Object
		bytes      int
		want       string
	}{
		{"as much as it may", pki.RoleTenant, nil, policy, 100, ""},
		{"more", pki.RoleTenant, nil, policy, 101, "objects: 67108865 bytes: must be at most 67108864"},
		{"more of the operator", pki.RoleAdmin, nil, policy, 101, ""},
		{"more in the place of another", pki.RoleTenant, large, large.obj, maxTenantStored + 1, "objects: 67108865 bytes"},
		{"less", pki.RoleTenant, large, large.obj, 100, ""},
		{"nothing", pki.RoleTenant, large, nil, 0, ""},
	} {
		w := write(c.role)
		w.hold(c.old, c.next, c.bytes)
		var got []string
		for _, f := range w.overHolding() {
			got = append(got, f.String())
		}
		if (c.want == "") != (len(got) == 0) || !strings.HasPrefix(strings.Join(got, " "), c.want) {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
	v.holdLocked(large, -1)
	if len(v.holdings) != 0 {
		t.Errorf("without objects a tenant holds %v", v.holdings)
	}
}

// TestGrowingWritesOfATenantAreStoredApart checks that two writes that grow a tenant's holding are
// not combined, because each was checked alone.
func TestGrowingWritesOfATenantAreStoredApart(t *testing.T) {
	v := newView(testSecrets(t))
	write := func(name, tenant string) *write {
		w := newWrite(v.snapshot())
		o := &lb.Policy{Name: name, Tenant: tenant}
		w.hold(nil, o, 10)
		w.edited[refOf(o)] = o
		return w
	}
	group := newWrite(v.snapshot())
	group.include(write("a", "shop"))
	for _, c := range []struct {
		tenant string
		want   bool
	}{{"shop", false}, {"bank", true}, {"", true}} {
		if got := group.goesWith(write("b", c.tenant)); got != c.want {
			t.Errorf("another write of tenant %q goes with one of shop: %v, want %v", c.tenant, got, c.want)
		}
	}
	group.include(write("c", ""))
	if !group.goesWith(write("d", "")) {
		t.Error("two writes of operators do not go together")
	}
}

// TestUncomputedChangesOfATenantAreFree checks that a change that no manager computed costs the
// tenant nothing, however often it is tried.
func TestUncomputedChangesOfATenantAreFree(t *testing.T) {
	g := guard{&door{view: newView(testSecrets(t)), clock: clock.NewFake(time.Now()), rates: newRates(), dryRuns: newRates(), event: func(*apiv1.Event) {}}}
	id := identity{role: pki.RoleTenant, tenant: "shop"}
	for n := range 10 * lb.DefaultQuotas.Changes {
		unused, err := g.spend(id, &apiv1.ApplyRequest{})
		if err != nil {
			t.Fatalf("try %d: %v", n, err)
		}
		unused(false)
	}
}
