package manager_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/store"
)

// TestNodesOfFollowersCount: the leader has the status of, queries and waits for nodes whose
// streams end at other members like its own, and every member reports the same status of them.
func TestNodesOfFollowersCount(t *testing.T) {
	ms := newMembers(t, 3, nil)
	ms.rigs[0].apply(network(), hostNode(1), hostNode(2))
	for i, r := range ms.rigs {
		r.apply(muxNode(i + 1))
		r.join(fmt.Sprintf("mux%d", i+1), "mux")
	}
	rev := ms.rigs[1].apply(web(1)).Revision
	last := ms.rigs[2].apply(hostNode(3)).Revision // this concerns no mux
	if last <= rev {
		t.Fatal("revisions must rise")
	}
	for _, r := range ms.rigs {
		for i := range ms.rigs {
			name := fmt.Sprintf("mux%d", i+1)
			st := r.status(name, func(st *apiv1.NodeStatus) bool { return st.SyncedRevision >= last && len(st.Routes) == 1 })
			if !st.Connected || st.Manager != ms.rigs[i].name || st.Version != "test" || st.Role != "mux" {
				t.Errorf("%s as told by %s: %v", name, r.name, st)
			}
		}
		trace, err := r.admin.Trace(t.Context(), connect.NewRequest(&apiv1.TraceRequest{Client: "198.51.100.11", ClientPort: 1, Vip: "203.0.113.10", Port: 80, Protocol: "tcp"}))
		if err != nil || len(trace.Msg.Results) != 3 {
			t.Fatalf("trace at %s: %v %v", r.name, trace, err)
		}
		for i, res := range trace.Msg.Results {
			if res.Error != "" || res.Verdict != "forwarded" || res.Node != fmt.Sprintf("mux%d", i+1) {
				t.Errorf("trace at %s: %v", r.name, res)
			}
		}
		flows, err := r.admin.Flows(t.Context(), connect.NewRequest(&apiv1.FlowsRequest{Vip: "203.0.113.10", Node: "mux3"}))
		if err != nil || len(flows.Msg.Results) != 1 || len(flows.Msg.Results[0].Flows) != 1 {
			t.Errorf("flows at %s: %v %v", r.name, flows, err)
		}
	}
}

// TestNewLeaderKnowsWhatWasSaid: nodes report once. Each later leader has the reports, although the
// nodes do not repeat them and their streams do not move.
func TestNewLeaderKnowsWhatWasSaid(t *testing.T) {
	ms := newMembers(t, 3, nil)
	ms.leader(1).apply(network(), hostNode(1), web(1))
	for i, r := range ms.rigs {
		name := fmt.Sprintf("mux%d", i+1)
		r.apply(muxNode(i + 1))
		s := r.raw(name, "mux")
		up := receive(t, s)
		report := &apiv1.NodeReport{SyncedRevision: up.Revision, Epoch: up.Epoch, Status: &apiv1.NodeStatus{Members: []*apiv1.MemberStatus{
			{Vip: "203.0.113.10", Protocol: "tcp", Port: 80, Member: 1, LastCheck: "said by " + name},
		}}}
		if err := s.Send(report); err != nil {
			t.Fatal(err)
		}
	}
	for epoch := int64(1); epoch < 5; epoch++ {
		leader := ms.leader(epoch)
		for i := range ms.rigs {
			name := fmt.Sprintf("mux%d", i+1)
			leader.status(name, func(st *apiv1.NodeStatus) bool {
				return st.Connected && len(st.Members) == 1 && st.Members[0].LastCheck == "said by "+name && st.Manager == ms.rigs[i].name
			})
		}
		ms.lapse()
	}
}

// openedAt opens a stream with the given opening time in its hello.
func (r *rig) openedAt(name string, opened int64) *rawStream {
	r.t.Helper()
	s := r.rawHello(&apiv1.Hello{Name: name, Role: "mux", Opened: opened})
	receive(r.t, s)
	return s
}

