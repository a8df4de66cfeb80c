package manager

import (
	"context"
	"maps"
	"slices"
	"sync"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

const (
	// maxOwingHosts and maxOwed bound an account of the changes that hosts have yet to apply.
	// Beyond them, members do not exchange the progress of their hosts, and muxes wait for
	// hostsFirst.
	maxOwingHosts = 64
	maxOwed       = 1024
)

// hostProgress holds the changes that the hosts of other members have yet to apply: at a follower
// the leader's account, at the leader those of all others.
type hostProgress struct {
	mu     sync.Mutex
	others map[string]*otherHosts
	// moved is closed and replaced at every change.
	moved chan struct{}
}

// otherHosts is the account of one other member.
type otherHosts struct {
	said *apiv1.HostProgress // never modified
	// until is the revision that the member must report before muxes wait for it again, because it
	// was late once.
	until int64
}

func newHostProgress() *hostProgress {
	return &hostProgress{others: map[string]*otherHosts{}, moved: make(chan struct{})}
}

func (h *hostProgress) stirLocked() {
	close(h.moved)
	h.moved = make(chan struct{})
}

// hear stores the account of another member's hosts.
func (h *hostProgress) hear(p *apiv1.HostProgress) {
	h.mu.Lock()
	defer h.mu.Unlock()
	defer h.stirLocked()
	if p.GetGone() {
		delete(h.others, p.GetManager())
		return
	}
	o := h.others[p.GetManager()]
	if o == nil {
		o = &otherHosts{}
		h.others[p.GetManager()] = o
	}
	o.said = p
}

// forgetAll removes all accounts, because the member that sent them is gone.
func (h *hostProgress) forgetAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.others)
	h.stirLocked()
}

// all returns the account of every other member, by name, and the channel that closes when this may
// have changed.
func (h *hostProgress) all() (map[string]*apiv1.HostProgress, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make(map[string]*apiv1.HostProgress, len(h.others))
	for name, o := range h.others {
		out[name] = o.said
	}
	return out, h.moved
}

// otherProgress is the progress of the hosts of another member.
type otherProgress struct {
	revision int64
	owed     map[string]bool
}

// blocks reports whether a mux has to wait for the member's hosts with a fold.
func (o *otherProgress) blocks(f *fold) bool {
	return o.revision < f.hosts || f.about(o.owed)
}

// waitedFor returns the progress of the other members that are not late, and the channel that
// closes when this may have changed.
func (h *hostProgress) waitedFor() (out []otherProgress, moved <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, o := range h.others {
		if o.said.GetRevision() < o.until {
			continue
		}
		p := otherProgress{revision: o.said.GetRevision(), owed: make(map[string]bool, len(o.said.GetOwed()))}
		for _, key := range o.said.GetOwed() {
			p.owed[key] = true
		}
		out = append(out, p)
	}
	return out, h.moved
}

// giveUp stops the wait for members that did not report the revision in time, until they report
// present, the newest revision that changed bindings. The member that has a slow host leaves it out
// itself.
func (h *hostProgress) giveUp(revision, present int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, o := range h.others {
		if o.said.GetRevision() < revision {
			o.until = present
		}
	}
}

// ownHosts returns the account of the hosts here. The channels close when it may have changed.
func (m *Manager) ownHosts() (a hostAccount, stirred, advanced <-chan struct{}) {
	m.view.mu.RLock()
	defer m.view.mu.RUnlock()
	ss := m.sessions
	ss.mu.Lock()
	defer ss.mu.Unlock()
	stirred, advanced = ss.stirred, m.view.advanced
	if len(ss.behind) > maxOwingHosts {
		return hostAccount{}, stirred, advanced
	}
	owed := map[string]bool{}
	for s := range ss.behind {
		owes, last := s.owes()
		for _, key := range owes {
			owed[key] = true
		}
		a.newest = max(a.newest, last)
	}
	if len(owed) > maxOwed {
		return hostAccount{}, stirred, advanced
	}
	a.progress = &apiv1.HostProgress{Manager: m.o.Name, Revision: m.view.hostRev, Owed: slices.Sorted(maps.Keys(owed))}
	a.bindings = m.view.bindingRev
	return a, stirred, advanced
}

// sameHosts reports whether two accounts are equal.
func sameHosts(a, b *apiv1.HostProgress) bool {
	return a.GetRevision() == b.GetRevision() && a.GetGone() == b.GetGone() && slices.Equal(a.GetOwed(), b.GetOwed())
}

// tendHosts marks hosts late that are too slow to be waited for, until ctx ends. It does so even if
// no mux here waits for them, because muxes of other members may.
func (m *Manager) tendHosts(ctx context.Context) {
	for {
		advanced := m.view.next()
		if !m.sessions.someBehind() {
			select {
			case <-advanced: // a fold may put hosts behind
			case <-m.sessions.joined:
			case <-ctx.Done():
				return
			}
			continue
		}
		select {
		case <-m.o.Clock.After(hostsFirst):
			m.leaveBehind()
		case <-ctx.Done():
			return
		}
	}
}

// someBehind reports whether there are hosts worth waiting for.
func (ss *sessions) someBehind() bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return len(ss.behind) > 0
}

// leaveBehind stops the wait for hosts whose time is up.
func (m *Manager) leaveBehind() {
	ss, now := m.sessions, m.o.Clock.Now()
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for s := range ss.behind {
		s.mu.Lock()
		s.late = s.late || !s.behind.IsZero() && now.Sub(s.behind) >= hostsFirst
		s.mu.Unlock()
		ss.reviewLocked(s, false)
	}
}
