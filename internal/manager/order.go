package manager

import (
	"context"
	"time"

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
	s.late = s.late && !s.settledLocked()
	s.mu.Unlock()
	if s.role != lb.RoleHost {
		return
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.stirLocked()
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
			}
			return
		}
	}
}

// hostsBehind are the hosts worth waiting for, with the channel that closes when this may have changed. The view's lock
// makes sure that all sessions were noted of the newest change.
func (m *Manager) hostsBehind() ([]*session, <-chan struct{}) {
	m.view.mu.RLock()
	defer m.view.mu.RUnlock()
	ss := m.sessions
	ss.mu.Lock()
	defer ss.mu.Unlock()
	var out []*session
	for _, s := range ss.byNode {
		if s.role != lb.RoleHost {
			continue
		}
		s.mu.Lock()
		if !s.late && !s.settledLocked() {
			out = append(out, s)
		}
		s.mu.Unlock()
	}
	return out, ss.stirred
}
