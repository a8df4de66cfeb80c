package lb_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/lb"
)

// ownerOf returns a Tenant with addresses of both families: 10.N.0.0/16 and 2001:db8:N::/48, VIPs
// 203.0.113.16*N/28 and 2001:db8:f:N::/64.
func ownerOf(name string, n int) *lb.Tenant {
	t := &lb.Tenant{
		Name: name,
		DIPs: []netip.Prefix{prefix(fmt.Sprintf("10.%d.0.0/16", n)), prefix(fmt.Sprintf("2001:db8:%d::/48", n))},
		VIPs: []netip.Prefix{prefix(fmt.Sprintf("203.0.113.%d/28", 16*n)), prefix(fmt.Sprintf("2001:db8:f:%d::/64", n))},
	}
	t.Hosts = t.DIPs
	lb.SetDefaults(t)
	return t
}

// serviceOf returns a service of a tenant with VIPs and one backend of both families, all inside
// ownerOf(…, n).
func serviceOf(name, tenant string, n int, path string) *lb.Service {
	s := &lb.Service{
		Name: name, Tenant: tenant, VIPs: []netip.Addr{addr(fmt.Sprintf("203.0.113.%d", 16*n+1)), addr(fmt.Sprintf("2001:db8:f:%d::1", n))},
		Endpoints: []lb.Endpoint{{
			Protocol: lb.TCP, Port: 80, Path: path,
			Backends: []lb.Backend{{DIPs: []netip.Addr{addr(fmt.Sprintf("10.%d.1.11", n)), addr(fmt.Sprintf("2001:db8:%d::11", n))}, Port: 8080, Weight: 1}},
		}},
	}
	if path != lb.PathNAT {
		s.Endpoints[0].Backends[0].Host = addr(fmt.Sprintf("10.%d.1.1", n))
	}
	lb.SetDefaults(s)
	return s
}

func foreign(s *lb.State, by lb.Claimant, objs ...lb.Object) string {
	var edits []lb.Edit
	for _, o := range objs {
		edits = append(edits, lb.PutEdit(o))
	}
	return strings.ReplaceAll(texts(s.Foreign(by, edits...)), "\n      ", "\n")
}

