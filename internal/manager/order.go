package manager

import (
	"context"
	"maps"
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
	maps.DeleteFunc(s.owed, func(_ string, since int64) bool { return since <= revision })
	if s.late && s.settledLocked() {
		s.late = ss.clock.Now().Sub(s.behind) > hostsFirst
	}
	s.mu.Unlock()
	ss.reviewAfter(s, true)
}

// review keeps behind up to date; it is called after whatever may have changed for a session.
func (ss *sessions) review(s *session) { ss.reviewAfter(s, false) }

// reviewAfter is review; obeyed: the node told what it obeys.
func (ss *sessions) reviewAfter(s *session, obeyed bool) {
	signal(ss.news)
	if s.role != lb.RoleHost {
		return
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.reviewLocked(s, obeyed)
}

func (ss *sessions) reviewLocked(s *session, obeyed bool) {
	if s.role != lb.RoleHost || ss.byNode[s.name] != s {
		return
	}
	s.mu.Lock()
	settled := s.settledLocked()
	if settled {
		s.behind = time.Time{}
		clear(s.owed)
	} else if s.behind.IsZero() {
		s.behind = ss.clock.Now()
	}
	wait := !settled && !s.late
	s.mu.Unlock()
	if wait {
		ss.behind[s] = true
		if obeyed {
			ss.stirLocked() // it may still be behind with something else
		}
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

// awaitHosts returns when the connected hosts, here and at other members, obey what there is for them of the endpoints that
// a mux is to hear of, after hostsFirst, or when ctx ends. Other hosts are not waited for: what they are behind with does not concern the mux.
func (m *Manager) awaitHosts(ctx context.Context, mux *session) {
	var deadline <-chan time.Time
	for {
		waiting, revision, stirred := m.hostsBehind(mux)
		others, moved := m.hosts.holdUp(mux, revision)
		if len(waiting)+len(others) == 0 {
			return
		}
		if deadline == nil {
			deadline = m.o.Clock.After(hostsFirst)
		}
		select {
		case <-stirred:
		case <-moved:
		case <-ctx.Done():
			return
		case <-deadline:
			for _, s := range waiting {
				s.mu.Lock()
				s.late = !s.settledLocked()
				s.mu.Unlock()
				m.sessions.review(s)
			}
			m.hosts.giveUp(revision)
			return
		}
	}
}

// hostsBehind are the hosts here worth waiting for, with the view's revision and the channel that closes when this may have
// changed. The view's lock makes sure that all sessions were told of the newest change.
func (m *Manager) hostsBehind(mux *session) (out []*session, revision int64, stirred <-chan struct{}) {
	m.view.mu.RLock()
	defer m.view.mu.RUnlock()
	ss := m.sessions
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for s := range ss.behind {
		if mux.hears(s.owes()) {
			out = append(out, s)
		}
	}
	return out, m.view.planRev, ss.stirred
}

// synced puts, for nodes that obey all that there is for them, the present revision in the place of the one that last
// concerned them, which is what they report.
func (m *Manager) synced(nodes []*apiv1.NodeStatus) {
	m.view.mu.RLock()
	defer m.view.mu.RUnlock()
	for i, st := range nodes {
		s := m.sessions.get(st.GetName())
		if s == nil || !st.GetConnected() {
			continue
		}
		settled := st.GetSyncedRevision()
		if s.via != nil {
			settled = max(settled, s.via.settled(s.name)) // which tells of it a little later
		} else if s.settled() {
			settled = m.view.planRev
		}
		if st.GetSyncedRevision() != settled {
			nodes[i] = edited(st, func(out *apiv1.NodeStatus) { out.SyncedRevision = settled })
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
