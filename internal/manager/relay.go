package manager

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/lb"
)

const (
	// progressPace is the minimum time between two progress reports, because each costs a scan of
	// all nodes.
	progressPace = 20 * time.Millisecond
	// maxBehind bounds the nodes in such a report. If more are behind, the leader uses the
	// revisions that the nodes report.
	maxBehind = 256
	// auditTick is the interval of checks for delayed refusals.
	auditTick = time.Second
)

type relayStream = connect.BidiStreamForClient[apiv1.RelayUp, apiv1.RelayDown]

// relayAll relays the reports of this member's nodes to the leader until the member stops.
func (m *Manager) relayAll() {
	for m.ctx.Err() == nil {
		var l leaderKey
		if m.view.until(m.ctx, func() bool { l = m.view.leader; return l.mod != 0 && l.name != m.o.Name }) != nil {
			return
		}
		err := m.relayTo(l)
		if m.ctx.Err() != nil {
			return
		}
		m.o.Log.Debug("relays no more", "leader", l.name, "cause", err)
		select {
		case <-m.o.Clock.After(leaderPause):
		case <-m.ctx.Done():
		}
	}
}

// relayTo relays to one leader until it is replaced or the stream ends.
func (m *Manager) relayTo(l leaderKey) error {
	ctx, cancel := context.WithCancelCause(m.ctx)
	defer cancel(nil)
	go func() {
		if m.view.until(ctx, func() bool { return m.view.leader.mod != l.mod }) == nil {
			cancel(errReplacedLeader)
		}
	}()
	// It uses its own connection, so that forwarded calls do not wait behind statuses.
	transport := m.newTransport()
	defer transport.CloseIdleConnections()
	s := shuntv1connect.NewMemberProtocolClient(&http.Client{Transport: transport}, "https://"+l.address).Relay(ctx)
	// HTTP/2 ignores the context while it waits for the next message. The end of the request wakes
	// it.
	defer context.AfterFunc(ctx, func() { s.CloseRequest() })()
	if err := s.Send(&apiv1.RelayUp{Manager: m.o.Name}); err != nil {
		// Receive returns the cause of a failed send.
		if _, cause := s.Receive(); cause != nil {
			err = cause
		}
		return fmt.Errorf("open relay: %w", err)
	}
	before := m.verdicts.streams()
	m.outbox.link()
	defer m.outbox.unlink()
	defer m.hosts.forgetAll()
	go func() {
		for {
			down, err := s.Receive()
			if err != nil {
				cancel(fmt.Errorf("relay: %w", err))
				return
			}
			m.told(down)
			if down.GetAllSaid() {
				go m.forgetUnsaid(ctx, before)
			}
		}
	}()
	if err := m.relay(ctx, s); err != nil {
		cancel(err) // unless Receive returned the cause
	}
	return context.Cause(ctx)
}

// told handles a message from the leader.
func (m *Manager) told(down *apiv1.RelayDown) {
	if c := down.GetStored(); c != nil {
		m.hearStored(c)
	}
	if p := down.GetHosts(); p != nil {
		m.hosts.hear(p)
	}
	if n := down.GetSnatNewest(); n != nil {
		m.snatKnown.hear(n, m.o.Clock.Now())
	}
	if l := down.GetLoad(); l != nil {
		m.relayedLoad(l, loadsLeader)
	}
	if s := m.sessions.here(down.GetNode()); s != nil && down.GetUpdate() != nil {
		s.ask(down.GetUpdate())
	}
	if said := down.GetSaid(); said != nil {
		s := &session{name: said.GetNode(), role: lb.Role(said.GetRole()), opened: said.GetReport().GetHello().GetOpened()}
		if m.sessions.stamp(s) {
			m.hearHealth(s, said.GetReport().GetHealth())
		}
	}
}

func (v *view) planRevision() int64 {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.planRev
}

// relay sends pending messages, the most important first, until ctx ends.
func (m *Manager) relay(ctx context.Context, s *relayStream) error {
	r := relaying{m: m, behind: true, loads: m.loads.teller(m.o.Clock, func(origin string) bool { return origin != loadsOwn })}
	tick := m.o.Clock.After(auditTick)
	for {
		stirred, advanced := r.look()
		if up := r.next(); up != nil {
			if err := s.Send(up); err != nil {
				for _, e := range up.GetAudit() {
					m.audited(e) // it waits for the next leader
				}
				return fmt.Errorf("relay: %w", err)
			}
			continue
		}
		select {
		case <-stirred:
		case <-m.outbox.wake:
		case <-m.sessions.news:
			r.behind = true
		case <-advanced:
			r.behind = true
		case <-r.pause:
			r.pause = nil
		case <-r.news.due:
			r.news.ripen()
		case <-r.loads.stirs():
			r.loads.come()
		case <-r.loads.dues():
			r.loads.rise()
		case <-m.auditLog.refusals.wake:
			r.audit = true
		case <-tick:
			r.audit, tick = true, m.o.Clock.After(auditTick)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// relaying is the state of a relay in addition to the outbox.
type relaying struct {
	m *Manager
	// hosts is the present progress of this member's hosts.
	hosts hostAccount
	news  hostNews
	// behind reports that the nodes which are behind may have changed. pause is set until the next
	// progress report may be sent.
	behind bool
	pause  <-chan time.Time
	// audit reports that entries may wait.
	audit bool
	// loads holds those of this member's own hosts.
	loads *loadTeller
}

// look reads the progress of the hosts, and returns the channels that are closed when it, or the
// view, may have changed.
func (r *relaying) look() (stirred, advanced <-chan struct{}) {
	r.hosts, stirred, advanced = r.m.ownHosts()
	return stirred, advanced
}

// next returns the next message, or nil. Statuses are last, because with many nodes and a slow
// leader one is always waiting.
func (r *relaying) next() *apiv1.RelayUp {
	up := r.m.outbox.next(weightHealth)
	if r.news.worth(r.hosts, r.m.o.Clock) {
		if up == nil {
			up = &apiv1.RelayUp{}
		}
		up.Hosts = r.hosts.progress
	}
	if up != nil {
		return up
	}
	if report := r.loads.take(); report != nil {
		return &apiv1.RelayUp{Load: report}
	}
	if r.behind && r.pause == nil {
		r.behind, r.pause = false, r.m.o.Clock.After(progressPace)
		return &apiv1.RelayUp{Progress: r.m.progress()}
	}
	if r.audit {
		r.audit = false
		if entries := r.m.takeAudited(); len(entries) > 0 {
			return &apiv1.RelayUp{Audit: entries}
		}
	}
	return r.m.outbox.next(weightStatus)
}

// next returns the channel that is closed at the next fold.
func (v *view) next() <-chan struct{} {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.advanced
}

// progress returns the nodes that have not applied all updates for them.
func (m *Manager) progress() *apiv1.RelayProgress {
	m.view.mu.RLock()
	defer m.view.mu.RUnlock()
	ss := m.sessions
	ss.mu.Lock()
	defer ss.mu.Unlock()
	out := &apiv1.RelayProgress{Revision: m.view.planRev}
	for name, s := range ss.byNode {
		if s.settled() {
			continue
		}
		if len(out.Behind) == maxBehind {
			return &apiv1.RelayProgress{}
		}
		out.Behind = append(out.Behind, name)
	}
	return out
}
