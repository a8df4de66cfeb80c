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
	"github.com/shuntlb/shunt/internal/load"
	"github.com/shuntlb/shunt/internal/notify"
)

// reports holds the last reports of nodes, in memory only. A manager that starts receives them
// within a second.
type reports struct {
	mu    sync.Mutex
	heard map[string]heard
	// muxNames holds the names in heard of nodes that connected as muxes, so that scans of the
	// muxes skip the hosts.
	muxNames map[string]bool
	// waiting holds the unanswered requests, by id.
	waiting map[uint64]question
	asked   uint64
	// stirred has room for one: a mux connected or disconnected.
	stirred chan struct{}
}

// heard is the last report of a node's newest stream.
type heard struct {
	stream uint64            // session.number
	status *apiv1.NodeStatus // never modified once stored
	// at is status.LastSeen by a monotonic clock.
	at time.Time
	// reported: the node sent the status after it had applied its present revision, and had no
	// pending updates if it disconnected.
	reported bool
}

func newReports() *reports {
	return &reports{heard: map[string]heard{}, muxNames: map[string]bool{}, waiting: map[uint64]question{}, stirred: make(chan struct{}, 1)}
}

// connected makes the stream the current one, unless the node has a newer one already.
func (r *reports) connected(s *session, hello *apiv1.Hello, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.heard[s.name].stream > s.number {
		return
	}
	r.heard[s.name] = heard{s.number, &apiv1.NodeStatus{
		Name: s.name, Role: string(s.role), Connected: true, Version: hello.GetVersion(),
		LastSeen: timestamppb.New(now), SyncedRevision: hello.GetHaveRevision(), Manager: s.manager,
	}, now, false}
	if s.role == lb.RoleMux {
		r.muxNames[s.name] = true
	} else {
		delete(r.muxNames, s.name)
	}
	r.stir(s.role)
}

// eachMuxLocked calls f for each connected mux with its status.
func (r *reports) eachMuxLocked(f func(name string, st *apiv1.NodeStatus)) {
	for name := range r.muxNames {
		if st := r.heard[name].status; st.GetConnected() {
			f(name, st)
		}
	}
}

// liveLocked returns the status that the stream may change; nil if it ended or was replaced.
func (r *reports) liveLocked(s *session) *apiv1.NodeStatus {
	if h := r.heard[s.name]; h.stream == s.number && h.status.GetConnected() {
		return h.status
	}
	return nil
}

// acked stores the newest revision that the node has applied.
func (r *reports) acked(s *session, revision int64, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.liveLocked(s)
	if old == nil {
		return
	}
	r.heard[s.name] = heard{s.number, edited(old, func(next *apiv1.NodeStatus) {
		next.SyncedRevision, next.LastSeen = revision, timestamppb.New(now)
	}), now, r.heard[s.name].reported && old.GetSyncedRevision() == revision}
}

// report stores the newest status. Its name, role, connection and revision are replaced by the
// manager's own.
func (r *reports) report(s *session, next *apiv1.NodeStatus, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.liveLocked(s)
	if old == nil {
		return
	}
	next.Name, next.Role, next.Version, next.Connected = old.GetName(), old.GetRole(), old.GetVersion(), true
	next.SyncedRevision, next.Manager = old.GetSyncedRevision(), s.manager
	next.LastSeen = timestamppb.New(now)
	r.heard[s.name] = heard{s.number, next, now, true}
}

func (r *reports) disconnected(s *session, now time.Time) {
	settled := s.settled()
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.liveLocked(s)
	if old == nil {
		return
	}
	next := proto.CloneOf(old)
	next.Connected, next.LastSeen = false, timestamppb.New(now)
	r.heard[s.name] = heard{s.number, next, now, r.heard[s.name].reported && settled}
	r.stir(s.role)
}

// stir wakes the placement.
func (r *reports) stir(role lb.Role) {
	if role != lb.RoleMux {
		return
	}
	notify.Send(r.stirred)
}

// drop removes a node whose stream another member reported, and no longer reports.
func (r *reports) drop(s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.heard[s.name].stream == s.number {
		delete(r.heard, s.name)
		delete(r.muxNames, s.name)
		r.stir(s.role)
	}
}

// noHandshakes returns the last reported reason why a node cannot make TCP handshakes; "" if it
// reported none.
func (r *reports) noHandshakes(node string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.heard[node].status.GetNoHandshakes()
}

// Status returns the status of nodes: on the leader of all, on a follower of those whose streams
// end at it.
func (m *Manager) Status() *apiv1.StatusResponse {
	l := m.view.leadership()
	out := &apiv1.StatusResponse{Epoch: l.epoch, Leader: l.name}
	var objs []*apiv1.Object
	out.Revision, objs = m.view.objects(lb.KindNode, "")
	if l.name != m.o.Name {
		objs = nil
	}
	out.Nodes = m.reports.all("", objs)
	m.seenBefore(out.Nodes)
	if t := m.present(); t != nil {
		out.Leads = m.o.Clock.Now().Sub(t.lastRenewed()) <= leaseTTL
	}
	m.synced(out.Nodes)
	out.SnatVips, out.SnatCounts = m.snatVIPStatus(everyService, nil), m.snatCounts()
	if l.name == m.o.Name {
		out.Keys = m.keyCounts()
	}
	return out
}

