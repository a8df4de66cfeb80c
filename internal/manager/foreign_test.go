package manager_test

import (
	"net/netip"
	"strings"
	"testing"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/store"
)

// owning returns a Tenant with servers at 10.20.N.0/24 and 2001:db8:20:N::/64 and VIPs at
// 203.0.113.16*N/28 and 2001:db8:f:0:N::/80.
func owning(name, n, vips string) *lb.Tenant {
	t := &lb.Tenant{
		Name: name, DIPs: prefixes("10.20."+n+".0/24", "2001:db8:20:"+n+"::/64"), VIPs: prefixes("203.0.113."+vips+"/28", "2001:db8:f:0:"+n+"::/80"),
	}
	t.Hosts = t.DIPs
	lb.SetDefaults(t)
	return t
}

// both returns a service of shop with an address of each family in every field that holds one.
func both(path string) *lb.Service {
	s := ofTenant("shop-web", "shop", 17)
	s.VIPs = append(s.VIPs, netip.MustParseAddr("2001:db8:f:0:1::1"))
	e := &s.Endpoints[0]
	e.Backends[0].DIPs = append(e.Backends[0].DIPs, netip.MustParseAddr("2001:db8:20:1::11"))
	e.Health.Checks[0].Through = lb.ThroughDirect
	if e.Path = path; path == lb.PathNAT {
		e.Backends[0].Host, e.RepairWindow, e.HostIdle = netip.Addr{}, nil, lb.HostIdle{}
	}
	lb.SetDefaults(s)
	return s
}

