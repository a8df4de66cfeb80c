package manager

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// reports are what nodes said last, in memory only: a manager that starts learns it within a second.
type reports struct {
	mu     sync.Mutex
	status map[string]*apiv1.NodeStatus // never modified once stored
	// waiting are the traces without an answer, by question id.
	waiting map[uint64]chan *apiv1.TraceResult
	asked   uint64
}

func newReports() *reports {
	return &reports{status: map[string]*apiv1.NodeStatus{}, waiting: map[uint64]chan *apiv1.TraceResult{}}
}

func (r *reports) connected(id identity, hello *apiv1.Hello, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status[id.name] = &apiv1.NodeStatus{
		Name: id.name, Role: id.role, Connected: true, Version: hello.GetVersion(),
		LastSeen: timestamppb.New(now), SyncedRevision: hello.GetHaveRevision(),
	}
}

// report keeps the newest status; what the node says of name, role and connection does not count.
func (r *reports) report(name string, in *apiv1.NodeReport, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.status[name]
	next := in.GetStatus()
	if next == nil {
		next = proto.CloneOf(old)
	}
	next.Name, next.Role, next.Version, next.Connected = old.GetName(), old.GetRole(), old.GetVersion(), true
	next.SyncedRevision = in.GetSyncedRevision()
	next.LastSeen = timestamppb.New(now)
	r.status[name] = next
}

func (r *reports) disconnected(name string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := proto.CloneOf(r.status[name])
	next.Connected, next.LastSeen = false, timestamppb.New(now)
	r.status[name] = next
}

// Status implements the API. Nodes with a Node object that never connected are in it.
func (a api) Status(_ context.Context, req *connect.Request[apiv1.StatusRequest]) (*connect.Response[apiv1.StatusResponse], error) {
	out := &apiv1.StatusResponse{Epoch: a.m.epoch}
	var objs []*apiv1.Object
	out.Revision, objs = a.m.view.objects(lb.KindNode, req.Msg.GetNode())
	out.Nodes = a.m.reports.all(req.Msg.GetNode(), objs)
	if len(out.Nodes) == 0 && req.Msg.GetNode() != "" {
		return nil, fault(notFound{ref{lb.KindNode, req.Msg.GetNode()}})
	}
	return connect.NewResponse(out), nil
}

// all returns the statuses ordered by name, for one node or all. A node that was deleted and is gone has none.
func (r *reports) all(name string, objs []*apiv1.Object) []*apiv1.NodeStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*apiv1.NodeStatus
	present := map[string]bool{}
	for _, o := range objs {
		n := o.GetNode()
		present[n.GetName()] = true
		st := r.status[n.GetName()]
		if st == nil {
			st = &apiv1.NodeStatus{Name: n.GetName(), Role: n.GetRole()}
		}
		out = append(out, st)
	}
	for n, st := range r.status {
		if !present[n] && st.GetConnected() && (name == "" || n == name) {
			out = append(out, st)
		}
	}
	slices.SortFunc(out, func(a, b *apiv1.NodeStatus) int { return cmp.Compare(a.Name, b.Name) })
	return out
}
