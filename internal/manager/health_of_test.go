package manager_test

import (
	"fmt"
	"testing"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/store"
)

func healthOf(r *rig, req *apiv1.HealthOfRequest) (*apiv1.HealthOfResponse, error) {
	res, err := r.admin.HealthOf(r.t.Context(), connect.NewRequest(req))
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}

// TestHealthOfAsksWhoChecks checks that at every member muxes and the backend's own host respond,
// for its endpoints only.
func TestHealthOfAsksWhoChecks(t *testing.T) {
	ms := newMembers(t, 2, nil)
	first := ms.rigs[0]
	s := web(1, 2)
	s.Endpoints[0].Health.From = lb.FromBoth
	other := web(1)
	other.Name, other.VIPs[0] = "other", other.VIPs[0].Next() // the nodes do not check it
	first.apply(network(), muxNode(1), hostNode(1), hostNode(2))
	for i, name := range []string{"mux1", "host1", "host2"} {
		role := lb.RoleHost
		if i == 0 {
			role = lb.RoleMux
		}
		n := ms.rigs[i%2].join(name, string(role))
		rev := first.apply(s, other).Revision
		n.until("the services", func(p plan.Plan) bool { return p.Revision >= rev })
	}
	for _, r := range ms.rigs {
		got, err := healthOf(r, &apiv1.HealthOfRequest{Dip: "10.20.1.11"})
		if err != nil || len(got.Backends) != 2 || got.Truncated {
			t.Fatalf("at %s: %v %v", r.name, got, err)
		}
		if b := got.Backends[0]; b.Service != "other" || b.Vip != "203.0.113.11" || len(b.Nodes) != 0 {
			t.Errorf("at %s: %v", r.name, b)
		}
		b, text := got.Backends[1], ""
		for _, n := range b.Nodes {
			text += fmt.Sprintf("%s %s %s %s; ", n.Role, n.Node, n.Verdict, n.Words)
		}
		want := fmt.Sprintf("mux mux1 healthy member %d of 203.0.113.10:80; host host1 healthy member %[1]d of 203.0.113.10:80; ", b.Member)
		if text != want || b.Service != "web" || b.DipPort != 8080 || b.Protocol != "tcp" || b.Port != 80 {
			t.Errorf("at %s: %v: %s, want %s", r.name, b, text, want)
		}
		if got, err = healthOf(r, &apiv1.HealthOfRequest{Dip: "10.20.2.11", Port: 8080, Service: "web"}); err != nil || len(got.Backends) != 1 || len(got.Backends[0].Nodes) != 2 {
			t.Errorf("at %s: %v %v", r.name, got, err)
		}
	}
}

func TestHealthOfRefuses(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), web(1))
	for name, c := range map[string]struct {
		req  *apiv1.HealthOfRequest
		code connect.Code
	}{
		"no address":      {&apiv1.HealthOfRequest{Dip: "web1"}, connect.CodeInvalidArgument},
		"too high a port": {&apiv1.HealthOfRequest{Dip: "10.20.1.11", Port: 65536}, connect.CodeInvalidArgument},
		"another address": {&apiv1.HealthOfRequest{Dip: "10.20.1.12"}, connect.CodeNotFound},
		"another port":    {&apiv1.HealthOfRequest{Dip: "10.20.1.11", Port: 81}, connect.CodeNotFound},
		"another service": {&apiv1.HealthOfRequest{Dip: "10.20.1.11", Service: "api"}, connect.CodeNotFound},
	} {
		if _, err := healthOf(r, c.req); connect.CodeOf(err) != c.code {
			t.Errorf("%s: %v, want %v", name, err, c.code)
		}
	}
	// Without a connected node the response has the stored data.
	if got, err := healthOf(r, &apiv1.HealthOfRequest{Dip: "10.20.1.11"}); err != nil || len(got.Backends) != 1 || len(got.Backends[0].Nodes) != 0 {
		t.Errorf("without nodes: %v %v", got, err)
	}
}

// TestOthersAnswerAMuxAtAFollower checks that the leader, which receives all reports, responds to a
// mux whose stream ends at another member, and that every member learns that the mux considers
// itself isolated.
func TestOthersAnswerAMuxAtAFollower(t *testing.T) {
	ms := newMembers(t, 2, nil)
	first, second := ms.rigs[0], ms.rigs[1]
	first.apply(network(), muxNode(1), muxNode(2), hostNode(1), hostNode(2), web(1, 2))
	say := func(r *rig, name string, suspect bool, alive ...bool) *rawStream {
		t.Helper()
		s := r.raw(name, "mux")
		up := receive(t, s)
		st := &apiv1.NodeStatus{Suspect: suspect}
		for i, a := range alive {
			st.Members = append(st.Members, &apiv1.MemberStatus{Vip: "203.0.113.10", Protocol: "tcp", Port: 80, Member: uint32(i + 1), Alive: a})
		}
		if err := s.Send(&apiv1.NodeReport{SyncedRevision: up.Revision, Epoch: up.Epoch, Status: st}); err != nil {
			t.Fatal(err)
		}
		return s
	}
	say(first, "mux1", false, true, false)
	s := say(second, "mux2", true, false, false)
	for _, r := range ms.rigs {
		r.status("mux1", func(st *apiv1.NodeStatus) bool { return len(st.Members) == 2 })
		r.status("mux2", func(st *apiv1.NodeStatus) bool { return len(st.Members) == 2 && st.Suspect })
	}
	if err := s.Send(&apiv1.NodeReport{AskHealth: true}); err != nil {
		t.Fatal(err)
	}
	for {
		others := receive(t, s).GetOthers()
		if others == nil {
			continue
		}
		e := others.GetEndpoints()
		if !others.GetFull() || len(e) != 1 || fmt.Sprint(e[0].GetAlive(), e[0].GetDead()) != "[1] [2]" {
			t.Errorf("others say %v", others)
		}
		return
	}
}
