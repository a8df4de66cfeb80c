package manager_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/store"
)

// quicService returns a service of a tenant with that many QUIC endpoints.
func quicService(name, tenant string, vip, endpoints int) *lb.Service {
	s := ofTenant(name, tenant, vip)
	b := s.Endpoints[0].Backends
	s.Endpoints = nil
	for i := range endpoints {
		s.Endpoints = append(s.Endpoints, lb.Endpoint{Protocol: lb.UDP, QUIC: &lb.QUIC{}, Port: uint16(1000 + i), Backends: b})
	}
	lb.SetDefaults(s)
	return s
}

// roomy returns a rig with a mux that reports tables of these sizes.
func roomy(t *testing.T, quic, endpoints uint64) *rig {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), muxNode(1), tenant("shop", 0), tenant("media", 0))
	mux := r.join("mux1", "mux")
	mux.mu.Lock()
	mux.status = func() *apiv1.NodeStatus {
		return &apiv1.NodeStatus{Tables: []*apiv1.TableStatus{{Name: "quic_endpoints", Capacity: quic}, {Name: "endpoints", Capacity: endpoints}}}
	}
	mux.mu.Unlock()
	r.status("mux1", func(st *apiv1.NodeStatus) bool { return len(st.GetTables()) > 0 })
	return r
}

// TestTooManyEndpointsAreRefused: a write for which a mux table has no room is refused, dry or not,
// by table, object, need and node. Others are not.
func TestTooManyEndpointsAreRefused(t *testing.T) {
	r := roomy(t, 256, 1000)
	r.apply(quicService("video", "shop", 10, 200))
	want := "services/live: endpoints: 100 more QUIC endpoints: must be at most 56 more: table quic_endpoints of nodes/mux1 has room for 256, and 200 are in use"
	for _, dry := range []bool{true, false} {
		_, err := r.admin.Apply(t.Context(), connect.NewRequest(&apiv1.ApplyRequest{DryRun: dry, Objects: []*apiv1.Object{convert.ToObject(quicService("live", "media", 11, 100))}}))
		if err == nil {
			t.Fatalf("dry %v: endpoints without room are accepted", dry)
		}
		if got := violations(t, err); len(got) != 1 || got[0] != want {
			t.Errorf("dry %v: got %q, want %q", dry, got, want)
		}
	}
	r.apply(quicService("live", "media", 11, 56))
	r.apply(ofTenant("web", "media", 12))
	// Existing services may be changed and reduced, although the tables are full.
	r.apply(quicService("video", "shop", 10, 150))
}

// TestTenantHasAShareOfTables: a caller of role tenant fills a quarter of a table, unless its
// Tenant has a quota of endpoints.
func TestTenantHasAShareOfTables(t *testing.T) {
	r := roomy(t, 40, 1000)
	ann := r.bearer(r.access("ann", "tenant", "shop", 0).Token)
	if err := applyAs(t, ann, quicService("video", "shop", 10, 10)); err != nil {
		t.Fatalf("a quarter of the table: %v", err)
	}
	err := applyAs(t, ann, quicService("video", "shop", 10, 11))
	if err == nil || !strings.Contains(err.Error(), "must be at most 10, a tenant's share of table quic_endpoints of muxes") {
		t.Errorf("more than a quarter: %v", err)
	}
	shop := tenant("shop", 0)
	shop.Quotas.Endpoints = lb.Unlimited
	r.apply(shop)
	if err := applyAs(t, ann, quicService("video", "shop", 10, 11)); err != nil {
		t.Errorf("with a quota of endpoints: %v", err)
	}
}

