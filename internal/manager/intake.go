package manager

import (
	"sync"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// class says how urgent a part of a report is: whatever is lower goes first, as in Ananta's staged manager. A flood of
// counters then holds up neither verdicts nor the hosts that muxes wait for.
type class int

const (
	// classAck is what a node obeys.
	classAck class = iota
	// classHealth is what a node's own checks came to.
	classHealth
	// classStatus is everything else: members, routes, counters.
	classStatus
	classes
)

// intakeWorkers are few: taking in is short, and more of them would only take the processor from what is urgent. One of
// them is never busy with a status.
const intakeWorkers = 3

// intake is what nodes said and nobody took in yet: for each session one report of each class, so that it takes memory by
// the number of nodes, however much they say.
type intake struct {
	// handle takes in a report of each class. Reports of one class of one session are handled one after another.
	handle [classes]func(*session, *apiv1.NodeReport)

	mu sync.Mutex
	// queues are sessions in the order in which they got something to say.
	queues [classes][]*session
	// statuses are the workers that handle one.
	statuses int
	// work wakes workers.
	work   *sync.Cond
	closed bool
}

// slot is what waits of one class of one session; intake.mu guards it.
type slot struct {
	report *apiv1.NodeReport // nil: nothing
	// busy: the session is in the queue, or a worker has a report of this class.
	busy bool
}

func newIntake(handle [classes]func(*session, *apiv1.NodeReport)) *intake {
	in := &intake{handle: handle}
	in.work = sync.NewCond(&in.mu)
	return in
}

// put takes a report apart. The newest of each class replaces the one that waits; verdicts are merged.
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

// run works until close.
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

// nextLocked takes the most urgent session out of its queue.
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

// doLocked handles what waits in a slot; intake.mu is free meanwhile.
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

// close ends the workers; what waits is dropped.
func (in *intake) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
	in.work.Broadcast()
}

// takeAck, takeHealth and takeStatus are what is done with reports.

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
