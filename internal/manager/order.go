package manager

import (
	"context"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// hostsFirst is how long muxes wait for hosts to obey a change. A mux that is ahead of a host sends it packets that it
// has no binding for yet: the first SYN would be lost, and its client silent for a second. Hosts obey within a few
// milliseconds; one that does not holds muxes up once and is then left behind.
const hostsFirst = 50 * time.Millisecond

// obeyed takes in what revision a node reported.
func (ss *sessions) obeyed(s *session, revision int64) {
	s.mu.Lock()
	s.obeyed = revision
	if s.late && s.settledLocked() {
		s.late = ss.clock.Now().Sub(s.behind) > hostsFirst
	}
	s.mu.Unlock()
	ss.review(s)
}

// review keeps behind up to date; it is called after whatever may have changed for a session.
func (ss *sessions) review(s *session) {
	if s.role != lb.RoleHost {
		return
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.reviewLocked(s)
}

func (ss *sessions) reviewLocked(s *session) {
	if s.role != lb.RoleHost || ss.byNode[s.name] != s {
		return
	}
	s.mu.Lock()
	settled := s.settledLocked()
	if settled {
		s.behind = time.Time{}
	} else if s.behind.IsZero() {
		s.behind = ss.clock.Now()
	}
	wait := !settled && !s.late
	s.mu.Unlock()
	if wait {
		ss.behind[s] = true
	} else if ss.behind[s] {
		delete(ss.behind, s)
		ss.stirLocked()
	}
}

// stirLocked wakes who waits for hosts.
func (ss *sessions) stirLocked() {
	close(ss.stirred)
	ss.stirred = make(chan struct{})
}

// settledLocked: the node obeys all that there is for it.
func (s *session) settledLocked() bool { return !s.moved && !s.telling && s.obeyed >= s.told }

// awaitHosts returns when every connected host obeys what there is for it, after hostsFirst, or when ctx ends.
func (m *Manager) awaitHosts(ctx context.Context) {
	var deadline <-chan time.Time
	for {
		waiting, stirred := m.hostsBehind()
		if len(waiting) == 0 {
			return
		}
		if deadline == nil {
			deadline = m.o.Clock.After(hostsFirst)
		}
		select {
		case <-stirred:
		case <-ctx.Done():
			return
		case <-deadline:
			for _, s := range waiting {
				s.mu.Lock()
				s.late = !s.settledLocked()
				s.mu.Unlock()
				m.sessions.review(s)
			}
			return
		}
	}
}

// hostsBehind are the hosts worth waiting for, with the channel that closes when this may have changed. The view's lock
// makes sure that all sessions were told of the newest change.
func (m *Manager) hostsBehind() ([]*session, <-chan struct{}) {
	m.view.mu.RLock()
	defer m.view.mu.RUnlock()
	ss := m.sessions
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return slices.Collect(maps.Keys(ss.behind)), ss.stirred
}

// synced puts, for nodes that obey all that there is for them, the present revision in the place of the one that last
// concerned them, which is what they report.
func (m *Manager) synced(nodes []*apiv1.NodeStatus) {
	m.view.mu.RLock()
	defer m.view.mu.RUnlock()
	for i, st := range nodes {
		if s := m.sessions.get(st.GetName()); st.GetConnected() && s != nil && st.GetSyncedRevision() < m.view.planRev && s.settled() {
			nodes[i] = edited(st, func(out *apiv1.NodeStatus) { out.SyncedRevision = m.view.planRev })
		}
	}
}

func (s *session) settled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.settledLocked()
}

// edited is a status with changes; lists are shared.
func edited(st *apiv1.NodeStatus, edit func(*apiv1.NodeStatus)) *apiv1.NodeStatus {
	out := &apiv1.NodeStatus{}
	st.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		out.ProtoReflect().Set(f, v)
		return true
	})
	edit(out)
	return out
}