// TestForeign checks each address of a service, of both families and with both paths, for different
// clients and owners.
func TestForeign(t *testing.T) {
	state := lb.NewState()
	shop, media := ownerOf("shop", 1), ownerOf("media", 2)
	media.Shared = []lb.Share{{Tenants: []string{"shop"}, DIPs: []netip.Prefix{prefix("10.2.9.0/24"), prefix("2001:db8:2:9::/64")}, VIPs: []netip.Prefix{prefix("203.0.113.47/32")}}}
	mux := validNode()
	mux.Name, mux.Addresses = "mux1", []netip.Addr{addr("10.1.200.1"), addr("2001:db8:1:200::1")}
	mux.NAT = &lb.NAT{Addresses: []netip.Addr{addr("10.1.200.2")}, Low: 1024, High: 65535}
	mux.BGP.Peers = []lb.BGPPeer{{Address: addr("10.1.200.3"), ASN: 65000}}
	machine := validNode()
	machine.Name, machine.Role, machine.BGP, machine.Addresses = "box", lb.RoleHost, nil, []netip.Addr{addr("10.1.7.1")}
	state.Apply(lb.PutEdit(shop), lb.PutEdit(media), lb.PutEdit(&lb.Tenant{Name: "poor"}), lb.PutEdit(mux), lb.PutEdit(machine))
	managers := map[netip.Addr]string{addr("10.1.99.11"): "m1", addr("2001:db8:1:99::11"): "m1"}
	const operators = "must not be an address of the load balancer's own machines: it is of the operator's"
	for _, path := range []string{lb.PathDSR, lb.PathNAT} {
		dip := func(at int, a string) func(*lb.Service) {
			return func(s *lb.Service) { s.Endpoints[0].Backends[0].DIPs[at] = addr(a) }
		}
		check := func(a string) func(*lb.Service) {
			return func(s *lb.Service) { s.Endpoints[0].Health.Checks[0].Address = addr(a) }
		}
		for name, c := range map[string]struct {
			spoil func(*lb.Service)
			// the fault for each client; none: for the service of a tenant that lists nothing
			byTenant, byAdmin, none string
			dsr                     bool
		}{
			"its own":         {spoil: func(*lb.Service) {}},
			"another's dip 4": {dip(0, "10.2.1.11"), "endpoints[0].backends[0].dip[0]: 10.2.1.11: must be inside the dips of tenants/shop: 10.1.0.0/16, 2001:db8:1::/48", "endpoints[0].backends[0].dip[0]: 10.2.1.11: must not be inside the dips of another Tenant, and tenants/media has it and does not share it with tenant shop", "", false},
			"another's dip 6": {dip(1, "2001:db8:2::11"), "endpoints[0].backends[0].dip[1]: 2001:db8:2::11: must be inside the dips of tenants/shop: 10.1.0.0/16, 2001:db8:1::/48", "endpoints[0].backends[0].dip[1]: 2001:db8:2::11: must not be inside the dips of another Tenant, and tenants/media has it and does not share it with tenant shop", "", false},
			"shared dip 4":    {spoil: dip(0, "10.2.9.11")},
			"shared dip 6":    {spoil: dip(1, "2001:db8:2:9::11")},
			"nobody's dip 4":  {dip(0, "10.3.1.11"), "endpoints[0].backends[0].dip[0]: 10.3.1.11: must be inside the dips of tenants/shop: 10.1.0.0/16, 2001:db8:1::/48", "", "", false},
			"nobody's dip 6":  {dip(1, "2001:db8:3::11"), "endpoints[0].backends[0].dip[1]: 2001:db8:3::11: must be inside the dips of tenants/shop: 10.1.0.0/16, 2001:db8:1::/48", "", "", false},
			"a manager 4":     {dip(0, "10.1.99.11"), "endpoints[0].backends[0].dip[0]: 10.1.99.11: " + operators, "endpoints[0].backends[0].dip[0]: 10.1.99.11: must not be an address of the load balancer's own machines: it is of manager m1", "", false},
			"a manager 6":     {dip(1, "2001:db8:1:99::11"), "endpoints[0].backends[0].dip[1]: 2001:db8:1:99::11: " + operators, "endpoints[0].backends[0].dip[1]: 2001:db8:1:99::11: must not be an address of the load balancer's own machines: it is of manager m1", "", false},
			"a mux 4":         {dip(0, "10.1.200.1"), "endpoints[0].backends[0].dip[0]: 10.1.200.1: " + operators, "endpoints[0].backends[0].dip[0]: 10.1.200.1: must not be an address of the load balancer's own machines: it is of nodes/mux1", "", false},
			"a mux 6":         {dip(1, "2001:db8:1:200::1"), "endpoints[0].backends[0].dip[1]: 2001:db8:1:200::1: " + operators, "endpoints[0].backends[0].dip[1]: 2001:db8:1:200::1: must not be an address of the load balancer's own machines: it is of nodes/mux1", "", false},
			"a nat address":   {dip(0, "10.1.200.2"), "endpoints[0].backends[0].dip[0]: 10.1.200.2: " + operators, "endpoints[0].backends[0].dip[0]: 10.1.200.2: must not be an address of the load balancer's own machines: it is of nodes/mux1", "", false},
			"a router":        {dip(0, "10.1.200.3"), "endpoints[0].backends[0].dip[0]: 10.1.200.3: " + operators, "endpoints[0].backends[0].dip[0]: 10.1.200.3: must not be an address of the load balancer's own machines: it is of a BGP peer of nodes/mux1", "", false},
			"check own":       {spoil: check("10.1.1.12")},
			"check shared":    {spoil: check("10.2.9.12")},
			"check another's": {check("10.2.1.11"), "endpoints[0].health.address: 10.2.1.11: must be inside the dips of tenants/shop: 10.1.0.0/16, 2001:db8:1::/48", "endpoints[0].health.address: 10.2.1.11: must not be inside the dips of another Tenant, and tenants/media has it and does not share it with tenant shop", "", false},
			"check a manager": {check("2001:db8:1:99::11"), "endpoints[0].health.address: 2001:db8:1:99::11: " + operators, "endpoints[0].health.address: 2001:db8:1:99::11: must not be an address of the load balancer's own machines: it is of manager m1", "", false},
			"snat own":        {spoil: func(s *lb.Service) { s.SNAT = []lb.SNATServer{{DIP: addr("10.1.1.11")}} }},
			"snat shared": {func(s *lb.Service) { dip(0, "10.2.9.11")(s); s.SNAT = []lb.SNATServer{{DIP: addr("10.2.9.11")}} }, "snat[0]: 10.2.9.11: must be inside the dips of tenants/shop: 10.1.0.0/16, 2001:db8:1::/48",
				"snat[0]: 10.2.9.11: must not be inside the dips of another Tenant, and tenants/media has it: dips are not shared for snat", "", false},
			"snat elsewhere":      {spoil: func(s *lb.Service) { s.SNAT = []lb.SNATServer{{DIP: addr("10.1.1.12"), Host: addr("10.1.1.1")}} }, dsr: true},
			"snat another's":      {func(s *lb.Service) { s.SNAT = []lb.SNATServer{{DIP: addr("10.2.1.11"), Host: addr("10.1.1.1")}} }, "snat[0]: 10.2.1.11: must be inside the dips of tenants/shop: 10.1.0.0/16, 2001:db8:1::/48", "snat[0]: 10.2.1.11: must not be inside the dips of another Tenant, and tenants/media has it: dips are not shared for snat", "", true},
			"snat a mux":          {func(s *lb.Service) { s.SNAT = []lb.SNATServer{{DIP: addr("10.1.200.1"), Host: addr("10.1.1.1")}} }, "snat[0]: 10.1.200.1: " + operators, "snat[0]: 10.1.200.1: must not be an address of the load balancer's own machines: it is of nodes/mux1", "", true},
			"snat host another's": {func(s *lb.Service) { s.SNAT = []lb.SNATServer{{DIP: addr("10.1.1.12"), Host: addr("10.2.1.1")}} }, "snat[0]: 10.2.1.1: must be inside the hosts of tenants/shop: 10.1.0.0/16, 2001:db8:1::/48", "", "", true},
			"snat host a manager": {func(s *lb.Service) { s.SNAT = []lb.SNATServer{{DIP: addr("10.1.1.12"), Host: addr("10.1.99.11")}} }, "snat[0]: 10.1.99.11: " + operators, "snat[0]: 10.1.99.11: must not be an address of the load balancer's own machines: it is of manager m1", "", true},
			"vip another's 4":     {func(s *lb.Service) { s.VIPs[0] = addr("203.0.113.33") }, "vip[0]: 203.0.113.33: must be inside the vips of tenants/shop: 203.0.113.16/28, 2001:db8:f:1::/64", "vip[0]: 203.0.113.33: must not be inside the vips of another Tenant, and tenants/media has it and does not share it with tenant shop", "", false},
			"vip another's 6":     {func(s *lb.Service) { s.VIPs[1] = addr("2001:db8:f:2::1") }, "vip[1]: 2001:db8:f:2::1: must be inside the vips of tenants/shop: 203.0.113.16/28, 2001:db8:f:1::/64", "vip[1]: 2001:db8:f:2::1: must not be inside the vips of another Tenant, and tenants/media has it and does not share it with tenant shop", "", false},
			"vip shared":          {spoil: func(s *lb.Service) { s.VIPs[0] = addr("203.0.113.47") }},
			"vip nobody's":        {func(s *lb.Service) { s.VIPs[0] = addr("203.0.113.200") }, "vip[0]: 203.0.113.200: must be inside the vips of tenants/shop: 203.0.113.16/28, 2001:db8:f:1::/64", "", "", false},
			"host another's":      {func(s *lb.Service) { s.Endpoints[0].Backends[0].Host = addr("10.2.1.1") }, "endpoints[0].backends[0].host: 10.2.1.1: must be inside the hosts of tenants/shop: 10.1.0.0/16, 2001:db8:1::/48", "", "", true},
			"host a manager":      {func(s *lb.Service) { s.Endpoints[0].Backends[0].Host = addr("10.1.99.11") }, "endpoints[0].backends[0].host: 10.1.99.11: " + operators, "endpoints[0].backends[0].host: 10.1.99.11: must not be an address of the load balancer's own machines: it is of manager m1", "", true},
			"itself":              {spoil: func(s *lb.Service) { s.Endpoints[0].Backends[0].Host = addr("10.1.1.11") }, dsr: true},
		} {
			if c.dsr && path == lb.PathNAT {
				continue
			}
			s := serviceOf("web", "shop", 1, path)
			c.spoil(s)
			for _, who := range []struct {
				name string
				by   lb.Claimant
				want string
			}{{"tenant", lb.Claimant{Tenant: "shop", Managers: managers}, c.byTenant}, {"admin", lb.Claimant{Managers: managers}, c.byAdmin}} {
				want := who.want
				if want != "" {
					want = "services/web: " + want
				}
				if got := foreign(state, who.by, s); got != want {
					t.Errorf("%s: %s, path %s:\n got: %s\nwant: %s", name, who.name, path, got, want)
				}
			}
		}
		// A tenant that lists nothing owns nothing.
		got := foreign(state, lb.Claimant{Tenant: "poor"}, serviceOf("web", "poor", 5, path))
		for _, want := range []string{
			"services/web: vip[0]: 203.0.113.81: must be inside the vips of tenants/poor, which lists none: an admin sets them",
			"services/web: vip[1]: 2001:db8:f:5::1: must be inside the vips of tenants/poor, which lists none: an admin sets them",
			"services/web: endpoints[0].backends[0].dip[0]: 10.5.1.11: must be inside the dips of tenants/poor, which lists none: an admin sets them",
			"services/web: endpoints[0].backends[0].dip[1]: 2001:db8:5::11: must be inside the dips of tenants/poor, which lists none: an admin sets them",
		} {
			if !strings.Contains(got, want) {
				t.Errorf("path %s: no %q in\n%s", path, want, got)
			}
		}
	}
	// A prefix of servers contains their machine, which is a valid server only if it is also in
	// hosts.
	s := serviceOf("web", "shop", 1, lb.PathNAT)
	s.Endpoints[0].Backends[0].DIPs[0] = addr("10.1.7.1")
	if got := foreign(state, lb.Claimant{Tenant: "shop"}, s); got != "" {
		t.Errorf("a host of its own as server: %s", got)
	}
	less := ownerOf("shop", 1)
	less.Hosts = []netip.Prefix{prefix("10.1.1.0/24")}
	state.Apply(lb.PutEdit(less))
	if got, want := foreign(state, lb.Claimant{Tenant: "shop"}, s), "services/web: endpoints[0].backends[0].dip[0]: 10.1.7.1: must not be the address of a host that the hosts of tenants/shop do not hold"; got != want {
		t.Errorf("another's host as server:\n got: %s\nwant: %s", got, want)
	}
}