// Status implements the API. It includes nodes with a Node object that never connected. For a
// tenant only the status of its own services is built, because thousands of services of others
// would cost much without use.
func (a api) Status(ctx context.Context, req *connect.Request[apiv1.StatusRequest]) (*connect.Response[apiv1.StatusResponse], error) {
	l, own := a.m.view.leadership(), a.m.view.ownOf(identityOf(ctx))
	out := &apiv1.StatusResponse{Epoch: l.epoch, Leader: l.name}
	var objs []*apiv1.Object
	out.Revision, objs = a.m.view.objects(lb.KindNode, req.Msg.GetNode())
	out.Nodes = a.m.reports.all(req.Msg.GetNode(), objs)
	a.m.seenBefore(out.Nodes)
	a.m.synced(out.Nodes)
	switch {
	case own == nil:
		a.m.withVIPs(out.Nodes)
	// for one node the filter decides, because it records a tenant's request for a node that it may
	// not see
	case req.Msg.GetNode() == "":
		out.Nodes = own.nodes(out.Nodes)
	}
	if of := req.Msg.GetMembersOf(); of != "" {
		out.Nodes = membersOnly(out.Nodes, of)
	}
	out.Decisions = a.m.view.decisions(a.m.reports.seen, own)
	out.Placements = a.m.placements(req.Msg.GetService(), own)
	out.Warnings = a.m.view.serviceWarnings(req.Msg.GetService(), own)
	if of := req.Msg.GetSnatOf(); of != "" {
		out.Snat, out.SnatVips, out.SnatCounts = a.m.view.snatStatus(of, own), a.m.snatVIPStatus(of, own), a.m.snatCounts()
	}
	var loaded []load.Key
	out.Load, loaded = a.m.loadStatus(req.Msg.GetLoadOf(), own)
	if req.Msg.GetShares() {
		a.m.askShares(ctx, loaded, out.Load)
	}
	if len(out.Nodes) == 0 && req.Msg.GetNode() != "" {
		return nil, fault(notFound{ref{lb.KindNode, req.Msg.GetNode()}})
	}
	return connect.NewResponse(out), nil
}

// seenBefore sets LastSeen from the journal for nodes without a report at this member: they have
// been disconnected since before it led or started. No other goroutine has their statuses.
func (m *Manager) seenBefore(nodes []*apiv1.NodeStatus) {
	for _, n := range nodes {
		if n.GetLastSeen() != nil {
			continue
		}
		if at := m.view.events.lastSeen(n.GetName()); !at.IsZero() {
			n.LastSeen = timestamppb.New(at)
		}
	}
}

// membersOnly returns nodes with only their members of a service, or of all services with "*".
func membersOnly(nodes []*apiv1.NodeStatus, service string) []*apiv1.NodeStatus {
	out := make([]*apiv1.NodeStatus, 0, len(nodes))
	for _, n := range nodes {
		members := n.GetMembers()
		if service != "*" {
			members = only(members, func(m *apiv1.MemberStatus) bool { return m.GetService() == service })
		}
		out = append(out, &apiv1.NodeStatus{
			Name: n.GetName(), Role: n.GetRole(), Connected: n.GetConnected(), LastSeen: n.GetLastSeen(), SyncedRevision: n.GetSyncedRevision(),
			Suspect: n.GetSuspect(), Members: members,
		})
	}
	return out
}

// connectedNodes returns the newest statuses of the connected nodes, unsorted.
func (r *reports) connectedNodes() (out []*apiv1.NodeStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range r.heard {
		if h.status.GetConnected() {
			out = append(out, h.status)
		}
	}
	return out
}

// all returns the statuses of one node or all, sorted by name. A deleted node that is disconnected
// has none.
func (r *reports) all(name string, objs []*apiv1.Object) []*apiv1.NodeStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*apiv1.NodeStatus
	present := map[string]bool{}
	for _, o := range objs {
		n := o.GetNode()
		present[n.GetName()] = true
		st := r.heard[n.GetName()].status
		if st == nil {
			st = &apiv1.NodeStatus{Name: n.GetName(), Role: n.GetRole()}
		}
		out = append(out, st)
	}
	for n, h := range r.heard {
		if !present[n] && h.status.GetConnected() && (name == "" || n == name) {
			out = append(out, h.status)
		}
	}
	slices.SortFunc(out, func(a, b *apiv1.NodeStatus) int { return cmp.Compare(a.Name, b.Name) })
	return out
}
