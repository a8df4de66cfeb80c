package manager

import (
	"maps"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/notify"
)

// hostsFirst is how long muxes wait for hosts to apply a change, because a mux that is ahead of a
// host sends it packets for which it has no binding yet: the first SYN would be lost, and the
// client would retry after a second. Hosts apply changes within a few milliseconds. One that does
// not delays muxes once, and is not waited for afterwards.
const hostsFirst = 50 * time.Millisecond

// obeyed stores the revision that a node reported as applied.
func (ss *sessions) obeyed(s *session, revision int64) {
	s.mu.Lock()
	if revision > s.obeyed && !s.behind.IsZero() && !s.late {
		// the node makes progress, although under constant changes it never has everything
		s.behind = ss.clock.Now()
	}
	s.obeyed = revision
	maps.DeleteFunc(s.owed, func(_ string, since int64) bool { return since <= revision })
	if s.late && s.settledLocked() {
		s.late = ss.clock.Now().Sub(s.behind) > hostsFirst
	}
	s.mu.Unlock()
	ss.reviewAfter(s, true)
}

// review updates behind. It is called after anything that may have changed for a session.
func (ss *sessions) review(s *session) { ss.reviewAfter(s, false) }

// reviewAfter implements review. obeyed: the node reported an applied revision.
func (ss *sessions) reviewAfter(s *session, obeyed bool) {
	notify.Send(ss.news)
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
			ss.stirLocked() // it may still be behind with another endpoint
		}
	} else if ss.behind[s] {
		delete(ss.behind, s)
		ss.stirLocked()
	}
}

// stirLocked wakes the streams that wait for hosts.
func (ss *sessions) stirLocked() {
	close(ss.stirred)
	ss.stirred = make(chan struct{})
}

// settledLocked reports whether the node has applied all updates for it.
func (s *session) settledLocked() bool { return !s.moved && !s.telling && s.obeyed >= s.told }

// waiting holds the channels that end the waiting of a mux. They are nil while nothing is held.
type waiting struct {
	stirred, moved <-chan struct{}
	// due fires at until, when the first fold has waited for hostsFirst.
	due   <-chan time.Time
	until time.Time
}

// hold returns the changes that a mux must not receive yet: those that concern endpoints which
// connected hosts, here or at other members, have not fully applied, for at most hostsFirst after
// their updates were due. Other changes wait neither for them nor for hosts that they do not
// concern. The view must be locked, so that all sessions have been notified of the newest change.
func (m *Manager) hold(mux *session, w *waiting) []fold {
	mux.mu.Lock()
	folds := mux.folds
	mux.mu.Unlock()
	if len(folds) == 0 {
		*w = waiting{}
		return nil
	}
	now := m.o.Clock.Now()
	behind, stirred := m.sessions.hostsBehind()
	others, moved := m.hosts.waitedFor()
	blocked, overdue := make([]bool, len(folds)), make([]bool, len(folds))
	var until time.Time
	wait := func(i int, from time.Time) (over bool) {
		blocked[i] = true
		if end := from.Add(hostsFirst); end.After(now) {
			if until.IsZero() || end.Before(until) {
				until = end
			}
			return false
		}
		overdue[i] = true
		return true
	}
	for i := range folds {
		f := &folds[i]
		if f.at.IsZero() {
			f.at = now
		}
		for s, owes := range behind {
			if f.about(owes) {
				if wait(i, s.waitsFrom(f.at)) {
					m.sessions.leave(s)
				}
			}
		}
		for _, o := range others {
			if o.blocks(f) {
				// The other manager delays repair items too, and its report arrives later.
				if wait(i, f.at.Add(repairPace)) {
					m.hosts.giveUp(f.hosts, m.view.hostRev)
				}
			}
		}
	}
	_, held := split(folds, blocked, overdue)
	if len(held) == 0 {
		*w = waiting{}
		return nil
	}
	if until.IsZero() {
		until = held[0].at.Add(hostsFirst)
	}
	if w.due == nil || !w.until.Equal(until) {
		w.due, w.until = m.o.Clock.After(until.Sub(now)), until
	}
	w.stirred, w.moved = stirred, moved
	return held
}

// hostsBehind returns the hosts here that are worth waiting for, with the endpoints that they have
// not applied, and the channel that is closed when this may have changed.
func (ss *sessions) hostsBehind() (out map[*session]map[string]bool, stirred <-chan struct{}) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	out = make(map[*session]map[string]bool, len(ss.behind))
	for s := range ss.behind {
		out[s] = map[string]bool{}
		owes, _ := s.owes()
		for _, key := range owes {
			out[s][key] = true
		}
	}
	return out, ss.stirred
}

// leave ends the waiting for a host whose time is over.
func (ss *sessions) leave(s *session) {
	s.mu.Lock()
	s.late = !s.settledLocked()
	s.mu.Unlock()
	ss.review(s)
}

// synced replaces the revision of nodes that have applied all updates for them by the present
// revision, because they report the last one that concerned them.
func (m *Manager) synced(nodes []*apiv1.NodeStatus) {
	m.view.mu.RLock()
	defer m.view.mu.RUnlock()
	for i, st := range nodes {
		if settled := m.reachedLocked(st); st.GetSyncedRevision() != settled {
			nodes[i] = edited(st, func(out *apiv1.NodeStatus) { out.SyncedRevision = settled })
		}
	}
}

// reachedLocked returns the revision that a node has reached: the present one if it has applied all
// updates for it, else the one that it reports.
func (m *Manager) reachedLocked(st *apiv1.NodeStatus) int64 {
	s := m.sessions.get(st.GetName())
	switch {
	case s == nil || !st.GetConnected():
	case s.via != nil:
		// the other member reports it a little later
		return max(st.GetSyncedRevision(), s.via.settled(s.name))
	case s.settled():
		return m.view.planRev
	}
	return st.GetSyncedRevision()
}

// reachedRevisions returns the revisions that the connected nodes have reached, and the newest
// revision.
func (m *Manager) reachedRevisions() (of map[string]int64, newest int64) {
	nodes := m.reports.connectedNodes()
	m.view.mu.RLock()
	defer m.view.mu.RUnlock()
	of = make(map[string]int64, len(nodes))
	for _, st := range nodes {
		of[st.GetName()] = m.reachedLocked(st)
	}
	return of, m.view.planRev
}

func (s *session) settled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.settledLocked()
}

// edited returns a copy of a status with changes. Lists are shared.
func edited(st *apiv1.NodeStatus, edit func(*apiv1.NodeStatus)) *apiv1.NodeStatus {
	out := &apiv1.NodeStatus{}
	st.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		out.ProtoReflect().Set(f, v)
		return true
	})
	edit(out)
	return out
}