// TestNodesMove: a node opens a stream at another member while the old one still exists. It is
// connected there and stays so when the old one ends, no matter which member leads and in which
// order a new leader learns of the two.
func TestNodesMove(t *testing.T) {
	ms := newMembers(t, 3, nil)
	ms.leader(1).apply(network(), muxNode(1))
	opened, epoch := int64(0), int64(1)
	var streams []*rawStream
	for round := range 6 {
		opened++
		at := ms.rigs[round%3]
		streams = append(streams, at.openedAt("mux1", opened))
		here := func(st *apiv1.NodeStatus) bool { return st.Connected && st.Manager == at.name }
		ms.leader(epoch).status("mux1", here)
		if round%2 == 1 {
			ms.lapse()
			epoch++
			ms.leader(epoch).status("mux1", here)
		}
		if round >= 2 {
			streams[round-2].CloseRequest()
			streams[round-1].CloseRequest()
		}
		for range 20 {
			if st := ms.leader(epoch).status("mux1", func(st *apiv1.NodeStatus) bool { return st.Manager != "" }); !here(st) {
				t.Fatalf("round %d: mux1 is %v: must be connected at %s", round, st, at.name)
			}
		}
	}
	for _, s := range streams {
		s.CloseRequest()
	}
	ms.leader(epoch).status("mux1", func(st *apiv1.NodeStatus) bool { return !st.Connected })
}

// TestNodesOfAMemberThatDies are disconnected until they connect to another one.
func TestNodesOfAMemberThatDies(t *testing.T) {
	ms := newMembers(t, 3, nil)
	leader := ms.leader(1)
	leader.apply(network(), muxNode(1))
	follower := ms.follower()
	s := follower.raw("mux1", "mux")
	receive(t, s)
	leader.status("mux1", func(st *apiv1.NodeStatus) bool { return st.Connected && st.Manager == follower.name })
	follower.stop()
	leader.status("mux1", func(st *apiv1.NodeStatus) bool { return !st.Connected })
	s = leader.raw("mux1", "mux")
	receive(t, s)
	leader.status("mux1", func(st *apiv1.NodeStatus) bool { return st.Connected && st.Manager == leader.name })
}

// TestMuxesHearAfterHostsOfOtherMembers: a host at one member delays updates of a mux at another
// one until it has applied a change. The clock is frozen, so that nothing else ends the wait.
func TestMuxesHearAfterHostsOfOtherMembers(t *testing.T) {
	frozen := clock.NewFake(time.Now())
	ms := newMembersAt(t, 3, frozen, nil)
	ms.rigs[0].apply(network(), hostNode(1), hostNode(2), muxNode(1), web(1))
	host := ms.rigs[1].raw("host2", "host")
	obey(t, host, receive(t, host).Revision)
	mux := ms.rigs[2].raw("mux1", "mux")
	receive(t, mux)
	change := func(weight, port uint16) *lb.Service {
		s := web(1, 2)
		for i := range s.Endpoints[0].Backends {
			s.Endpoints[0].Backends[i].Weight = weight
		}
		s.Endpoints[0].Backends[1].Port = port
		return s
	}
	// In the first rounds the members may not be connected to each other yet.
	held := 0
	for round := uint16(1); held < 20; round++ {
		if round > 500 {
			t.Fatalf("after %d rounds the mux was held %d times in a row", round, held)
		}
		first := ms.rigs[0].apply(change(2*round, 8000+round)).Revision
		for up := receive(t, host); up.Revision < first; up = receive(t, host) {
		}
		// this does not concern the host
		second := ms.rigs[0].apply(change(2*round+1, 8000+round)).Revision
		obey(t, host, first)
		updates := 1
		for up := receive(t, mux); up.Revision < second; up = receive(t, mux) {
			updates++
		}
		if held++; updates > 1 {
			held = 0
		}
	}
}

// TestMembersCatchUpWithNodes: a member that is behind others sends no updates to a node with a
// newer revision before it has caught up.
func TestMembersCatchUpWithNodes(t *testing.T) {
	gates := map[string]*gated{}
	ms := newMembers(t, 2, wrapGated(gates))
	leader := ms.leader(1)
	leader.apply(network(), hostNode(1), hostNode(2), muxNode(1), web(1))
	slow := ms.follower()
	thaw := gates[slow.name].freeze()
	// The leader reports later changes than the one that the member's store does not deliver, so
	// that it cannot use them.
	if _, err := leader.store.Txn(t.Context(), store.Txn{Ops: []store.Op{store.Put("/shunt/other", nil)}}); err != nil {
		t.Fatal(err)
	}
	newest := leader.apply(web(1, 2)).Revision
	s := slow.rawHello(&apiv1.Hello{Name: "mux1", Role: "mux", HaveRevision: newest, Epoch: 1})
	thaw()
	if up := receive(t, s); up.Revision < newest {
		t.Errorf("revision %d for a node that has %d", up.Revision, newest)
	}
}

