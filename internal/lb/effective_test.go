package lb_test

import (
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/lb"
)

func TestTenantAndPolicyRefusals(t *testing.T) {
	cases := []struct {
		object lb.Object
		want   string
	}{
		{&lb.Tenant{Name: "shop", Weight: 1001}, "tenants/shop: weight: 1001: must be 1 to 1000"},
		{&lb.Tenant{Name: "shop"}, "tenants/shop: weight: 0: must be 1 to 1000"},
		{&lb.Tenant{Name: "shop", Weight: 1, VNI: 7}, "tenants/shop: vni: 7: must be 0: overlays are not supported by this version"},
		{&lb.Policy{Name: "gold", Tenant: "a_b"}, "policies/gold: tenant: a_b: must be a DNS label: 1 to 63 of a-z, 0-9 and -, beginning and ending with a letter or digit"},
		{&lb.Policy{Name: "gold", Limits: &lb.Limits{}}, "policies/gold: limits.ping: 0: must be 1 to 1000000000 a second"},
		{&lb.Policy{Name: "gold", Placement: &lb.Placement{}}, "policies/gold: placement.by: must be vips or load"},
		{&lb.Policy{Name: "gold", Sources: &lb.Sources{Allow: []netip.Prefix{{}}}}, "policies/gold: sources.allow[0]: must be a prefix such as 203.0.113.0/24 or 2001:db8:f::/64"},
	}
	for _, c := range cases {
		expect(t, lb.Validate(c.object), c.want)
	}
}

// TestEffective: each of limits, sources and placement is the service's, else the policy's, else
// the default, as a whole.
func TestEffective(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &lb.Service{Name: "web", Limits: limits(t), Sources: sources(t), Placement: placement(t)}
		p := &lb.Policy{Name: "gold", Limits: limits(t), Sources: sources(t), Placement: placement(t)}
		s.Policy = rapid.SampledFrom([]string{"", "gold", "gone"}).Draw(t, "policy")
		got := lb.Effective(s, map[string]*lb.Policy{"gold": p, "other": {Limits: &lb.Limits{Packets: 7}}})
		if s.Policy != "gold" {
			p = &lb.Policy{}
		}
		wantLimits, wantPlacement := lb.Limits{Ping: 1000}, lb.Placement{By: "vips"}
		for _, l := range []*lb.Limits{s.Limits, p.Limits} {
			if l != nil {
				wantLimits = *l
				break
			}
		}
		for _, o := range []*lb.Placement{s.Placement, p.Placement} {
			if o != nil {
				wantPlacement = *o
				break
			}
		}
		if got.Limits != wantLimits || got.Placement != wantPlacement {
			t.Fatalf("got %+v, want %+v and %+v", got, wantLimits, wantPlacement)
		}
		switch {
		case s.Sources != nil && (got.Sources != s.Sources || got.SourcesOf != ""),
			s.Sources == nil && p.Sources != nil && (got.Sources != p.Sources || got.SourcesOf != "gold"),
			s.Sources == nil && p.Sources == nil && (len(got.Sources.Allow)+len(got.Sources.Deny) > 0 || got.SourcesOf != ""):
			t.Fatalf("sources %+v of %q", got.Sources, got.SourcesOf)
		}
	})
}
