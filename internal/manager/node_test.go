package manager_test

import (
	"errors"
	"testing"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/store"
)

func asConnect(err error, out **connect.Error) bool { return errors.As(err, out) }

func TestPlanReachesNodes(t *testing.T) {
	r := newRig(t, store.NewMemory())
	mux, host := r.join("mux1", "mux"), r.join("host1", "host")
	mux.until("the empty plan", func(p plan.Plan) bool { return p.Node.Name == "" })
	r.apply(network(), muxNode(1), hostNode(1), hostNode(2))
	first := r.apply(web(1, 2))
	p := mux.until("the service", func(p plan.Plan) bool { return len(p.Endpoints) == 1 })
	if p.Revision != first.Revision || p.Epoch != 1 || len(p.Endpoints[0].Members) != 2 || len(p.RingKeys) != 1 || p.Node.Name != "mux1" {
		t.Fatalf("mux's plan: %+v", p)
	}
	hp := host.until("the binding", func(p plan.Plan) bool { return len(p.Bindings) == 1 })
	if hp.Bindings[0].DIP.String() != "10.20.1.11" || len(hp.RingKeys) != 0 || len(hp.Endpoints) != 0 {
		t.Fatalf("host's plan: %+v", hp)
	}
	r.apply(web(2))
	p = mux.until("the change", func(p plan.Plan) bool { return len(p.Endpoints[0].Members) == 1 })
	if p.Endpoints[0].Generation != 2 {
		t.Fatalf("generation %d, want 2", p.Endpoints[0].Generation)
	}
	host.until("the loss of the binding", func(p plan.Plan) bool { return len(p.Bindings) == 0 })
	r.delete("Service", "web")
	mux.until("the deletion", func(p plan.Plan) bool { return len(p.Endpoints) == 0 })
}

func TestFlows(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), muxNode(1), hostNode(1))
	mux := r.join("mux1", "mux")
	rev := r.apply(web(1)).Revision
	mux.until("the service", func(p plan.Plan) bool { return p.Revision == rev })
	res, err := r.admin.Flows(t.Context(), connect.NewRequest(&apiv1.FlowsRequest{Vip: "203.0.113.10", Port: "80", Limit: 1}))
	if err != nil || len(res.Msg.Results) != 1 {
		t.Fatalf("flows: %v %v", res, err)
	}
	got := res.Msg.Results[0]
	if got.Node != "mux1" || got.Error != "" || !got.Truncated || len(got.Flows) != 1 || got.Flows[0].Port != "80" {
		t.Errorf("flows of mux1: %v", got)
	}
	for name, req := range map[string]*apiv1.FlowsRequest{
		"no address":     {},
		"wrong port":     {Vip: "203.0.113.10", Port: "http"},
		"backward range": {Vip: "203.0.113.10", Port: "9-8"},
		"wrong protocol": {Vip: "203.0.113.10", Protocol: "ftp"},
		"too many":       {Vip: "203.0.113.10", Limit: 1 << 30},
	} {
		if _, err := r.admin.Flows(t.Context(), connect.NewRequest(req)); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("%s: %v, want invalid argument", name, err)
		}
	}
}

func TestStatusAndTrace(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), muxNode(1), hostNode(1))
	mux := r.join("mux1", "mux")
	rev := r.apply(web(1)).Revision
	mux.until("the service", func(p plan.Plan) bool { return p.Revision == rev })
	st := r.status("mux1", func(st *apiv1.NodeStatus) bool { return st.SyncedRevision == rev && len(st.Routes) == 1 })
	if !st.Connected || st.Role != "mux" || st.Version != "test" || st.Routes[0].Prefix != "203.0.113.10/32" {
		t.Fatalf("status: %+v", st)
	}
	res, err := r.admin.Trace(t.Context(), connect.NewRequest(&apiv1.TraceRequest{
		Client: "198.51.100.11", ClientPort: 40000, Vip: "203.0.113.10", Port: 80, Protocol: "tcp",
	}))
	if err != nil || len(res.Msg.Results) != 1 || res.Msg.Results[0].Node != "mux1" || res.Msg.Results[0].Verdict != "forwarded" {
		t.Fatalf("trace: %v %v", res, err)
	}
}

// TestNodeThatWasSeenBeforeIsAway: a manager that starts, or leads after another one, has no report
// of a disconnected node, but the journal has its last stream. A node that never had a stream is
// not listed as disconnected.
func TestNodeThatWasSeenBeforeIsAway(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), muxNode(1), hostNode(1))
	mux := r.join("mux1", "mux")
	r.status("mux1", func(st *apiv1.NodeStatus) bool { return st.GetConnected() })
	r.eventUntil("NodeConnected", "mux1")
	mux.stop()
	r.eventUntil("NodeDisconnected", "mux1")
	r.stop()
	r.start()
	if st := r.status("mux1", func(*apiv1.NodeStatus) bool { return true }); st.GetConnected() || st.GetLastSeen() == nil {
		t.Errorf("the mux that was there before: %v", st)
	}
	if st := r.status("host1", func(*apiv1.NodeStatus) bool { return true }); st.GetConnected() || st.GetLastSeen() != nil {
		t.Errorf("the host that never was: %v", st)
	}
	for _, n := range r.m.Status().GetNodes() {
		if seen := n.GetLastSeen() != nil; seen != (n.GetName() == "mux1") {
			t.Errorf("of %s the metrics have: seen %v", n.GetName(), seen)
		}
	}
	r.delete("Node", "mux1")
	r.apply(muxNode(1))
	r.status("mux1", func(st *apiv1.NodeStatus) bool { return st.GetLastSeen() == nil })
}

// status polls until the node's status fits.
func (r *rig) status(node string, fits func(*apiv1.NodeStatus) bool) *apiv1.NodeStatus {
	r.t.Helper()
	for tries := 0; ; tries++ {
		res, err := r.admin.Status(r.t.Context(), connect.NewRequest(&apiv1.StatusRequest{Node: node}))
		if err != nil {
			r.t.Fatal(err)
		}
		if len(res.Msg.Nodes) == 1 && fits(res.Msg.Nodes[0]) {
			return res.Msg.Nodes[0]
		}
		if tries == maxTries {
			r.t.Fatalf("status of %s is still %v", node, res.Msg)
		}
		<-time.After(100 * time.Microsecond)
	}
}

// maxTries bounds polling, with a pause of at least 0.1 ms between two polls. The total is longer
// than any backoff of an agent.
const maxTries = 100_000