// TestFollowersKnowWhatIsStored: the nodes of a member whose store is frozen still receive the
// changes that a majority has stored.
func TestFollowersKnowWhatIsStored(t *testing.T) {
	gates := map[string]*gated{}
	ms := newMembers(t, 2, wrapGated(gates))
	leader := ms.leader(1)
	slow := ms.follower()
	mux := slow.raw("mux1", "mux")
	heard := func(revision int64) {
		t.Helper()
		for up := receive(t, mux); up.Revision < revision; up = receive(t, mux) {
		}
	}
	heard(leader.apply(network(), hostNode(1), hostNode(2), muxNode(1), web(1)).Revision)
	// the follower relays
	leader.status("mux1", func(st *apiv1.NodeStatus) bool { return st.Connected })
	defer gates[slow.name].freeze()()
	heard(leader.apply(web(1, 2)).Revision)
	heard(leader.apply(web(2)).Revision)
}

// TestNodeAsksForTheWholePlan: the update that a manager sends after a plan that the node refused
// is a change of that plan. The node does not apply it to its own plan, although the manager has
// reached the epoch of that plan meanwhile.
func TestNodeAsksForTheWholePlan(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), muxNode(1), web(1))
	r.stop()
	r.start()
	mux := r.join("mux1", "mux")
	mux.until("its plan", func(p plan.Plan) bool { return len(p.Endpoints) == 1 && p.Epoch == 2 })
	r.stop()
	lost := store.NewMemory()
	r.store = lost
	r.start()
	r.apply(muxNode(1))
	r.status("mux1", func(st *apiv1.NodeStatus) bool {
		return strings.Contains(st.Error, "plan of epoch 1: must be at least 2")
	})
	ms := &members{t: t, store: lost, rigs: []*rig{r}}
	for epoch := int64(2); epoch <= 3; epoch++ {
		ms.lapse()
		ms.leader(epoch)
	}
	mux.until("the whole plan", func(p plan.Plan) bool { return p.Epoch == 3 && len(p.Endpoints) == 0 })
}

// TestRefusalsOfFollowersAreAudited: refusals by a follower's HTTP handler are in the leader's log.
func TestRefusalsOfFollowersAreAudited(t *testing.T) {
	ms := newMembers(t, 2, nil)
	r := ms.follower()
	viewer := shuntv1connect.NewManagerClient(r.httpClient(r.as(r.ca(), "eve", "viewer")), "https://"+r.addr)
	if _, err := viewer.Delete(t.Context(), connect.NewRequest(&apiv1.DeleteRequest{})); connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Fatalf("delete for a viewer: %v", err)
	}
	for tries := 0; ; tries++ {
		res, err := r.admin.Audit(t.Context(), connect.NewRequest(&apiv1.AuditRequest{Refused: true}))
		if err != nil {
			t.Fatal(err)
		}
		if es := res.Msg.Entries; len(es) == 1 && es[0].Who == "eve" && es[0].Call == "Delete" && es[0].Count == 1 {
			return
		}
		if tries == maxTries {
			t.Fatalf("audit log is still %v", res.Msg)
		}
		<-time.After(100 * time.Microsecond)
	}
}

