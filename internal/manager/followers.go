package manager

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// followers holds the members that relay to this one while it leads.
type followers struct {
	mu     sync.Mutex
	byName map[string]*follower
}

func newFollowers() *followers { return &followers{byName: map[string]*follower{}} }

// follower is the relay stream of a member that does not lead. Its nodes count as this member's
// own.
type follower struct {
	m    *Manager
	name string
	ctx  context.Context
	end  context.CancelCauseFunc

	// nodes has the newest stream of each node at the follower. It belongs to the receiving
	// goroutine.
	nodes map[string]*session

	mu sync.Mutex
	// revision is the revision that all its nodes have applied, except those in behind; 0 if that
	// is unknown.
	revision int64
	behind   map[string]bool
	// questions and verdicts, by host, wait to be sent.
	questions []*apiv1.RelayDown
	verdicts  map[string]*apiv1.NodeSaid
	// stored holds the changes that the leader has stored since the last message; nil if they were
	// too many.
	stored []*apiv1.StoredChange
	// told reports that the pending verdicts complete all known ones and that the follower was not
	// yet sent AllSaid.
	told bool
	wake chan struct{} // room for one
}

// errRelayedAfresh ends a relay that another one of the same member replaces.
var errRelayedAfresh = errors.New("the manager opened another relay")

// add makes the follower its member's only one.
func (fs *followers) add(f *follower) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if old := fs.byName[f.name]; old != nil {
		old.end(errRelayedAfresh)
	}
	fs.byName[f.name] = f
}

// tellHealth queues a host's verdicts for the muxes of all followers, except the follower with the
// host's stream, whose muxes have them.
func (fs *followers) tellHealth(s *session, h *apiv1.HealthReport) {
	if s.role != lb.RoleHost || h == nil {
		return
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, f := range fs.byName {
		if f != s.via {
			f.tellHealth(s.name, s.opened, h)
		}
	}
}

// remove removes the follower, and reports whether it still was its member's.
func (fs *followers) remove(f *follower) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.byName[f.name] != f {
		return false
	}
	delete(fs.byName, f.name)
	return true
}

// Relay implements the member protocol. It lasts as long as the term.
func (a memberAPI) Relay(ctx context.Context, stream *connect.BidiStream[apiv1.RelayUp, apiv1.RelayDown]) error {
	m := a.m
	first, err := stream.Receive()
	if err != nil {
		return err
	}
	if id := identityOf(ctx); first.GetManager() == "" || first.GetManager() != id.name {
		return denied("%s may not relay as manager %q", id.who(), first.GetManager())
	}
	t, err := m.lead(ctx)
	if err != nil {
		return connect.NewError(connect.CodeUnavailable, err)
	}
	ctx, unbind := t.bind(ctx)
	defer unbind()
	f := &follower{m: m, name: first.GetManager(), nodes: map[string]*session{}, behind: map[string]bool{}, verdicts: map[string]*apiv1.NodeSaid{}, wake: make(chan struct{}, 1)}
	f.ctx, f.end = context.WithCancelCause(ctx)
	m.followers.add(f)
	f.tellAll()
	m.o.Log.Info("manager relays", "manager", f.name)
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		f.listen(stream)
	}()
	err = f.speak(stream)
	f.end(err)
	// Receive ends with the handler only. Later messages are ignored, because f.ctx is over.
	go func() {
		<-heard
		f.goodbye(t)
	}()
	return err
}

// goodbye disconnects the follower's nodes. If the term is over, it also drops their reports,
// because only a leader keeps them.
func (f *follower) goodbye(t *term) {
	if f.m.followers.remove(f) {
		f.m.hosts.hear(&apiv1.HostProgress{Manager: f.name, Gone: true})
	}
	cause := context.Cause(f.ctx)
	for _, node := range slices.Sorted(maps.Keys(f.nodes)) {
		f.left(f.nodes[node], fmt.Errorf("its manager %s is away: %w", f.name, cause), t.ctx.Err() == nil)
	}
	f.m.o.Log.Info("manager relays no more", "manager", f.name, "cause", cause)
}

