package manager

import (
	"sync"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// A mux advertises VIPs with SNAT as long as managers confirm that it has the newest leases. Freed
// ranges are leased again after a quarantine. A mux that keeps using old leases, because its
// manager is cut off from the others without detecting it, would send packets to the previous
// holders. So a manager confirms only while it is sure.

// snatKnownFor is how long a follower trusts the leader's last confirmation: three times the
// interval of confirmations. Together with the time until a mux withdraws, it is far shorter than
// the quarantine of a range.
const snatKnownFor = 3 * snatRenew

// SNATConfirmedFor is the maximum time for which managers confirm leases that are no longer the
// newest: a leader until its lease expires, a follower snatKnownFor longer.
const SNATConfirmedFor = leaseTTL + snatKnownFor

// snatKnown is the leader's last confirmation: the newest lease revision, and when it was received.
type snatKnown struct {
	mu       sync.Mutex
	revision int64
	at       time.Time
}

// hear records a confirmation from the leader.
func (k *snatKnown) hear(n *apiv1.SnatNewest, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.revision, k.at = n.GetRevision(), now
}

// covers reports whether a view with leases up to a revision had all leases a short time ago.
func (k *snatKnown) covers(revision int64, now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.at.IsZero() && now.Sub(k.at) <= snatKnownFor && revision >= k.revision
}

// snatNewestLocked reports whether the view has the newest leases. The view of a leader does while
// its lease lasts, because only the leader stores leases. The view of a follower does if the leader
// confirms it. The view must be locked.
func (m *Manager) snatNewestLocked() bool {
	now := m.o.Clock.Now()
	if d := m.snat.Load(); d != nil {
		t := m.present()
		return t != nil && t.epoch == d.epoch && now.Sub(t.lastRenewed()) <= leaseTTL
	}
	return m.snatKnown.covers(m.view.snat.rev, now)
}

// tellSNATNewest returns the confirmation that a leader sends to followers once a second. It
// returns nil if the leader cannot confirm yet.
func (m *Manager) tellSNATNewest() *apiv1.RelayDown {
	m.view.mu.RLock()
	defer m.view.mu.RUnlock()
	if m.snat.Load() == nil || !m.snatNewestLocked() {
		return nil
	}
	return &apiv1.RelayDown{SnatNewest: &apiv1.SnatNewest{Revision: m.view.snat.rev}}
}
