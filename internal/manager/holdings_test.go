package manager

import (
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/pki"
)

// TestWhatATenantStoresIsBounded: a caller of role tenant is refused a change by which its objects have too many bytes or policies; one that makes
// them fewer, and others' changes, are not.
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
