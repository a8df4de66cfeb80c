package manager_test

import (
	"errors"
	"net/http"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/store"
)

type rawStream = connect.BidiStreamForClient[apiv1.NodeReport, apiv1.PlanUpdate]

// raw opens a node's stream without an agent, with the smallest window.
func (r *rig) raw(name, role string) *rawStream {
	r.t.Helper()
	return r.rawHello(&apiv1.Hello{Name: name, Role: role})
}

// rawAt opens one of a node that has applied an epoch and a revision.
func (r *rig) rawAt(name, role string, epoch, revision int64) *rawStream {
	r.t.Helper()
	return r.rawHello(&apiv1.Hello{Name: name, Role: role, Epoch: epoch, HaveRevision: revision})
}

func (r *rig) rawHello(hello *apiv1.Hello) *rawStream {
	r.t.Helper()
	tr := &http.Transport{
		TLSClientConfig: r.as(r.ca(), hello.Name, hello.Role), ForceAttemptHTTP2: true,
		HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10, MaxReceiveBufferPerConnection: 64 << 10},
	}
	r.t.Cleanup(tr.CloseIdleConnections)
	s := shuntv1connect.NewNodeProtocolClient(&http.Client{Transport: tr}, "https://"+r.addr).Sync(r.t.Context())
	if err := s.Send(&apiv1.NodeReport{Hello: hello, Epoch: hello.Epoch}); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { s.CloseRequest() })
	return s
}

func receive(t *testing.T, s *rawStream) *apiv1.PlanUpdate {
	t.Helper()
	up, err := s.Receive()
	if err != nil {
		t.Fatal(err)
	}
	return up
}

// receiveItems skips updates that change nothing, such as those of an epoch that begins because the
// store was slow.
func receiveItems(t *testing.T, s *rawStream) *apiv1.PlanUpdate {
	t.Helper()
	for {
		if up := receive(t, s); len(up.Upsert)+len(up.Delete) > 0 {
			return up
		}
	}
}

func keys(up *apiv1.PlanUpdate) string {
	var out []string
	for _, item := range up.Upsert {
		out = append(out, item.Key)
	}
	for _, key := range up.Delete {
		out = append(out, "-"+key)
	}
	return strings.Join(out, " ")
}

func TestStreamIsSnapshotThenChanges(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), hostNode(2), muxNode(1), web(1))
	s := r.raw("mux1", "mux")
	up := receive(t, s)
	if want := "endpoint/0/203.0.113.10/tcp/80 key/1 node service/web"; !up.Snapshot || keys(up) != want {
		t.Fatalf("snapshot: %v, want %s", up, want)
	}
	for _, step := range []struct {
		do   func() int64
		want string
	}{
		{func() int64 { return r.apply(web(1, 2)).Revision }, "endpoint/0/203.0.113.10/tcp/80"},
		{func() int64 {
			r.apply(hostNode(3)) // does not concern the mux
			s := web(1, 2)
			s.Sources = &lb.Sources{Allow: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}}
			return r.apply(s).Revision
		}, "service/web"},
		{func() int64 { return r.apply(web(1, 2)).Revision }, "service/web"},
		{func() int64 { n := muxNode(1); n.Drain = true; return r.apply(n).Revision }, "node"},
		{func() int64 { n := network(); n.MTU = 9000; return r.apply(n).Revision }, "node"},
		{func() int64 {
			s := web(1, 2)
			s.Endpoints[0].Port = 81
			return r.apply(s).Revision
		}, "endpoint/0/203.0.113.10/tcp/81 -endpoint/0/203.0.113.10/tcp/80"},
		{func() int64 {
			s := web(1, 2)
			s.Endpoints[0].Port = 81
			s.Sources = &lb.Sources{Deny: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}
			return r.apply(s).Revision
		}, "service/web"},
		{func() int64 { n := network(); n.MTU, n.Encap = 9000, lb.EncapGUE; return r.apply(n).Revision }, "endpoint/0/203.0.113.10/tcp/81"},
		{func() int64 { r.delete("Service", "web"); return 0 }, "-endpoint/0/203.0.113.10/tcp/81 -service/web"},
	} {
		rev := step.do()
		up := receive(t, s)
		if up.Snapshot || keys(up) != step.want || up.Epoch != 1 || rev != 0 && up.Revision != rev {
			t.Fatalf("change: %v, want %q at revision %d", up, step.want, rev)
		}
	}
}