// TestVerdictsReachMuxesOfAllMembers: the verdicts of a host at one member, and their reasons,
// reach the muxes of every member: connected ones, one that connects later, and those of a member
// that was cut off at that time.
func TestVerdictsReachMuxesOfAllMembers(t *testing.T) {
	ms := newMembers(t, 3, nil)
	ms.leader(1).apply(network(), hostNode(1), muxNode(1), muxNode(2), muxNode(3), several(1, 3))
	says := func(s *rawStream, full bool, e *apiv1.EndpointHealth) {
		t.Helper()
		e.Vip, e.Protocol, e.Port = "203.0.113.10", "tcp", 80
		if err := s.Send(&apiv1.NodeReport{Health: &apiv1.HealthReport{Full: full, Endpoints: []*apiv1.EndpointHealth{e}}}); err != nil {
			t.Fatal(err)
		}
	}
	because := func(text string, id uint32) []*apiv1.HealthWords {
		return []*apiv1.HealthWords{{Words: text, Members: []uint32{id}}}
	}
	// known reads a mux's stream until it has these verdicts, and the reason of the dead member.
	known := func(mux *rawStream, alive, dead, words string) {
		t.Helper()
		verdict, said := map[uint32]string{}, map[uint32]string{}
		why := func() string {
			if verdict[1] == "dead" {
				return said[1]
			}
			return said[2]
		}
		for verdict[1] != alive || verdict[2] != dead || why() != words {
			h := receive(t, mux).GetHealth()
			if h.GetFull() {
				clear(verdict)
				clear(said)
			}
			for _, e := range h.GetEndpoints() {
				for word, ids := range map[string][]uint32{"alive": e.Alive, "dead": e.Dead, "unknown": e.Unknown} {
					for _, id := range ids {
						verdict[id] = word
						delete(said, id)
					}
				}
				for _, w := range e.GetWords() {
					for _, id := range w.GetMembers() {
						said[id] = w.GetWords()
					}
				}
			}
		}
	}
	host := ms.rigs[1].rawHello(&apiv1.Hello{Name: "host1", Role: "host", Opened: 1})
	receive(t, host)
	muxes := []*rawStream{ms.rigs[0].raw("mux1", "mux"), ms.rigs[1].raw("mux2", "mux")}
	says(host, true, &apiv1.EndpointHealth{Alive: []uint32{1}, Dead: []uint32{2}, Words: because("connection refused", 2)})
	for _, mux := range append(muxes, ms.rigs[2].raw("mux3", "mux")) {
		known(mux, "alive", "dead", "connection refused")
	}
	ms.lapse()
	ms.leader(2)
	says(host, false, &apiv1.EndpointHealth{Alive: []uint32{2}, Dead: []uint32{1}, Words: because("status 503", 1)})
	for _, mux := range muxes {
		known(mux, "dead", "alive", "status 503")
	}
	// The host moves. Its reports at the previous member no longer count.
	moved := ms.rigs[2].rawHello(&apiv1.Hello{Name: "host1", Role: "host", Opened: 2})
	receive(t, moved)
	says(moved, true, &apiv1.EndpointHealth{Alive: []uint32{1}, Dead: []uint32{2}, Words: because("gone", 2)})
	for _, mux := range muxes {
		known(mux, "alive", "dead", "gone")
	}
}

// TestVerdictsOfSilentHostsAreTakenBack: the verdicts of a host without a stream at any member are
// withdrawn. Muxes of all members receive the withdrawal, and a mux that connects later receives no
// verdict.
func TestVerdictsOfSilentHostsAreTakenBack(t *testing.T) {
	ms := newMembers(t, 2, nil)
	ms.leader(1).apply(network(), hostNode(1), muxNode(1), muxNode(2), muxNode(3), several(1, 2))
	host := ms.rigs[1].rawHello(&apiv1.Hello{Name: "host1", Role: "host", Opened: 1})
	receive(t, host)
	muxes := []*rawStream{ms.rigs[0].raw("mux1", "mux"), ms.rigs[1].raw("mux2", "mux")}
	e := &apiv1.EndpointHealth{Vip: "203.0.113.10", Protocol: "tcp", Port: 80, Alive: []uint32{1}}
	if err := host.Send(&apiv1.NodeReport{Health: &apiv1.HealthReport{Full: true, Endpoints: []*apiv1.EndpointHealth{e}}}); err != nil {
		t.Fatal(err)
	}
	until := func(mux *rawStream, fits func(*apiv1.EndpointHealth) bool) {
		t.Helper()
		for {
			if h := receive(t, mux).GetHealth(); len(h.GetEndpoints()) == 1 && fits(h.GetEndpoints()[0]) {
				return
			}
		}
	}
	for _, mux := range muxes {
		until(mux, func(e *apiv1.EndpointHealth) bool { return len(e.Alive) == 1 })
	}
	host.CloseRequest()
	for _, mux := range muxes {
		until(mux, func(e *apiv1.EndpointHealth) bool { return len(e.Unknown) == 1 })
	}
	late := ms.rigs[0].raw("mux3", "mux")
	for {
		if h := receive(t, late).GetHealth(); h != nil {
			if !h.GetFull() || len(h.GetEndpoints()) > 0 {
				t.Errorf("a mux that comes later hears %v, want full verdicts with nothing in them", h)
			}
			return
		}
	}
}