// TestForeignKeeps: a service keeps the addresses in its fields from before a rule or a Tenant's
// list existed; an address cannot move to another field.
func TestForeignKeeps(t *testing.T) {
	state := lb.NewState()
	s := serviceOf("web", "poor", 5, lb.PathDSR)
	state.Apply(lb.PutEdit(&lb.Tenant{Name: "poor"}), lb.PutEdit(s))
	by := lb.Claimant{Tenant: "poor", Managers: map[netip.Addr]string{addr("10.5.1.11"): "m1"}}
	drained := serviceOf("web", "poor", 5, lb.PathDSR)
	drained.Endpoints[0].Backends[0].Drain = true
	if got := foreign(state, by, drained); got != "" {
		t.Errorf("a drain: %s", got)
	}
	for name, spoil := range map[string]func(*lb.Service){
		"another path": func(s *lb.Service) { s.Endpoints[0].Path, s.Endpoints[0].Backends[0].Host = lb.PathNAT, netip.Addr{} },
		"another port": func(s *lb.Service) { s.Endpoints[0].Backends[0].Port = 22 },
		"a check":      func(s *lb.Service) { s.Endpoints[0].Health.Checks[0].Address = addr("10.5.1.11") },
		"snat":         func(s *lb.Service) { s.SNAT = []lb.SNATServer{{DIP: addr("10.5.1.11")}} },
		"a new server": func(s *lb.Service) { s.Endpoints[0].Backends[0].DIPs[0] = addr("10.5.1.12") },
	} {
		next := serviceOf("web", "poor", 5, lb.PathDSR)
		if spoil(next); foreign(state, by, next) == "" {
			t.Errorf("%s: no fault", name)
		}
	}
}

