package manager_test

import (
	"context"
	"testing"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/store"
)

// loadOf returns a report with the connections of members of web: the given number plus the
// member's id plus one.
func loadOf(connections uint32, members ...uint32) *apiv1.LoadReport {
	e := &apiv1.EndpointLoad{Vip: "203.0.113.10", Protocol: "tcp", Port: 80, Members: members}
	for _, id := range members {
		e.Connections = append(e.Connections, connections+id+1)
	}
	return &apiv1.LoadReport{Endpoints: []*apiv1.EndpointLoad{e}}
}

// hearsLoads reads a mux's stream until the connections of members in have equal those in want.
func hearsLoads(t *testing.T, mux *rawStream, have, want map[uint32]uint32) {
	t.Helper()
	for {
		met := true
		for id, n := range want {
			met = met && have[id] == n
		}
		if met {
			return
		}
		for _, e := range receive(t, mux).GetLoad().GetEndpoints() {
			if e.GetVip() != "203.0.113.10" || e.GetPort() != 80 {
				t.Fatalf("the mux hears %v", e)
			}
			for i, id := range e.GetMembers() {
				have[id] = e.GetConnections()[i] - 1
			}
		}
	}
}

// TestLoadsReachMuxes: the load that a host reports of its own members, and of no others, reaches
// muxes that are connected and those that connect later. A mux that does not support loads gets
// none. An invalid report does no harm.
func TestLoadsReachMuxes(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), hostNode(2), muxNode(1), muxNode(2), muxNode(3), web(1, 2))
	host, other := r.raw("host1", "host"), r.raw("host2", "host")
	receive(t, host)
	receive(t, other)
	mux := r.rawHello(&apiv1.Hello{Name: "mux1", Role: "mux", TakesLoad: true})
	old := r.raw("mux2", "mux")
	if up := receive(t, old); !up.GetSnapshot() {
		t.Fatalf("not a snapshot: %v", up)
	}
	says := func(s *rawStream, l *apiv1.LoadReport) {
		t.Helper()
		if err := s.Send(&apiv1.NodeReport{Load: l}); err != nil {
			t.Fatal(err)
		}
	}
	have := map[uint32]uint32{}
	says(host, loadOf(10, 0, 1, 9)) // member 1 is on host2, 9 nowhere
	hearsLoads(t, mux, have, map[uint32]uint32{0: 10})
	if len(have) != 1 {
		t.Fatalf("the mux hears %v", have)
	}
	broken := loadOf(20, 0)
	broken.Endpoints[0].Cpu = []uint32{1, 2, 3}
	says(host, broken)
	says(host, loadOf(20, 0, 70000))
	says(host, &apiv1.LoadReport{Endpoints: []*apiv1.EndpointLoad{{Vip: "nowhere", Members: []uint32{0}}, {Vip: "203.0.113.99", Protocol: "tcp", Port: 80, Members: []uint32{0}}}})
	says(other, loadOf(30, 1))
	hearsLoads(t, mux, have, map[uint32]uint32{0: 10, 1: 31})
	if len(have) != 2 {
		t.Fatalf("the mux hears %v", have)
	}
	late := map[uint32]uint32{}
	hearsLoads(t, r.rawHello(&apiv1.Hello{Name: "mux3", Role: "mux", TakesLoad: true}), late, map[uint32]uint32{0: 10, 1: 31})
	status := func() map[uint32]*apiv1.MemberLoad {
		t.Helper()
		res, err := r.admin.Status(t.Context(), connect.NewRequest(&apiv1.StatusRequest{LoadOf: "web"}))
		if err != nil {
			t.Fatal(err)
		}
		out := map[uint32]*apiv1.MemberLoad{}
		for _, l := range res.Msg.GetLoad() {
			if l.GetService() != "web" || l.GetVip() != "203.0.113.10" || l.GetDipPort() != 8080 {
				t.Errorf("load %v", l)
			}
			out[l.GetMember()] = l.GetLoad()
		}
		return out
	}
	got := status()
	if len(got) != 2 || got[0].GetConnections() != 10 || got[1].GetConnections() != 31 || got[1].Given != nil || got[1].Cpu != nil {
		t.Errorf("status %v", got)
	}
	// A mux that takes no loads receives everything else.
	if err := host.Send(&apiv1.NodeReport{Health: &apiv1.HealthReport{Full: true, Endpoints: []*apiv1.EndpointHealth{{Vip: "203.0.113.10", Protocol: "tcp", Port: 80, Dead: []uint32{0}}}}}); err != nil {
		t.Fatal(err)
	}
	for {
		up := receive(t, old)
		if up.GetLoad() != nil {
			t.Fatalf("a mux that takes no loads gets %v", up)
		}
		if up.GetHealth() != nil {
			break
		}
	}
}

