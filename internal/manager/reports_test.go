package manager

import (
	"testing"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// TestReportsOfOldStreamsDoNotCount: the last report of a stream may be read after the stream
// ended, or after the node opened another one.
func TestReportsOfOldStreamsDoNotCount(t *testing.T) {
	r, now := newReports(), time.Now()
	old, fresh := &session{name: "mux1", role: lb.RoleMux, number: 1}, &session{name: "mux1", role: lb.RoleMux, number: 2}
	is := func(what string, connected bool, revision int64) {
		t.Helper()
		if st := r.heard["mux1"].status; st.Connected != connected || st.SyncedRevision != revision {
			t.Errorf("%s: connected %v, revision %d: must be %v, %d", what, st.Connected, st.SyncedRevision, connected, revision)
		}
	}
	r.connected(fresh, &apiv1.Hello{HaveRevision: 20}, now)
	r.connected(old, &apiv1.Hello{HaveRevision: 10}, now)
	is("the old stream said hello late", true, 20)
	r.acked(old, 11, now)
	r.report(old, &apiv1.NodeStatus{SyncedRevision: 12}, now)
	is("the old stream reported late", true, 20)
	r.disconnected(old, now)
	is("the old stream ended", true, 20)
	r.acked(fresh, 21, now)
	r.report(fresh, &apiv1.NodeStatus{SyncedRevision: 22}, now)
	is("the new stream reported", true, 21)
	r.disconnected(fresh, now)
	r.acked(fresh, 23, now)
	r.report(fresh, &apiv1.NodeStatus{SyncedRevision: 24}, now)
	is("the new stream reported after its end", false, 21)
}

// TestOnlyTheAskedNodeAnswers: request ids are easy to guess.
func TestOnlyTheAskedNodeAnswers(t *testing.T) {
	r := newReports()
	id, answer := r.expect("mux1")
	r.answer("mux2", &apiv1.NodeReport{Trace: &apiv1.TraceReply{Id: id, Result: &apiv1.TraceResult{Verdict: "forged"}}})
	r.answer("mux1", &apiv1.NodeReport{Trace: &apiv1.TraceReply{Id: id, Result: &apiv1.TraceResult{Verdict: "forwarded"}}})
	if got := (<-answer).GetTrace().GetResult(); got.GetVerdict() != "forwarded" {
		t.Errorf("%v: must be mux1's answer", got)
	}
}