// TestForeignTenants: Tenants and muxes that take addresses of others are refused.
func TestForeignTenants(t *testing.T) {
	state := lb.NewState()
	web := serviceOf("web", "shop", 1, lb.PathDSR)
	web.SNAT = []lb.SNATServer{{DIP: addr("10.1.1.11")}}
	state.Apply(lb.PutEdit(ownerOf("shop", 1)), lb.PutEdit(web), lb.PutEdit(serviceOf("old", "default", 4, lb.PathDSR)))
	wide := ownerOf("media", 2)
	wide.DIPs, wide.VIPs = []netip.Prefix{prefix("10.0.0.0/12")}, []netip.Prefix{prefix("203.0.113.0/24")}
	if got, want := foreign(state, lb.Claimant{}, wide), strings.Join([]string{
		"tenants/media: dips[0]: 10.0.0.0/12: must not overlap dips[0] of tenants/shop, 10.1.0.0/16",
		"tenants/media: vips[0]: 203.0.113.0/24: must not overlap vips[0] of tenants/shop, 203.0.113.16/28",
		"tenants/media: vips[0]: 203.0.113.0/24: must not hold 203.0.113.65, which services/old of tenant default names: share it, or change the service first",
		"tenants/media: vips[0]: 203.0.113.0/24: must not hold 203.0.113.17, which services/web of tenant shop names: share it, or change the service first",
	}, "\n"); got != want {
		t.Errorf("a wide tenant:\n got: %s\nwant: %s", got, want)
	}
	late := ownerOf("late", 4)
	if got, want := foreign(state, lb.Claimant{}, late), "tenants/late: vips[0]: 203.0.113.64/28: must not hold 203.0.113.65, which services/old of tenant default names: share it, or change the service first"; got != want {
		t.Errorf("a tenant of what a service names:\n got: %s\nwant: %s", got, want)
	}
	late.Shared = []lb.Share{{Tenants: []string{"default"}, DIPs: late.DIPs, VIPs: late.VIPs}}
	if got := foreign(state, lb.Claimant{}, late); got != "" {
		t.Errorf("when it shares: %s", got)
	}
	state.Apply(lb.PutEdit(late))
	if got := foreign(state, lb.Claimant{}, ownerOf("late", 4)); got == "" {
		t.Error("what is in use is not shared any more, without a fault")
	}
	// Two in one request.
	if got, want := foreign(state, lb.Claimant{}, ownerOf("x", 7), ownerOf("y", 7)), "tenants/y: dips[0]: 10.7.0.0/16: must not overlap dips[0] of tenants/x, 10.7.0.0/16"; !strings.HasPrefix(got, want) {
		t.Errorf("two tenants with the same addresses:\n got: %s\nwant: %s …", got, want)
	}
	mux := validNode()
	mux.Name, mux.Addresses = "mux9", []netip.Addr{addr("10.1.1.11"), addr("2001:db8:1::11")}
	mux.BGP.Peers = []lb.BGPPeer{{Address: addr("10.1.1.1"), ASN: 65000}}
	if got, want := foreign(state, lb.Claimant{}, mux), strings.Join([]string{
		"nodes/mux9: address[0]: 10.1.1.11: must not be an address that a service names as a server, and services/web does",
		"nodes/mux9: address[1]: 2001:db8:1::11: must not be an address that a service names as a server, and services/web does",
		"nodes/mux9: bgp.peers[0].address: 10.1.1.1: must not be an address that a service names as a server, and services/web does",
	}, "\n"); got != want {
		t.Errorf("a mux at servers' addresses:\n got: %s\nwant: %s", got, want)
	}
}

