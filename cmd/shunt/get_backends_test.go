package main

import (
	"slices"
	"testing"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// TestBackendsInOneRow checks that two backends of two VIPs at two muxes are two rows, which name
// the muxes that differ. Records remain one for each mux.
func TestBackendsInOneRow(t *testing.T) {
	mux := func(name string, connected bool, alive map[string]bool) *apiv1.NodeStatus {
		n := &apiv1.NodeStatus{Name: name, Role: string(lb.RoleMux), Connected: connected}
		for _, vip := range []string{"203.0.113.10", "203.0.113.11"} {
			for i, dip := range []string{"10.20.1.11", "10.20.2.11"} {
				word := "status 200"
				if !alive[dip] {
					word = "connection refused"
				}
				n.Members = append(n.Members, &apiv1.MemberStatus{
					Service: "web", Vip: vip, Protocol: "tcp", Port: 80, Dip: dip, DipPort: 8080, Member: uint32(i + 1), Alive: alive[dip], LastCheck: word,
					Weight: 1, Flows: 2, Packets: 10, Bytes: 100,
				})
			}
		}
		return n
	}
	both := map[string]bool{"10.20.1.11": true, "10.20.2.11": true}
	for _, c := range []struct {
		name   string
		muxes  []*apiv1.NodeStatus
		second []string
	}{
		{"agree", []*apiv1.NodeStatus{mux("mux1", true, both), mux("mux2", true, both)},
			[]string{"web", "tcp/80", "10.20.2.11:8080", "up", "1", "8", "", "40", "400", "mux1,mux2", "status 200"}},
		{"differ", []*apiv1.NodeStatus{mux("mux1", true, both), mux("mux2", true, map[string]bool{"10.20.1.11": true})},
			[]string{"web", "tcp/80", "10.20.2.11:8080", "mixed", "1", "8", "", "40", "400", "mux1 up; mux2 down", "connection refused"}},
		{"one is away", []*apiv1.NodeStatus{mux("mux1", true, both), mux("mux2", false, nil)},
			[]string{"web", "tcp/80", "10.20.2.11:8080", "up", "1", "8", "", "40", "400", "mux1 up; mux2 unknown", "status 200"}},
		{"all are away", []*apiv1.NodeStatus{mux("mux1", false, both)},
			[]string{"web", "tcp/80", "10.20.2.11:8080", "unknown", "1", "4", "", "20", "200", "mux1", "status 200"}},
	} {
		status := &apiv1.StatusResponse{Nodes: c.muxes}
		v := backendsView(status, "web")
		if len(v.rows) != 3 || !slices.Equal(v.rows[2], c.second) {
			t.Errorf("%s: %q, want two rows, the second of them %q", c.name, v.rows, c.second)
		}
		if got := len(v.records.([]backendRecord)); got != 4*len(c.muxes) {
			t.Errorf("%s: %d records", c.name, got)
		}
		if rows := backendView(status, "web").rows; len(rows) != 1+4*len(c.muxes) {
			t.Errorf("%s: by mux: %q", c.name, rows)
		}
	}
}