// left handles the end of a node's stream.
func (f *follower) left(s *session, cause error, leads bool) {
	s.end(cause)
	if !leads {
		f.m.reports.drop(s)
	}
	f.m.disconnected(s, cause)
}

// forgetDeleted removes the health reports of a host whose Node object was deleted.
func (m *Manager) forgetDeleted(s *session) {
	if _, present := m.view.roleOf(s.name); present || s.role != lb.RoleHost {
		return
	}
	m.forgetHealth(s)
}

// listen processes the follower's messages until the stream ends.
func (f *follower) listen(stream *connect.BidiStream[apiv1.RelayUp, apiv1.RelayDown]) {
	for {
		up, err := stream.Receive()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("the manager closed its relay")
			}
			f.end(err)
			return
		}
		if f.ctx.Err() != nil {
			continue
		}
		f.hear(up)
	}
}

// hear processes one message.
func (f *follower) hear(up *apiv1.RelayUp) {
	if said := up.GetSaid(); said != nil {
		f.said(said)
	}
	if left := up.GetLeft(); left != nil {
		if s := f.nodes[left.GetNode()]; s != nil && s.stream == left.GetStream() {
			delete(f.nodes, s.name)
			f.left(s, errors.New("the node left manager "+f.name), true)
			f.m.forgetDeleted(s)
			f.retell(s.name)
		}
	}
	for _, e := range up.GetAudit() {
		f.m.audited(e)
	}
	if p := up.GetProgress(); p != nil {
		f.progress(p)
	}
	if p := up.GetHosts(); p != nil && p.GetManager() == f.name {
		f.m.hosts.hear(p)
	}
	if l := up.GetLoad(); l != nil {
		f.m.relayedLoad(l, f.name)
	}
}

// said processes a report of a node at the follower.
func (f *follower) said(in *apiv1.NodeSaid) {
	s := f.nodes[in.GetNode()]
	if hello := in.GetReport().GetHello(); hello != nil {
		old := s
		s = f.open(in, hello)
		f.adopt(s)
		if old != nil {
			f.left(old, errReplaced, true)
		}
	}
	if s == nil || s.stream != in.GetStream() {
		return // of a stream that is over
	}
	// Another stream was newer, and may have ended since.
	if s.number != 0 || f.adopt(s) {
		f.m.hear(s, in.GetReport())
	}
}

// open begins a node's stream.
func (f *follower) open(in *apiv1.NodeSaid, hello *apiv1.Hello) *session {
	s := newSession(f.ctx, identity{name: in.GetNode(), role: in.GetRole()})
	s.manager, s.via, s.stream, s.opened, s.hello = f.name, f, in.GetStream(), hello.GetOpened(), hello
	f.nodes[s.name] = s
	return s
}

// adopt makes the stream its node's newest, unless the node has opened another one since.
func (f *follower) adopt(s *session) bool {
	f.mu.Lock()
	f.behind[s.name] = true // until the follower reports otherwise
	f.mu.Unlock()
	if !f.m.sessions.adopt(s) {
		return false
	}
	f.m.connected(s, s.hello)
	f.m.o.Log.Debug("node is connected", "node", s.name, "role", s.role, "manager", f.name)
	return true
}

// progress records the progress of the follower's nodes.
func (f *follower) progress(p *apiv1.RelayProgress) {
	behind := make(map[string]bool, len(p.GetBehind()))
	for _, node := range p.GetBehind() {
		behind[node] = true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.revision, f.behind = p.GetRevision(), behind
}

// settled returns a revision that the node is known to have applied because no later change
// concerned it; 0 if unknown.
func (f *follower) settled(node string) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.behind[node] {
		return 0
	}
	return f.revision
}

// maxRelayed bounds the pending requests to the nodes of a follower that does not read.
const maxRelayed = 4096
