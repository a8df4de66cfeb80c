package manager_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/store"
)

// TestRevisionsOfANodeNeverGoBack deletes a key as the last change, which leaves no trace in the
// remaining keys. A member that starts afterwards next to the leader, in the same epoch, makes
// plans of the previous revision. A node that comes to it with the later revision receives no
// earlier one, applies its next plan and is shown as synced.
func TestRevisionsOfANodeNeverGoBack(t *testing.T) {
	ms := newMembers(t, 2, nil)
	leader, follower := ms.leader(1), ms.follower()
	leader.apply(network(), hostNode(1), muxNode(1), web(1))
	res, err := ms.store.Txn(t.Context(), store.Txn{Ops: []store.Op{store.Put("/shunt/other", nil)}})
	if err != nil {
		t.Fatal(err)
	}
	follower.stop()
	follower.start()
	s := follower.raw("mux1", "mux")
	before := receive(t, s).Revision
	if before >= res.Revision {
		t.Fatalf("plans are of revision %d, want one before %d", before, res.Revision)
	}
	s.CloseRequest()
	s = follower.rawHello(&apiv1.Hello{Name: "mux1", Role: "mux", Epoch: 1, HaveRevision: res.Revision, Opened: 1})
	if up := receive(t, s); up.Revision != res.Revision || !up.Snapshot {
		t.Errorf("a node of revision %d heard of %d", res.Revision, up.Revision)
	}
	s.CloseRequest()
	// The leader may receive the follower's report of these streams after this one, which is newer
	// because it was opened later.
	n := leader.rawHello(&apiv1.Hello{Name: "mux1", Role: "mux", Epoch: 1, HaveRevision: res.Revision, Opened: 2})
	receive(t, n)
	if err := n.Send(&apiv1.NodeReport{SyncedRevision: res.Revision, Epoch: 1}); err != nil {
		t.Fatal(err)
	}
	leader.status("mux1", func(st *apiv1.NodeStatus) bool { return st.Connected && st.SyncedRevision == before })
	n.CloseRequest()
	mux := leader.joinBy(follower.addr, "mux1", "mux")
	mux.until("its plan", func(p plan.Plan) bool { return len(p.Endpoints) == 1 })
	leader.apply(hostNode(2))
	leader.delete("Service", "web")
	mux.until("the next plan", func(p plan.Plan) bool { return len(p.Endpoints) == 0 && p.Revision > res.Revision })
}

// TestOlderCopyOfTheState resets the state to an older copy within an epoch. A node that had
// applied more keeps its plan until a later epoch begins, even after the state's revisions have
// passed the node's. A node without a plan is served.
func TestOlderCopyOfTheState(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), muxNode(1), muxNode(2), web(1))
	epoch := r.m.Epoch()
	hello := func(have int64) *apiv1.Hello {
		return &apiv1.Hello{Name: "mux1", Role: "mux", Epoch: epoch, HaveRevision: have, Opened: time.Now().UnixNano()}
	}
	s := r.rawHello(hello(1 << 20))
	if up := receive(t, s); !up.GetRewound() || up.GetEpoch() != epoch {
		t.Fatalf("the node hears of revision %d, rewound %v", up.GetRevision(), up.GetRewound())
	}
	s.CloseRequest()
	// The revisions have passed the node's, but the history is still another one.
	s = r.rawHello(hello(1))
	if up := receive(t, s); !up.GetRewound() {
		t.Error("the other history is sent as if it were the next change")
	}
	s.CloseRequest()
	s = r.rawHello(hello(0))
	if up := receive(t, s); up.GetRewound() {
		t.Error("a node without a plan is refused")
	}
	s.CloseRequest()
	warned := func() bool {
		res, err := r.admin.Apply(t.Context(), connect.NewRequest(&apiv1.ApplyRequest{Objects: []*apiv1.Object{convert.ToObject(web(1))}}))
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(res.Msg.GetWarnings(), func(text string) bool { return strings.HasPrefix(text, "the state is an older copy") })
	}
	if !warned() {
		t.Error("apply does not warn that no node applies it")
	}
	r.stop()
	r.start()
	if warned() {
		t.Error("apply warns after a restart")
	}
	s = r.rawHello(hello(1 << 20))
	if up := receive(t, s); up.GetRewound() || up.GetEpoch() <= epoch {
		t.Errorf("after a restart: epoch %d, rewound %v", up.GetEpoch(), up.GetRewound())
	}
	s.CloseRequest()
}