// TestForeignProbes: a tenant's checks have a budget, its own or the default, which applies when an
// edit raises their rate.
func TestForeignProbes(t *testing.T) {
	state := lb.NewState()
	busy := func(backends int, interval time.Duration, through string) *lb.Service {
		s := serviceOf("web", "shop", 1, lb.PathDSR)
		e := &s.Endpoints[0]
		e.Health.Checks = []lb.Check{{Kind: lb.CheckTCP, Interval: time.Hour, Fast: interval, Through: through}, {Kind: lb.CheckTCP, Interval: interval}}
		e.Backends = nil
		for i := range backends {
			e.Backends = append(e.Backends, lb.Backend{DIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})}, Host: addr("10.1.1.1"), Port: 80})
		}
		return s
	}
	shop := ownerOf("shop", 1)
	state.Apply(lb.PutEdit(shop))
	if got := foreign(state, lb.Claimant{Tenant: "shop"}, busy(1000, 100*time.Millisecond, lb.ThroughDirect)); got != "" {
		t.Errorf("1,000 backends × 2 checks × 10 a second: %s", got)
	}
	over := busy(1001, 100*time.Millisecond, lb.ThroughDirect)
	if got, want := foreign(state, lb.Claimant{Tenant: "shop"}, over), "tenants/shop: quotas.probes: 20020 probes a second: must be at most 20000 from each mux, the tenant's quota: use longer intervals, or fewer checks or backends"; got != want {
		t.Errorf("one backend more:\n got: %s\nwant: %s", got, want)
	}
	// Through the tunnel each VIP of the family is probed: here one of two.
	if got := foreign(state, lb.Claimant{}, busy(1001, 100*time.Millisecond, lb.ThroughTunnel)); !strings.Contains(got, ": 20020 probes a second") {
		t.Errorf("through the tunnel: %s", got)
	}
	more := ownerOf("shop", 1)
	more.Quotas.Probes = 20020
	if got := foreign(state, lb.Claimant{}, more, over); got != "" {
		t.Errorf("with a quota of 20,020: %s", got)
	}
	state.Apply(lb.PutEdit(over)) // stored by a build that had no quota
	less := busy(1001, 200*time.Millisecond, lb.ThroughDirect)
	if got := foreign(state, lb.Claimant{Tenant: "shop"}, less); got != "" {
		t.Errorf("a change for the better: %s", got)
	}
	lower := ownerOf("shop", 1)
	lower.Quotas.Probes = 10
	if got, want := foreign(state, lb.Claimant{}, lower), "tenants/shop: quotas.probes: 20020 probes a second: must be at most 10 from each mux, the tenant's quota: use longer intervals, or fewer checks or backends"; got != want {
		t.Errorf("a lower quota:\n got: %s\nwant: %s", got, want)
	}
}