// TestDefaultQuotas bind callers of role tenant, not administrators.
func TestDefaultQuotas(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), tenant("shop", 0))
	ann := r.bearer(r.access("ann", "tenant", "shop", 0).Token)
	big := ofTenant("web", "shop", 10)
	for i := range int(lb.DefaultQuotas.Endpoints) {
		e := big.Endpoints[0]
		e.Port = uint16(1000 + i)
		big.Endpoints = append(big.Endpoints, e)
	}
	err := applyAs(t, ann, big)
	want := fmt.Sprintf("must be at most %d, the default of quotas.endpoints of tenants/shop", lb.DefaultQuotas.Endpoints)
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("more endpoints than the default: %v", err)
	}
	r.apply(big)
}

// reporting returns a rig with a network, a host and two muxes. The nodes in muxes, hosts too,
// report this use and capacity of tables, by name.
func reporting(t *testing.T, muxes map[string]map[string][2]uint64) *rig {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), muxNode(1), muxNode(2), tenant("shop", 0), tenant("media", 0))
	for name, tables := range muxes {
		role := "mux"
		if strings.HasPrefix(name, "host") {
			role = "host"
		}
		n := r.join(name, role)
		n.mu.Lock()
		n.status = func() *apiv1.NodeStatus {
			st := &apiv1.NodeStatus{}
			for table, use := range tables {
				st.Tables = append(st.Tables, &apiv1.TableStatus{Name: table, Used: use[0], Capacity: use[1]})
			}
			return st
		}
		n.mu.Unlock()
		r.status(name, func(st *apiv1.NodeStatus) bool { return len(st.GetTables()) == len(tables) })
	}
	return r
}

// TestFullReportedTablesRefuse: a write that needs more of a table than a mux has free is refused
// by table, need and node, dry or not. Others, and writes that need no more than before, are not.
func TestFullReportedTablesRefuse(t *testing.T) {
	for table, c := range map[string]struct {
		use  [2]uint64
		edit func(*lb.Service)
		want string
	}{
		"rings": {[2]uint64{4000, 4096}, func(s *lb.Service) {}, "services/live: endpoints: 128 more ring slots: must be at most 96 more: table rings of nodes/mux1 has room for 4096, and 4000 are in use"},
		"backends": {[2]uint64{8, 8}, func(s *lb.Service) { s.Endpoints[0].Backends[0].DIPs[0] = netip.MustParseAddr("10.20.1.99") },
			"services/live: endpoints: 1 more backends: must be at most 0 more: table backends of nodes/mux1 has room for 8, and 8 are in use"},
		"sources": {[2]uint64{0, 100}, func(s *lb.Service) {
			s.Sources = &lb.Sources{}
			for i := range 120 {
				s.Sources.Deny = append(s.Sources.Deny, netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, byte(2 * i), 0}), 24))
			}
		}, "services/live: sources: 128 more words of source lists: must be at most 100 more: table sources of nodes/mux1 has room for 100, and 0 are in use"},
		"port_ranges": {[2]uint64{8, 8}, func(s *lb.Service) {
			s.Endpoints[0].Port, s.Endpoints[0].PortEnd, s.Endpoints[0].Backends[0].Port = 1000, 2000, 0
		},
			"services/live: endpoints: 4 more intervals of ports: must be at most 0 more: table port_ranges of nodes/mux1 has room for 8, and 8 are in use"},
		"quic_endpoints": {[2]uint64{8, 8}, func(s *lb.Service) {
			s.Endpoints, s.Placement = quicService("live", "media", 11, 1).Endpoints, &lb.Placement{Replicas: 2, By: lb.PlaceByVIPs}
		}, "services/live: endpoints: 1 more QUIC endpoints: must be at most 0 more: table quic_endpoints of nodes/mux1 has room for 8, and 8 are in use"},
	} {
		t.Run(table, func(t *testing.T) {
			r := reporting(t, map[string]map[string][2]uint64{"mux1": {table: c.use}, "mux2": {table: {0, 1 << 20}}})
			live := ofTenant("live", "media", 11)
			c.edit(live)
			lb.SetDefaults(live)
			for _, dry := range []bool{true, false} {
				_, err := r.admin.Apply(t.Context(), connect.NewRequest(&apiv1.ApplyRequest{DryRun: dry, Objects: []*apiv1.Object{convert.ToObject(live)}}))
				if err == nil {
					t.Fatalf("dry %v: taken", dry)
				}
				if got := violations(t, err); len(got) != 1 || got[0] != c.want {
					t.Errorf("dry %v: got %q\nwant %q", dry, got, c.want)
				}
			}
			if table != "rings" && table != "backends" {
				r.apply(ofTenant("web", "shop", 12))
			}
		})
	}
}

