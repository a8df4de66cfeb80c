package manager

import (
	"fmt"
	"net/netip"
	"testing"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/pki"
)

// TestStatusOfATenantIsBuiltOfItsServices counts the entries that Status builds before filtering:
// for a tenant those of its own services only, for others all.
func TestStatusOfATenantIsBuiltOfItsServices(t *testing.T) {
	r := newPlaced(t)
	r.join("mux1")
	st := &apiv1.NodeStatus{}
	const others = 20
	for i := range others + 1 {
		tenant := "media"
		if i == 0 {
			tenant = "shop"
		}
		s := &lb.Service{Name: fmt.Sprintf("%s-%d", tenant, i), Tenant: tenant, VIPs: []netip.Addr{vipOf(i + 1)}, Endpoints: []lb.Endpoint{{Protocol: lb.TCP, Port: 80}}}
		// A draining backend is a decision.
		s.Endpoints[0].Backends = []lb.Backend{{DIPs: []netip.Addr{netip.MustParseAddr("10.20.1.11")}, Port: 8080, Host: netip.MustParseAddr("10.20.1.1"), Weight: 1, Drain: true}}
		r.apply(s)
		st.Members = append(st.Members, &apiv1.MemberStatus{Service: s.Name, Vip: s.VIPs[0].String(), Protocol: "tcp", Port: 80, Member: 0})
	}
	r.m.reports.report(r.muxes["mux1"], st, r.clock.Now())
	built := func(id identity) (out [4]int) {
		res, err := api{r.m}.Status(withIdentity(t.Context(), id), connect.NewRequest(&apiv1.StatusRequest{Service: everyService, LoadOf: everyService, SnatOf: everyService}))
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range res.Msg.Nodes {
			out[0] += len(n.Members)
		}
		out[1], out[2], out[3] = len(res.Msg.Decisions), len(res.Msg.Placements), len(res.Msg.Load)
		return out
	}
	if got, want := built(identity{role: pki.RoleTenant, tenant: "shop"}), [4]int{1, 1, 1, 1}; got != want {
		t.Errorf("members, decisions, placements, loads built for a tenant with one service: %v, want %v", got, want)
	}
	const all = others + 1
	if got, want := built(identity{role: pki.RoleAdmin}), [4]int{all, all, all, all}; got != want {
		t.Errorf("built for an administrator: %v, want %v", got, want)
	}
	if got := built(identity{role: pki.RoleTenant, tenant: "nobody"}); got != [4]int{} {
		t.Errorf("built for a tenant without services: %v", got)
	}
}