// TestForeignIsNaive makes random edits to Tenants and services, and compares which of them have
// faults with a search through all prefixes.
func TestForeignIsNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := []string{"a", "b", "c"}
		name := rapid.SampledFrom(names)
		prefixes := func(label string, format []string) (out []netip.Prefix) {
			for _, i := range rapid.SliceOfNDistinct(rapid.IntRange(0, len(format)-1), 0, 2, rapid.ID).Draw(t, label) {
				out = append(out, prefix(format[i]))
			}
			return out
		}
		dips := []string{"10.1.0.0/16", "10.1.1.0/24", "10.1.1.11/32", "10.2.0.0/16", "2001:db8:1::/48", "2001:db8:1:1::/64"}
		vips := []string{"203.0.113.0/24", "203.0.113.16/28", "203.0.113.32/28", "2001:db8:f::/48"}
		addrs := []string{"10.1.1.11", "10.1.2.11", "10.2.1.11", "10.3.1.11", "2001:db8:1:1::11", "2001:db8:1:2::11"}
		vaddrs := []string{"203.0.113.17", "203.0.113.33", "203.0.113.99", "2001:db8:f::1"}
		state, all := lb.NewState(), map[string]lb.Object{}
		for range rapid.IntRange(1, 10).Draw(t, "edits") {
			var o lb.Object
			if rapid.Bool().Draw(t, "tenant") {
				x := &lb.Tenant{Name: name.Draw(t, "name"), DIPs: prefixes("dips", dips), VIPs: prefixes("vips", vips), Hosts: prefixes("hosts", dips)}
				if rapid.Bool().Draw(t, "shares") {
					x.Shared = []lb.Share{{Tenants: []string{name.Draw(t, "with")}, DIPs: x.DIPs, VIPs: x.VIPs}}
				}
				o = x
			} else {
				s := serviceOf(name.Draw(t, "service"), name.Draw(t, "of"), 1, rapid.SampledFrom([]string{lb.PathDSR, lb.PathNAT}).Draw(t, "path"))
				s.VIPs = []netip.Addr{addr(rapid.SampledFrom(vaddrs).Draw(t, "vip"))}
				b := &s.Endpoints[0].Backends[0]
				b.DIPs = []netip.Addr{addr(rapid.SampledFrom(addrs).Draw(t, "dip"))}
				if b.Host.IsValid() {
					b.Host = addr(rapid.SampledFrom(addrs).Draw(t, "host"))
				}
				if rapid.Bool().Draw(t, "check") {
					s.Endpoints[0].Health.Checks[0].Address = addr(rapid.SampledFrom(addrs).Draw(t, "address"))
				}
				switch rapid.IntRange(0, 2).Draw(t, "snat") {
				case 1:
					s.SNAT = []lb.SNATServer{{DIP: b.DIPs[0]}}
				case 2:
					s.SNAT = []lb.SNATServer{{DIP: addr(rapid.SampledFrom(addrs).Draw(t, "snat dip")), Host: addr(rapid.SampledFrom(addrs).Draw(t, "snat host"))}}
				}
				o = s
			}
			by := ""
			if s, ok := o.(*lb.Service); ok && rapid.Bool().Draw(t, "by tenant") {
				by = s.Tenant
			}
			key := string(o.Kind()) + o.ObjectName()
			got := state.Foreign(lb.Claimant{Tenant: by}, lb.PutEdit(o))
			old := all[key]
			all[key] = o
			if want := naive(all, old, o, by); (len(got) > 0) != want {
				t.Fatalf("%+v by %q: got %v, want faults: %v", o, by, texts(got), want)
			}
			// Faulty objects may still be in a store.
			if len(got) > 0 && rapid.IntRange(0, 3).Draw(t, "stored") > 0 {
				if delete(all, key); old != nil {
					all[key] = old
				}
				continue
			}
			state.Apply(lb.PutEdit(o))
		}
	})
}