// TestPlacedServicesNeedAsManyMuxes: a service for one mux fits if one has room.
func TestPlacedServicesNeedAsManyMuxes(t *testing.T) {
	r := reporting(t, map[string]map[string][2]uint64{"mux1": {"quic_endpoints": {8, 8}}, "mux2": {"quic_endpoints": {0, 8}}})
	live := quicService("live", "media", 11, 3)
	live.Placement = &lb.Placement{Replicas: 1, By: lb.PlaceByVIPs}
	r.apply(live)
}

// TestSharedBackendsCountOnce: servers that another service has need no more entries of a full
// table.
func TestSharedBackendsCountOnce(t *testing.T) {
	r := reporting(t, map[string]map[string][2]uint64{"mux1": {"backends": {7, 8}}})
	web := ofTenant("web", "shop", 10)
	r.apply(web)
	other := ofTenant("live", "shop", 11)
	other.Endpoints[0].Backends = web.Endpoints[0].Backends
	r.apply(other)
}

// TestFullHostRefuses: bindings of hosts are counted by the host's own table.
func TestFullHostRefuses(t *testing.T) {
	r := reporting(t, map[string]map[string][2]uint64{"host1": {"bindings": {0, 3}}})
	web := ofTenant("web", "shop", 10)
	r.apply(web)
	many := quicService("live", "media", 11, 3)
	_, err := r.admin.Apply(t.Context(), connect.NewRequest(&apiv1.ApplyRequest{Objects: []*apiv1.Object{convert.ToObject(many)}}))
	if err == nil {
		t.Fatal("four bindings are taken where there is room for three")
	}
	want := "services/live: endpoints: 3 more bindings: must be at most 2 more: table bindings of nodes/host1 has room for 3, and 1 are in use"
	if got := violations(t, err); len(got) != 1 || got[0] != want {
		t.Errorf("got %q\nwant %q", got, want)
	}
	r.apply(quicService("live", "media", 11, 2))
}

// TestFullHostTablesRefuse: each table of a host refuses writes for which it has no room, by
// object, need and node.
func TestFullHostTablesRefuse(t *testing.T) {
	for table, c := range map[string]struct {
		use  [2]uint64
		edit func(*lb.Service)
		want string
	}{
		"binding_parts": {[2]uint64{2, 9}, func(s *lb.Service) {
			s.Endpoints[0].Port, s.Endpoints[0].PortEnd, s.Endpoints[0].Backends[0].Port = 1000, 2001, 0
		}, "services/live: endpoints: 8 more parts of port ranges: must be at most 7 more: table binding_parts of nodes/host1 has room for 9, and 2 are in use"},
		"cookie_keys": {[2]uint64{4, 4}, func(s *lb.Service) { s.Endpoints[0].Affinity = lb.AffinityCookie },
			"services/live: endpoints: 1 more VIPs with cookies: must be at most 0 more: table cookie_keys of nodes/host1 has room for 4, and 4 are in use"},
		"snat_servers": {[2]uint64{4, 4}, func(s *lb.Service) {
			s.Tenant, s.SNAT = "shop", []lb.SNATServer{{DIP: s.Endpoints[0].Backends[0].DIPs[0]}}
		},
			"services/live: snat: 1 more servers with snat: must be at most 0 more: table snat_servers of nodes/host1 has room for 4, and 4 are in use"},
	} {
		t.Run(table, func(t *testing.T) {
			r := reporting(t, map[string]map[string][2]uint64{"host1": {table: c.use}})
			live := ofTenant("live", "media", 11)
			c.edit(live)
			lb.SetDefaults(live)
			_, err := r.admin.Apply(t.Context(), connect.NewRequest(&apiv1.ApplyRequest{Objects: []*apiv1.Object{convert.ToObject(live)}}))
			if err == nil {
				t.Fatal("taken")
			}
			if got := violations(t, err); len(got) != 1 || got[0] != c.want {
				t.Errorf("got %q\nwant %q", got, c.want)
			}
			r.apply(ofTenant("web", "shop", 12))
		})
	}
}

