package manager

import (
	"context"
	"errors"
	"fmt"
	"io"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// Sync implements the node protocol: the node's one stream.
func (n nodeAPI) Sync(ctx context.Context, stream *connect.BidiStream[apiv1.NodeReport, apiv1.PlanUpdate]) error {
	m := n.m
	id := identityOf(ctx)
	first, err := stream.Receive()
	if err != nil {
		return err
	}
	hello := first.GetHello()
	if hello == nil {
		return connect.NewError(connect.CodeInvalidArgument, errors.New("hello: is missing: must be in the first report of a stream"))
	}
	if hello.GetName() != id.name || hello.GetRole() != id.role {
		return connect.NewError(connect.CodePermissionDenied, fmt.Errorf("%s %s may not speak as %s %s", id.role, id.name, hello.GetRole(), hello.GetName()))
	}
	if m.view.revokedCert(id.cert) {
		// The node was away when it was deleted. An empty plan ends its work.
		up := &apiv1.PlanUpdate{Epoch: m.Epoch(), Snapshot: true}
		up.Revision, _ = m.view.objects(lb.KindNode, id.name)
		if err := stream.Send(up); err != nil {
			return err
		}
		return connect.NewError(connect.CodePermissionDenied, errDeleted)
	}
	s := newSession(ctx, id)
	if s.floor, err = m.floor(ctx, hello); err != nil {
		return fault(err)
	}
	if m.rewound(hello) {
		s.rewound = hello.GetEpoch()
	}
	s.manager, s.opened = m.o.Name, hello.GetOpened()
	s.forwards = hello.GetHaveRevision() > 0
	s.takesLoad = s.role == lb.RoleMux && hello.GetTakesLoad()
	m.forgetFormer(first)
	defer s.end(nil)
	defer s.writing.close()
	s.heardAt.Store(m.o.Clock.Now().UnixNano())
	m.sessions.add(s)
	m.view.join(s)
	m.connected(s, hello)
	m.outbox.hello(s, hello)
	m.o.Log.Info("node is connected", "node", id.name, "role", id.role, "version", hello.GetVersion(), "has_revision", hello.GetHaveRevision())
	m.checkEpoch(s, hello.GetEpoch())
	defer n.goodbye(s)
	go n.listen(s, stream)
	err = n.speak(s, stream)
	s.end(err)
	return err
}

// floor returns the lowest revision to send to a node, so that within an epoch the node's revisions
// never decrease, whichever member sends them. A member that is behind the node's revision catches
// up first. floor returns 0 for nodes of another epoch, and for a revision that this store never
// had.
func (m *Manager) floor(ctx context.Context, hello *apiv1.Hello) (int64, error) {
	have := hello.GetHaveRevision()
	if have > m.view.revision() || hello.GetEpoch() > m.Epoch() {
		if err := m.catchUp(ctx); err != nil {
			return 0, err
		}
	}
	if hello.GetEpoch() != m.Epoch() || have > m.view.revision() {
		return 0, nil
	}
	return have, nil
}

// rewound reports whether a node has a plan of an epoch within which the state went back to an
// older copy: one node of the epoch had applied a revision that this state, after catching up,
// never had. From then on, no node of the epoch receives the new history as if it were the next
// change, even if its revisions have passed the node's. A later epoch, which every start of the
// leader begins, ends this state.
func (m *Manager) rewound(hello *apiv1.Hello) bool {
	epoch := m.Epoch()
	if hello.GetHaveRevision() == 0 || hello.GetEpoch() != epoch || epoch == 0 {
		return false
	}
	if have, is := hello.GetHaveRevision(), m.view.revision(); have > is && m.rewoundEpoch.Swap(epoch) != epoch {
		m.o.Log.Error("the state is an older copy: nodes keep their plans until a later epoch", "node", hello.GetName(), "has_revision", have, "state_revision", is, "epoch", epoch,
			"cure", "restart the leading manager to have nodes apply this state, or restore a backup (shunt restore)")
	}
	return m.rewoundEpoch.Load() == epoch
}

// olderCopy returns a warning for changes of a state that nodes do not apply, see rewound. It
// returns nil if there is none.
func (m *Manager) olderCopy() []string {
	if epoch := m.rewoundEpoch.Load(); epoch == 0 || epoch != m.Epoch() {
		return nil
	}
	return []string{"the state is an older copy than nodes have applied: they keep their plans until the leading manager is restarted, or a backup is restored (shunt restore)"}
}

// forgetFormer clears revisions in a report that are from before a restore, because revisions
// restart then.
func (m *Manager) forgetFormer(report *apiv1.NodeReport) {
	restored := m.view.restoredEpoch()
	if h := report.GetHello(); h != nil && h.GetEpoch() < restored {
		h.HaveRevision = 0
	}
	if report.GetEpoch() < restored {
		report.SyncedRevision = 0
	}
}

// connected records the start of a node's stream, here or at a follower.
func (m *Manager) connected(s *session, hello *apiv1.Hello) {
	m.reports.connected(s, hello, m.o.Clock.Now())
	m.objectEvent(lb.KindNode, s.name, reasonNodeConnected, "%s of version %s is connected", s.role, hello.GetVersion())
}

// hear processes a report of a node, received here or at a follower. Slow parts are left to the
// report queue (intake).
func (m *Manager) hear(s *session, report *apiv1.NodeReport) {
	if says, alone := saysSNAT(report); says {
		if m.hearSNAT(s, report); alone {
			return
		}
	}
	if report.GetLoad() != nil {
		m.hearLoad(s, report.GetLoad())
	}
	m.reports.answer(s.name, report)
	m.intake.put(s, report)
	if report.GetAskHealth() {
		m.askedForOthers(s)
	}
	m.checkEpoch(s, report.GetEpoch())
}

// disconnected records the end of a node's stream, here or at a follower, and reports whether it
// was the node's newest.
func (m *Manager) disconnected(s *session, cause error) bool {
	m.reports.disconnected(s, m.o.Clock.Now())
	m.opinions.gone(s, m.o.Clock.Now())
	newest := m.sessions.remove(s)
	if newest && m.ctx.Err() == nil { // else the manager itself stops
		m.objectEvent(lb.KindNode, s.name, reasonNodeDisconnected, "its stream ended: %v", cause)
	}
	return newest
}

func (n nodeAPI) goodbye(s *session) {
	n.m.view.leave(s)
	cause := context.Cause(s.ctx)
	if errors.Is(cause, errDeleted) {
		n.m.forgetHealth(s)
	}
	newest := n.m.disconnected(s, cause)
	n.m.outbox.left(s)
	if newest {
		n.m.o.Log.Info("node is disconnected", "node", s.name, "cause", cause)
	}
}

// listen processes reports until the stream ends. A report that is too large is dropped, and logged
// once per stream. The stream stays open, because the node would reconnect immediately and send the
// same report.
func (n nodeAPI) listen(s *session, stream *connect.BidiStream[apiv1.NodeReport, apiv1.PlanUpdate]) {
	for told := false; ; {
		report, err := stream.Receive()
		if connect.CodeOf(err) == connect.CodeResourceExhausted {
			if !told {
				n.m.tooLarge(s, err)
			}
			told = true
			continue
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("the node closed its stream")
			}
			s.end(err)
			return
		}
		s.heardAt.Store(n.m.o.Clock.Now().UnixNano())
		n.m.forgetFormer(report)
		n.m.hear(s, report)
		n.m.outbox.hear(s, report)
	}
}