// naive reports whether an edit takes an address of another: all is the state after it, old the
// object before.
func naive(all map[string]lb.Object, old, o lb.Object, by string) bool {
	tenants := map[string]*lb.Tenant{}
	for _, x := range all {
		if t, ok := x.(*lb.Tenant); ok {
			tenants[t.Name] = t
		}
	}
	holds := func(ps []netip.Prefix, a netip.Addr) bool {
		return slices.ContainsFunc(ps, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	lists := func(t *lb.Tenant, vip bool) []netip.Prefix {
		if t == nil {
			return nil
		} else if vip {
			return t.VIPs
		}
		return t.DIPs
	}
	// has lists the Tenants that own an address; in a faulty store the first by name counts.
	permitted := func(tenant string, a netip.Addr, vip, snat bool, by string) bool {
		var has []string
		for n, t := range tenants {
			if holds(lists(t, vip), a) {
				has = append(has, n)
			}
		}
		slices.Sort(has)
		if len(has) == 0 {
			return by == ""
		}
		if has[0] == tenant {
			return true
		}
		return !snat && slices.ContainsFunc(tenants[has[0]].Shared, func(s lb.Share) bool {
			ps := s.DIPs
			if vip {
				ps = s.VIPs
			}
			return slices.Contains(s.Tenants, tenant) && holds(ps, a)
		})
	}
	type naming struct {
		what, path string
		a          netip.Addr
	}
	named := func(s *lb.Service) (out []naming) {
		e := &s.Endpoints[0]
		out = append(out, naming{"vip", "", s.VIPs[0]}, naming{"dip", e.Path, e.Backends[0].DIPs[0]})
		if a := e.Health.Checks[0].Address; a.IsValid() {
			out = append(out, naming{"check", e.Path, a})
		}
		for _, server := range s.SNAT {
			out = append(out, naming{"snat", "", server.DIP})
			if h := server.Host; h.IsValid() && h != server.DIP {
				out = append(out, naming{"host", "snat", h})
			}
		}
		if h := e.Backends[0].Host; h.IsValid() && h != e.Backends[0].DIPs[0] {
			out = append(out, naming{"host", e.Path, h})
		}
		return out
	}
	switch o := o.(type) {
	case *lb.Service:
		var before []naming
		if s, ok := old.(*lb.Service); ok && s.Tenant == o.Tenant {
			before = named(s)
			if h := s.Endpoints[0].Backends[0].Host; h.IsValid() {
				before = append(before, naming{"host", s.Endpoints[0].Path, h})
			}
			if len(s.SNAT) > 0 {
				before = append(before, naming{"host", "snat", s.SNAT[0].Host})
			}
		}
		for _, n := range named(o) {
			switch {
			case slices.Contains(before, n):
			case n.what == "host":
				if by != "" && (tenants[o.Tenant] == nil || !holds(tenants[o.Tenant].Hosts, n.a)) {
					return true
				}
			case !permitted(o.Tenant, n.a, n.what == "vip", n.what == "snat", by):
				return true
			}
		}
	case *lb.Tenant:
		for _, vip := range []bool{false, true} {
			for _, other := range tenants {
				for _, p := range lists(o, vip) {
					if other != o && slices.ContainsFunc(lists(other, vip), p.Overlaps) {
						return true
					}
				}
			}
		}
		if t, ok := old.(*lb.Tenant); ok && fmt.Sprint(t.DIPs, t.VIPs, t.Shared) == fmt.Sprint(o.DIPs, o.VIPs, o.Shared) {
			return false
		}
		for _, x := range all {
			s, ok := x.(*lb.Service)
			if !ok || s.Tenant == o.Name {
				continue
			}
			for _, n := range named(s) {
				if n.what != "host" && holds(lists(o, n.what == "vip"), n.a) && !slices.ContainsFunc(o.Shared, func(sh lb.Share) bool {
					return n.what != "snat" && slices.Contains(sh.Tenants, s.Tenant) && (n.what == "vip" && holds(sh.VIPs, n.a) || n.what != "vip" && holds(sh.DIPs, n.a))
				}) {
					return true
				}
			}
		}
	}
	return false
}