// TestTenantHasAShareOfHosts: a caller of role tenant fills a quarter of a host's table, unless its
// Tenant has a quota of endpoints. Administrators fill all of it.
func TestTenantHasAShareOfHosts(t *testing.T) {
	r := reporting(t, map[string]map[string][2]uint64{"host1": {"bindings": {0, 40}}})
	ann := r.bearer(r.access("ann", "tenant", "shop", 0).Token)
	if err := applyAs(t, ann, quicService("video", "shop", 10, 10)); err != nil {
		t.Fatalf("a quarter of the table: %v", err)
	}
	err := applyAs(t, ann, quicService("video", "shop", 10, 11))
	if err == nil {
		t.Fatal("more than a quarter is taken")
	}
	want := "services/video: endpoints: 11 bindings: must be at most 10, a tenant's share of table bindings of a host, unless its Tenant has quotas.endpoints"
	if got := violations(t, err); len(got) != 1 || got[0] != want {
		t.Errorf("got %q\nwant %q", got, want)
	}
	r.apply(quicService("live", "media", 11, 20))
	shop := tenant("shop", 0)
	shop.Quotas.Endpoints = lb.Unlimited
	r.apply(shop)
	if err := applyAs(t, ann, quicService("video", "shop", 10, 11)); err != nil {
		t.Errorf("with a quota of endpoints: %v", err)
	}
}

// TestCapacityThatBindsNothingIsWarnedOf: a capacity of a mux does not limit services that are on
// every mux.
func TestCapacityThatBindsNothingIsWarnedOf(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), muxNode(1))
	node := muxNode(1)
	node.Capacity.VIPs = 1
	warnings := func() []string {
		res, err := r.admin.Apply(t.Context(), connect.NewRequest(&apiv1.ApplyRequest{DryRun: true, Objects: []*apiv1.Object{convert.ToObject(node)}}))
		if err != nil {
			t.Fatal(err)
		}
		return res.Msg.GetWarnings()
	}
	if got := warnings(); len(got) != 0 {
		t.Errorf("without services: %q", got)
	}
	r.apply(ofTenant("web", "shop", 10), ofTenant("live", "shop", 11))
	want := "nodes/mux1: capacity: binds services with placement only: 2 VIPs of others are on every mux, this one included"
	if got := warnings(); len(got) != 1 || got[0] != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestWarningsOfManyMuxesAreCounted: of more muxes than one response lists, the others are counted.
func TestWarningsOfManyMuxesAreCounted(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), ofTenant("web", "shop", 10))
	var nodes []*apiv1.Object
	for i := range 23 {
		node := muxNode(i + 1)
		node.Capacity.VIPs = 1
		nodes = append(nodes, convert.ToObject(node))
	}
	res, err := r.admin.Apply(t.Context(), connect.NewRequest(&apiv1.ApplyRequest{DryRun: true, Objects: nodes}))
	if err != nil {
		t.Fatal(err)
	}
	got := res.Msg.GetWarnings()
	if want := "3 more muxes have a capacity that does not bind every VIP"; len(got) != 21 || got[20] != want {
		t.Errorf("got %d warnings %q, want 21, the last %q", len(got), got, want)
	}
}