func TestHostsHearOnlyOfThemselves(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), hostNode(2), web(1))
	s := r.raw("host2", "host")
	if up := receive(t, s); keys(up) != "node" {
		t.Fatalf("snapshot: %v", up)
	}
	r.apply(web(1, 2))
	if up := receive(t, s); keys(up) != "binding/0/10.20.2.11/203.0.113.10/tcp/80/1" {
		t.Fatalf("change: %v", up)
	}
	// The host's address moves to another node, and its bindings with it.
	moved := hostNode(2)
	moved.Addresses = []netip.Addr{netip.MustParseAddr("10.20.7.1")}
	res, err := r.tryApply(moved)
	if err != nil {
		t.Logf("a backend's host without a node is refused: %v", violations(t, err))
		return
	}
	if up := receive(t, s); keys(up) != "node -binding/0/10.20.2.11/203.0.113.10/tcp/80/1" || up.Revision != res.Revision {
		t.Fatalf("change: %v", up)
	}
}

// TestSlowNodeHoldsUpNobody fills the stream of a node that does not read. Others stay fast, and
// when the slow one reads again it reaches the newest state without receiving every step.
func TestSlowNodeHoldsUpNobody(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), hostNode(2), muxNode(1), muxNode(2))
	slow, fast := r.raw("mux1", "mux"), r.raw("mux2", "mux")
	receive(t, slow)
	receive(t, fast)
	const steps = 30
	var last int64
	for i := range steps {
		s := bulky(i)
		last = r.apply(s).Revision
		for up := receive(t, fast); up.Revision < last; up = receive(t, fast) {
		}
	}
	updates, weight := 0, uint32(0)
	for {
		up := receive(t, slow)
		updates++
		if len(up.Upsert) > 0 {
			weight = up.Upsert[0].GetEndpoint().Members[0].Weight
		}
		if up.Revision == last {
			break
		}
	}
	if weight != steps {
		t.Errorf("the slow node ended at weight %d, want %d", weight, steps)
	}
	if updates >= steps {
		t.Errorf("the slow node heard %d updates of %d: must be fewer", updates, steps)
	}
}

// bulky is a service of 100 endpoints with 20 backends: more than a stream's window holds.
func bulky(step int) *lb.Service {
	s := web(1)
	s.Endpoints = nil
	for port := range 100 {
		ep := lb.Endpoint{Protocol: lb.TCP, Port: uint16(1000 + port)}
		for i := range 20 {
			b := backend(1)
			b.DIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 20, 1, byte(20 + i)})}
			b.Weight = uint16(step + 1)
			ep.Backends = append(ep.Backends, b)
		}
		s.Endpoints = append(s.Endpoints, ep)
	}
	lb.SetDefaults(s)
	return s
}

func TestNewStreamReplacesTheOld(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), muxNode(1))
	old := r.raw("mux1", "mux")
	receive(t, old)
	fresh := r.raw("mux1", "mux")
	receive(t, fresh)
	for {
		if _, err := old.Receive(); err != nil {
			if connect.CodeOf(err) != connect.CodeAborted {
				t.Errorf("the old stream ended with %v", err)
			}
			break
		}
	}
	n := muxNode(1)
	n.Drain = true
	r.apply(n)
	receive(t, fresh)
	r.status("mux1", func(st *apiv1.NodeStatus) bool { return st.Connected })
}

func TestBadHello(t *testing.T) {
	r := newRig(t, store.NewMemory())
	for name, c := range map[string]struct {
		report *apiv1.NodeReport
		want   connect.Code
	}{
		"none":         {&apiv1.NodeReport{}, connect.CodeInvalidArgument},
		"another name": {&apiv1.NodeReport{Hello: &apiv1.Hello{Name: "mux2", Role: "mux"}}, connect.CodePermissionDenied},
		"another role": {&apiv1.NodeReport{Hello: &apiv1.Hello{Name: "mux1", Role: "host"}}, connect.CodePermissionDenied},
	} {
		s := shuntv1connect.NewNodeProtocolClient(r.httpClient(r.as(r.ca(), "mux1", "mux")), "https://"+r.addr).Sync(t.Context())
		s.Send(c.report)
		if _, err := s.Receive(); connect.CodeOf(err) != c.want {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		s.CloseRequest()
	}
}

func TestTraceOfSilentMux(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), muxNode(1), web(1))
	s := r.raw("mux1", "mux")
	receive(t, s)
	answer := make(chan *apiv1.TraceResult, 1)
	go func() {
		res, err := r.admin.Trace(t.Context(), connect.NewRequest(&apiv1.TraceRequest{
			Client: "198.51.100.11", ClientPort: 1, Vip: "203.0.113.10", Port: 80, Protocol: "tcp", Node: "mux1",
		}))
		if err != nil {
			answer <- &apiv1.TraceResult{Error: err.Error()}
			return
		}
		answer <- res.Msg.Results[0]
	}()
	q := receive(t, s).Trace
	// Answers without a request are ignored.
	for _, id := range []uint64{q.Id + 1, 0} {
		s.Send(&apiv1.NodeReport{Trace: &apiv1.TraceReply{Id: id, Result: &apiv1.TraceResult{Verdict: "wrong"}}})
	}
	s.Send(&apiv1.NodeReport{Trace: &apiv1.TraceReply{Id: q.Id}})
	s.CloseRequest()
	if got := <-answer; got.Error == "" || got.Node != "mux1" {
		t.Errorf("answer %v: must be an error", got)
	}
}

