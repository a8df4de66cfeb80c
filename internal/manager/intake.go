package manager

import (
	"sync"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// class is the urgency of a part of a report: lower classes are handled first, as in Ananta's
// staged manager. So a flood of counters delays neither verdicts nor the hosts that muxes wait for.
type class int

const (
	// classAck is the revision that a node has applied.
	classAck class = iota
	// classHealth is the results of a node's own checks.
	classHealth
	// classStatus is everything else: members, routes, counters.
	classStatus
	classes
)

// intakeWorkers is small, because handling is short, and more workers would only take the CPU from
// urgent parts. One of them never handles a status.
const intakeWorkers = 3

// intake queues node reports until they are handled: one of each class for each session, so that
// its memory depends only on the number of nodes.
type intake struct {
	// handle handles a report of each class. Reports of one class of one session are handled one
	// after another.
	handle [classes]func(*session, *apiv1.NodeReport)

	mu sync.Mutex
	// queues holds the sessions in the order of their first pending report.
	queues [classes][]*session
	// statuses is the number of workers that handle one.
	statuses int
	// work wakes workers.
	work   *sync.Cond
	closed bool
}

// slot is the pending report of one class of one session. intake.mu guards it.
type slot struct {
	report *apiv1.NodeReport // nil: none
	// busy: the session is in the queue, or a worker has a report of this class.
	busy bool
}

func newIntake(handle [classes]func(*session, *apiv1.NodeReport)) *intake {
	in := &intake{handle: handle}
	in.work = sync.NewCond(&in.mu)
	return in
}

// put splits a report by class. The newest of each class replaces the pending one; verdicts are
// merged.
func (in *intake) put(s *session, r *apiv1.NodeReport) {
	ack := r.GetSyncedRevision() != s.acked || r.GetStatus() == nil && r.GetHealth() == nil
	s.acked = r.GetSyncedRevision()
	in.mu.Lock()
	defer in.mu.Unlock()
	if ack {
		in.putLocked(s, classAck, &apiv1.NodeReport{SyncedRevision: r.GetSyncedRevision()})
	}
	if h := r.GetHealth(); h != nil {
		if old := s.said[classHealth].report.GetHealth(); old != nil {
			h = mergeHealth(old, h)
		}
		in.putLocked(s, classHealth, &apiv1.NodeReport{Health: h})
	}
	if st := r.GetStatus(); st != nil {
		in.putLocked(s, classStatus, &apiv1.NodeReport{Status: st})
	}
}

func (in *intake) putLocked(s *session, c class, r *apiv1.NodeReport) {
	at := &s.said[c]
	at.report = r
	if !at.busy {
		at.busy = true
		in.queues[c] = append(in.queues[c], s)
		in.work.Signal()
	}
}

// run handles reports until close.
func (in *intake) run() {
	in.mu.Lock()
	defer in.mu.Unlock()
	for !in.closed {
		c, s := in.nextLocked()
		if s == nil {
			in.work.Wait()
			continue
		}
		in.doLocked(c, s)
	}
}

// nextLocked removes the most urgent session from its queue.
func (in *intake) nextLocked() (class, *session) {
	for c := range classes {
		if len(in.queues[c]) == 0 || c == classStatus && in.statuses == intakeWorkers-1 {
			continue
		}
		s := in.queues[c][0]
		in.queues[c][0] = nil
		in.queues[c] = in.queues[c][1:]
		return c, s
	}
	return 0, nil
}

// doLocked handles the report in a slot. intake.mu is released meanwhile.
func (in *intake) doLocked(c class, s *session) {
	at := &s.said[c]
	r := at.report
	at.report = nil
	if c == classStatus {
		in.statuses++
	}
	in.mu.Unlock()
	in.handle[c](s, r)
	in.mu.Lock()
	if c == classStatus {
		in.statuses--
		in.work.Signal()
	}
	if at.busy = at.report != nil; at.busy {
		in.queues[c] = append(in.queues[c], s)
		in.work.Signal()
	}
}

// close ends the workers and drops pending reports.
func (in *intake) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
	in.work.Broadcast()
}

// takeAck, takeHealth and takeStatus handle the parts of reports.

func (m *Manager) takeAck(s *session, r *apiv1.NodeReport) {
	m.reports.acked(s, r.GetSyncedRevision(), m.o.Clock.Now())
	m.sessions.obeyed(s, r.GetSyncedRevision())
	m.outbox.ack(s, r.GetSyncedRevision())
}

func (m *Manager) takeHealth(s *session, r *apiv1.NodeReport) {
	h := r.GetHealth()
	if s.via == nil {
		h = m.view.ownHealth(s, h)
	}
	m.hearHealth(s, h)
}

func (m *Manager) takeStatus(s *session, r *apiv1.NodeReport) {
	now := m.o.Clock.Now()
	m.planEvent(s.name, r.GetStatus())
	m.suspicionEvent(s.name, r.GetStatus())
	m.sessionEvents(s.name, r.GetStatus())
	m.withheldEvents(s.name, r.GetStatus())
	m.hungerEvent(s.name, r.GetStatus())
	m.crowdEvent(s.name, r.GetStatus())
	m.mtuEvent(s.name, m.reports.statusOf(s.name), r.GetStatus())
	m.pathEvents(s.name, m.reports.statusOf(s.name), r.GetStatus())
	m.speakerEvents(s.name, m.reports.statusOf(s.name), r.GetStatus())
	m.reports.report(s, r.GetStatus(), now)
	m.opinions.report(s, r.GetStatus().GetMembers(), now)
	m.outbox.report(s, r.GetStatus())
}