// TestTenantNamesItsOwnAddresses checks that a caller of role tenant can use only its own
// addresses, in any field, family and path, by any call that writes, and that errors do not reveal
// the owner. No caller can use the managers' addresses.
func TestTenantNamesItsOwnAddresses(t *testing.T) {
	r := newRigOf(t, rig{store: store.NewMemory(), peer: "10.20.1.99:2380"})
	mux := muxNode(1)
	mux.NAT = &lb.NAT{Addresses: []netip.Addr{netip.MustParseAddr("10.30.0.1"), netip.MustParseAddr("2001:db8:30::1")}}
	lb.SetDefaults(mux)
	r.apply(network(), mux, hostNode(1), hostNode(2), owning("shop", "1", "16"), owning("media", "2", "32"))
	ann := r.bearer(r.access("ann", "tenant", "shop", 0).Token)
	dip := func(at int, a string) func(*lb.Service) {
		return func(s *lb.Service) { s.Endpoints[0].Backends[0].DIPs[at] = netip.MustParseAddr(a) }
	}
	check := func(a string) func(*lb.Service) {
		return func(s *lb.Service) { s.Endpoints[0].Health.Checks[0].Address = netip.MustParseAddr(a) }
	}
	const (
		dips    = "must be inside the dips of tenants/shop: 10.20.1.0/24, 2001:db8:20:1::/64"
		vips    = "must be inside the vips of tenants/shop: 203.0.113.16/28, 2001:db8:f:0:1::/80"
		machine = "must not be an address of the load balancer's own machines: it is of the operator's"
	)
	calls := map[string]func(o *lb.Service, dry, prune bool) error{
		"ann": func(o *lb.Service, dry, prune bool) error {
			req := &apiv1.ApplyRequest{DryRun: dry, Prune: prune, Objects: []*apiv1.Object{convert.ToObject(o)}}
			_, err := ann.Apply(t.Context(), connect.NewRequest(req))
			return err
		},
		"admin": func(o *lb.Service, dry, prune bool) error {
			req := &apiv1.ApplyRequest{DryRun: dry, Prune: prune, Source: "apply", Objects: []*apiv1.Object{convert.ToObject(o)}}
			_, err := r.admin.Apply(t.Context(), connect.NewRequest(req))
			return err
		},
	}
	for _, path := range []string{lb.PathDSR, lb.PathNAT} {
		for name, c := range map[string]struct {
			spoil func(*lb.Service)
			want  string
			admin bool // an admin is refused as well
		}{
			"dip 4":     {dip(0, "10.20.2.11"), "endpoints[0].backends[0].dip[0]: 10.20.2.11: " + dips, true},
			"dip 6":     {dip(1, "2001:db8:20:2::11"), "endpoints[0].backends[0].dip[1]: 2001:db8:20:2::11: " + dips, true},
			"nobody's":  {dip(0, "10.20.7.11"), "endpoints[0].backends[0].dip[0]: 10.20.7.11: " + dips, false},
			"manager":   {dip(0, "10.20.1.99"), "endpoints[0].backends[0].dip[0]: 10.20.1.99: " + machine, true},
			"mux":       {dip(0, "10.10.0.11"), "endpoints[0].backends[0].dip[0]: 10.10.0.11: " + machine, true},
			"router":    {dip(0, "10.10.0.1"), "endpoints[0].backends[0].dip[0]: 10.10.0.1: " + machine, true},
			"check 4":   {check("10.20.2.11"), "endpoints[0].health.address: 10.20.2.11: " + dips, true},
			"check 6":   {check("2001:db8:20:2::11"), "endpoints[0].health.address: 2001:db8:20:2::11: " + dips, true},
			"check mgr": {check("10.20.1.99"), "endpoints[0].health.address: 10.20.1.99: " + machine, true},
			"vip 4":     {func(s *lb.Service) { s.VIPs[0] = netip.MustParseAddr("203.0.113.33") }, "vip[0]: 203.0.113.33: " + vips, true},
			"vip 6":     {func(s *lb.Service) { s.VIPs[1] = netip.MustParseAddr("2001:db8:f:0:2::1") }, "vip[1]: 2001:db8:f:0:2::1: " + vips, true},
			"free vip":  {func(s *lb.Service) { s.VIPs[0] = netip.MustParseAddr("203.0.113.99") }, "vip[0]: 203.0.113.99: " + vips, false},
			"snat": {func(s *lb.Service) {
				dip(0, "10.20.2.11")(s)
				s.SNAT = []lb.SNATServer{{DIP: netip.MustParseAddr("10.20.2.11")}}
			}, "snat[0]: 10.20.2.11: " + dips, true},
			"host": {func(s *lb.Service) { s.Endpoints[0].Backends[0].Host = netip.MustParseAddr("10.20.2.1") },
				"endpoints[0].backends[0].host: 10.20.2.1: must be inside the hosts of tenants/shop: 10.20.1.0/24, 2001:db8:20:1::/64", false},
		} {
			if name == "host" && path == lb.PathNAT || name == "snat" && path == lb.PathNAT {
				continue // there is none
			}
			for _, dry := range []bool{true, false} {
				for _, prune := range []bool{false, true} {
					s := both(path)
					c.spoil(s)
					err := calls["ann"](s, dry, prune)
					if got := strings.Join(violations(t, err), "\n"); connect.CodeOf(err) != connect.CodeInvalidArgument || !strings.Contains(got, "services/shop-web: "+c.want) || strings.Contains(got, "media") {
						t.Errorf("%s, path %s, dry %v, prune %v:\n got: %v\nwant: %s", name, path, dry, prune, got, c.want)
					}
					if c.admin && !prune && calls["admin"](s, dry, false) == nil {
						t.Errorf("%s, path %s, dry %v: an admin is not refused", name, path, dry)
					}
				}
			}
		}
		if err := calls["ann"](both(path), true, false); err != nil {
			t.Errorf("path %s: its own: %v", path, err)
		}
	}
	if got := r.services(); len(got) != 0 {
		t.Errorf("of what was refused there is %q", got)
	}
	// An admin shares addresses explicitly.
	media := owning("media", "2", "32")
	media.Shared = []lb.Share{{Tenants: []string{"shop"}, DIPs: prefixes("10.20.2.11/32"), VIPs: prefixes("203.0.113.33/32")}}
	r.apply(media)
	s := both(lb.PathNAT)
	dip(0, "10.20.2.11")(s)
	s.VIPs[0] = netip.MustParseAddr("203.0.113.33")
	if err := calls["ann"](s, false, false); err != nil {
		t.Errorf("what is shared: %v", err)
	}
}