// TestLoadsReachMuxesOfAllMembers: loads that a host at one member reports repeatedly, as hosts do,
// reach muxes at every member, also under another leader, and after the host has moved.
func TestLoadsReachMuxesOfAllMembers(t *testing.T) {
	ms := newMembers(t, 3, nil)
	ms.leader(1).apply(network(), hostNode(1), muxNode(1), muxNode(2), muxNode(3), several(1, 3))
	repeat := func(s *rawStream, l *apiv1.LoadReport) (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			for ctx.Err() == nil && s.Send(&apiv1.NodeReport{Load: l}) == nil {
				select {
				case <-time.After(20 * time.Millisecond): // the pace of hosts
				case <-ctx.Done():
				}
			}
		}()
		return func() { cancel(); <-done }
	}
	host := ms.rigs[1].rawHello(&apiv1.Hello{Name: "host1", Role: "host", Opened: 1})
	receive(t, host)
	var muxes []*rawStream
	have := make([]map[uint32]uint32, 3)
	for i, name := range []string{"mux1", "mux2", "mux3"} {
		muxes, have[i] = append(muxes, ms.rigs[i].rawHello(&apiv1.Hello{Name: name, Role: "mux", TakesLoad: true})), map[uint32]uint32{}
	}
	heard := func(connections uint32) {
		t.Helper()
		for i, mux := range muxes {
			hearsLoads(t, mux, have[i], map[uint32]uint32{0: connections, 1: connections + 1, 2: connections + 2})
		}
	}
	stop := repeat(host, loadOf(10, 0, 1, 2))
	heard(10)
	stop()
	ms.lapse()
	ms.leader(2)
	stop = repeat(host, loadOf(20, 0, 1, 2))
	heard(20)
	stop()
	moved := ms.rigs[2].rawHello(&apiv1.Hello{Name: "host1", Role: "host", Opened: 2})
	receive(t, moved)
	stop = repeat(moved, loadOf(30, 0, 1, 2))
	heard(30)
	stop()
}

// TestSharesOfNewConnections: the share of a backend is the mean of the shares that the answering
// muxes report. It is absent unless requested.
func TestSharesOfNewConnections(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), muxNode(1), muxNode(2), muxNode(3), hostNode(1), hostNode(2))
	muxes := []*node{r.join("mux1", "mux"), r.join("mux3", "mux")}
	rev := r.apply(web(1, 2)).Revision
	for _, mux := range muxes {
		mux.until("the service", func(p plan.Plan) bool { return p.Revision == rev })
	}
	for _, shares := range []bool{true, false} {
		res, err := r.admin.Status(t.Context(), connect.NewRequest(&apiv1.StatusRequest{LoadOf: "web", Shares: shares}))
		if err != nil || len(res.Msg.GetLoad()) == 0 {
			t.Fatal(res, err)
		}
		for _, l := range res.Msg.GetLoad() {
			if l.GetScheduler() != "maglev" || (l.Share != nil) != shares || shares && l.GetShare() != 0.25*float64(l.GetMember()) {
				t.Errorf("asked %v: %v", shares, l)
			}
		}
	}
}