func TestHandlersErrorIsReported(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), hostNode(2), muxNode(1))
	mux := r.join("mux1", "mux")
	mux.until("the first plan", func(p plan.Plan) bool { return p.Node.Name != "" })
	good := r.status("mux1", func(st *apiv1.NodeStatus) bool { return st.SyncedRevision > 0 && st.Error == "" }).SyncedRevision
	mux.fail(errors.New("ring does not fit"))
	r.apply(web(1))
	st := r.status("mux1", func(st *apiv1.NodeStatus) bool { return st.Error != "" })
	if st.Error != "ring does not fit" || st.SyncedRevision != good {
		t.Fatalf("status %v: must have the error and synced revision %d", st, good)
	}
	mux.fail(nil)
	rev := r.apply(web(1, 2)).Revision
	r.status("mux1", func(st *apiv1.NodeStatus) bool { return st.Error == "" && st.SyncedRevision == rev })
}

// TestFailedPlanIsTriedAgain: a node retries a plan that failed temporarily, although no further
// change arrives.
func TestFailedPlanIsTriedAgain(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), hostNode(2), muxNode(1))
	mux := r.join("mux1", "mux")
	mux.until("the first plan", func(p plan.Plan) bool { return p.Node.Name != "" })
	mux.fail(errors.New("device is busy"))
	rev := r.apply(web(1)).Revision
	r.status("mux1", func(st *apiv1.NodeStatus) bool { return st.Error != "" && st.SyncedRevision < rev })
	mux.fail(nil)
	r.status("mux1", func(st *apiv1.NodeStatus) bool { return st.Error == "" && st.SyncedRevision == rev })
}

func (n *node) fail(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refuse = err
}

func TestNodeStartsFromItsLastPlan(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), hostNode(2), muxNode(1), web(1))
	mux := r.join("mux1", "mux")
	want := mux.until("its plan", func(p plan.Plan) bool { return len(p.Endpoints) == 1 })
	mux.stop()
	r.stop()
	mux.run(r.addr, "mux1", "mux")
	got := mux.until("a plan without a manager", func(plan.Plan) bool { return true })
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("restored %+v, want %+v", got, want)
	}
	r.start()
	rev := r.apply(web(2)).Revision
	p := mux.until("the manager's plan", func(p plan.Plan) bool { return p.Revision == rev })
	if p.Epoch != 2 {
		t.Errorf("epoch %d after the restart, want 2", p.Epoch)
	}
}

// TestOlderEpochIsRefused lets a node apply epoch 2 and then connects it to a manager that lost its
// state except for the CA, so that its epoch is 1 again.
func TestOlderEpochIsRefused(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), muxNode(1), web(1))
	r.stop()
	r.start()
	mux := r.join("mux1", "mux")
	mux.until("its plan", func(p plan.Plan) bool { return len(p.Endpoints) == 1 && p.Epoch == 2 })
	r.stop()
	r.store = store.NewMemory()
	r.start()
	r.apply(muxNode(1))
	r.status("mux1", func(st *apiv1.NodeStatus) bool {
		return strings.Contains(st.Error, "plan of epoch 1: must be at least 2")
	})
	mux.stop()
	for len(mux.plans) > 0 {
		if p := <-mux.plans; p.Epoch != 2 {
			t.Errorf("the node obeyed %+v", p)
		}
	}
	// The same epoch is not enough, because the revision is older.
	for range 2 {
		r.stop()
		r.start()
	}
	mux.run(r.addr, "mux1", "mux")
	mux.until("a plan of an epoch that is new enough", func(p plan.Plan) bool { return p.Epoch == 3 && len(p.Endpoints) == 0 })
}
