package manager

import (
	"maps"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/notify"
)

// hostsFirst is how long muxes wait for hosts to obey a change. A mux that is ahead of a host sends it packets that it
// has no binding for yet: the first SYN would be lost, and its client silent for a second. Hosts obey within a few
// milliseconds; one that does not holds muxes up once and is then left behind.
const hostsFirst = 50 * time.Millisecond

// obeyed takes in what revision a node reported.
func (ss *sessions) obeyed(s *session, revision int64) {
	s.mu.Lock()
	if revision > s.obeyed && !s.behind.IsZero() && !s.late {
		s.behind = ss.clock.Now() // there is always more while changes come without end: it goes on
	}
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

// waiting is what ends the waiting of a mux; its channels are nil while nothing is held.
type waiting struct {
	stirred, moved <-chan struct{}
	// due fires at until, when the first fold has waited for hostsFirst.
	due   <-chan time.Time
	until time.Time
}

// hold tells which changes a mux must not hear of yet: those of which connected hosts, here or at other members, do not obey
// everything, for at most hostsFirst after their updates were due. Other changes do not wait for them, nor for hosts that they do not concern. The view is
// locked: all sessions were told of the newest change.
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

// hostsBehind are the hosts here worth waiting for with the endpoints that they owe, and the channel that closes when this
// may have changed.
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

// leave ends the waiting for a host that had its time.
func (ss *sessions) leave(s *session) {
	s.mu.Lock()
	s.late = !s.settledLocked()
	s.mu.Unlock()
	ss.review(s)
}

// synced puts, for nodes that obey all that there is for them, the present revision in the place of the one that last
// concerned them, which is what they report.
func (m *Manager) synced(nodes []*apiv1.NodeStatus) {
	m.view.mu.RLock()
	defer m.view.mu.RUnlock()
	for i, st := range nodes {
		if settled := m.reachedLocked(st); st.GetSyncedRevision() != settled {
			nodes[i] = edited(st, func(out *apiv1.NodeStatus) { out.SyncedRevision = settled })
		}
	}
}

// reachedLocked is the revision that a node keeps up with: the present one if it obeys all that there is for it, else the
// one that it reports.
func (m *Manager) reachedLocked(st *apiv1.NodeStatus) int64 {
	s := m.sessions.get(st.GetName())
	switch {
	case s == nil || !st.GetConnected():
	case s.via != nil:
		return max(st.GetSyncedRevision(), s.via.settled(s.name)) // which tells of it a little later
	case s.settled():
		return m.view.planRev
	}
	return st.GetSyncedRevision()
}

// reachedRevisions returns the revisions that the connected nodes keep up with, and the newest there is.
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