// TestTenantKeepsWhatItNamed checks that a Tenant without lists owns nothing, but that every source
// can drain and change objects stored before it had lists. A further address is refused.
func TestTenantKeepsWhatItNamed(t *testing.T) {
	r := newRig(t, store.NewMemory())
	shop := &lb.Tenant{Name: "shop"}
	lb.SetDefaults(shop)
	r.apply(network(), hostNode(1), hostNode(2), shop, ofTenant("shop-web", "shop", 10))
	ann := r.bearer(r.access("ann", "tenant", "shop", 0).Token)
	s := ofTenant("shop-web", "shop", 10)
	s.Endpoints[0].Backends[0].Weight = 7
	if err := applyAs(t, ann, s); err != nil {
		t.Errorf("a weight: %v", err)
	}
	drained := ofTenant("shop-web", "shop", 10)
	drained.Endpoints[0].Backends[0].Weight, drained.Endpoints[0].Backends[0].Drain = 7, true
	req := &apiv1.ApplyRequest{Source: "drain", Objects: []*apiv1.Object{convert.ToObject(drained)}}
	if _, err := ann.Apply(t.Context(), connect.NewRequest(req)); err != nil {
		t.Errorf("a drain: %v", err)
	}
	s.Endpoints[0].Backends = append(s.Endpoints[0].Backends, backend(2))
	got := strings.Join(violations(t, applyAs(t, ann, s)), "\n")
	for _, want := range []string{
		"services/shop-web: endpoints[0].backends[1].dip[0]: 10.20.2.11: must be inside the dips of tenants/shop, which lists none: an admin sets them",
		"services/shop-web: endpoints[0].backends[1].host: 10.20.2.1: must be inside the hosts of tenants/shop, which lists none: an admin sets them",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("a server more: %s\nwant %s", got, want)
		}
	}
	if err := deleteAs(t, ann, "Service", "shop-web"); err != nil {
		t.Errorf("a delete: %v", err)
	}
}

// TestProbesOfATenantAreBounded checks that a request beyond quotas.probes is refused with the
// number, in the audit log and as an event of the tenant.
func TestProbesOfATenantAreBounded(t *testing.T) {
	r := newRig(t, store.NewMemory())
	shop := owning("shop", "1", "16")
	shop.Quotas.Probes = 1 // one probe a second
	r.apply(network(), hostNode(1), shop)
	ann := r.bearer(r.access("ann", "tenant", "shop", 0).Token)
	if err := applyAs(t, ann, ofTenant("shop-web", "shop", 17)); err != nil {
		t.Fatalf("one backend, once a second: %v", err)
	}
	err := applyAs(t, ann, ofTenant("shop-api", "shop", 18))
	const want = "tenants/shop: quotas.probes: 2 probes a second: must be at most 1 from each mux, the tenant's quota: use longer intervals, or fewer checks or backends"
	if got := strings.Join(violations(t, err), "\n"); got != want {
		t.Errorf("another one:\n got: %s\nwant: %s", got, want)
	}
	for _, e := range r.refusals(1) {
		if !strings.Contains(e.GetRefused(), "quotas.probes") {
			t.Errorf("the audit log has %v", e)
		}
	}
}

// TestClashNamesTheNewcomer checks that the fault of a clash is at the later object, whatever its
// name.
func TestClashNamesTheNewcomer(t *testing.T) {
	r := newRig(t, store.NewMemory())
	old := ofTenant("web", "default", 10)
	old.SNAT = []lb.SNATServer{{DIP: old.Endpoints[0].Backends[0].DIPs[0]}}
	r.apply(network(), hostNode(1), old)
	for _, name := range []string{"b2", "z2"} {
		s := ofTenant(name, "default", 10)
		s.SNAT = old.SNAT
		_, err := r.tryApply(s)
		got, want := strings.Join(violations(t, err), "\n"), strings.Join([]string{
			"services/" + name + ": vip[0]: 203.0.113.10: must belong to one service, and services/web has it",
			"services/" + name + ": snat[0]: 10.20.1.11: must be in one service, and services/web has it",
		}, "\n")
		if got != want {
			t.Errorf("%s:\n got: %s\nwant: %s", name, got, want)
		}
	}
}