// tooLarge records that a node sent a report larger than its role allows.
func (m *Manager) tooLarge(s *session, err error) {
	m.o.Log.Error("a report of the node is too large and left out, and so is every further one", "node", s.name, "role", s.role, "limit_bytes", maxReport(string(s.role)), "error", err)
	m.objectEvent(lb.KindNode, s.name, reasonReportRefused, "its report is larger than the %d bytes that a %s may send", maxReport(string(s.role)), s.role)
}

// speak sends updates until the stream ends. Health reports of hosts are never delayed.
func (n nodeAPI) speak(s *session, stream *connect.BidiStream[apiv1.NodeReport, apiv1.PlanUpdate]) error {
	var w waiting
	var hold func() []fold
	if s.role == lb.RoleMux {
		hold = func() []fold { return n.m.hold(s, &w) }
	}
	renew := n.m.snatRenewals(s)
	var loads *loadTeller
	if s.takesLoad {
		loads = n.m.loads.teller(n.m.o.Clock, nil)
	}
	pace := pacer{clock: n.m.o.Clock}
	for {
		select {
		case <-pace.due:
			pace.due = nil
		case <-renew:
			renew = n.m.snatRenewals(s)
			s.snat.renew = true
		case <-s.wake:
		case <-w.stirred:
		case <-w.moved:
		case <-w.due:
			w.due = nil
		case <-loads.stirs():
			loads.come()
			continue
		case <-loads.dues():
			loads.rise()
		case <-s.ctx.Done():
			cause := context.Cause(s.ctx)
			if errors.Is(cause, errSurplus) {
				return cause
			}
			return connect.NewError(connect.CodeAborted, cause)
		case <-n.m.ctx.Done():
			return connect.NewError(connect.CodeUnavailable, context.Cause(n.m.ctx))
		}
		var ups []*apiv1.PlanUpdate
		var deleted bool
		if pace.delays(s) {
			ups = s.takeQuestions()
		} else {
			ups, deleted = s.updates(n.m.view, hold)
			pace.sent(ups)
		}
		if len(ups) > 0 && ups[0].GetSnapshot() {
			ups[0].Health = n.m.healthFor(s, true)
		} else if s.snapshot {
			if h := n.m.healthFor(s, false); h != nil {
				ups = append(ups, &apiv1.PlanUpdate{Health: h})
			}
		}
		if s.snapshot && !deleted {
			ups = append(ups, n.m.snatUpdates(s)...)
			if up := s.takeSNAT(); up != nil {
				ups = append(ups, up)
			}
			if report := loads.take(); report != nil {
				ups = append(ups, &apiv1.PlanUpdate{Load: report})
			}
		}
		for _, up := range ups {
			err := n.m.within(s, up, func() error {
				return s.writing.do(n.m.o.Clock.Now(), func() error { return stream.Send(up) })
			})
			if err != nil {
				return err
			}
		}
		if deleted {
			s.end(errDeleted)
			return connect.NewError(connect.CodePermissionDenied, errDeleted)
		}
	}
}

// checkEpoch proves this manager's lease when a node has applied a later epoch than its own, and
// ends a term that is over. An epoch that never existed is checked only once, so that reports do
// not wait for the store each time.
func (m *Manager) checkEpoch(s *session, epoch int64) {
	t := m.present()
	if t == nil || epoch <= t.epoch || s.refuted == t && epoch <= s.refutedEpoch {
		return
	}
	if err := t.prove(s.ctx); err != nil {
		return
	}
	if s.refuted == nil {
		m.o.Log.Error("node obeys a later epoch than this manager's and refuses its plans", "node", s.name, "epoch", epoch, "own_epoch", t.epoch)
	}
	s.refuted, s.refutedEpoch = t, epoch
}
