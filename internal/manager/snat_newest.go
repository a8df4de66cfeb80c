package manager

import (
	"sync"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// A mux advertises VIPs with SNAT as long as it hears that it has the newest leases. Ranges that were freed are leased to others once they
// have rested: a mux that goes on by old leases, because its manager is cut off from the others and does not know of it, would send
// packets to whoever had them before. So a manager says it only while it knows.

// snatKnownFor is how long a follower goes by what the leader said: three times as long as the leader takes to say it. With what a mux
// takes to give up it is far shorter than a range rests.
const snatKnownFor = 3 * snatRenew

// SNATConfirmedFor is how long at most managers confirm leases that are not the newest any more: a leader as long as its lease lasts, a follower
// snatKnownFor beyond.
const SNATConfirmedFor = leaseTTL + snatKnownFor

// snatKnown is up to which revision there were leases when the leader said so last.
type snatKnown struct {
	mu       sync.Mutex
	revision int64
	at       time.Time
}

// hear takes in what the leader says.
func (k *snatKnown) hear(n *apiv1.SnatNewest, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.revision, k.at = n.GetRevision(), now
}

// covers tells whether a view with leases up to a revision has all that there were a short time ago.
func (k *snatKnown) covers(revision int64, now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.at.IsZero() && now.Sub(k.at) <= snatKnownFor && revision >= k.revision
}

// snatNewestLocked tells whether the view has the newest leases: that of a leader does, who alone stores them, as long as its lease
// lasts; that of a follower when the leader says so. The view is locked.
func (m *Manager) snatNewestLocked() bool {
	now := m.o.Clock.Now()
	if d := m.snat.Load(); d != nil {
		t := m.present()
		return t != nil && t.epoch == d.epoch && now.Sub(t.lastRenewed()) <= leaseTTL
	}
	return m.snatKnown.covers(m.view.snat.rev, now)
}

// tellSNATNewest is what a leader says to followers once a second; nil: it does not know yet.
func (m *Manager) tellSNATNewest() *apiv1.RelayDown {
	m.view.mu.RLock()
	defer m.view.mu.RUnlock()
	if m.snat.Load() == nil || !m.snatNewestLocked() {
		return nil
	}
	return &apiv1.RelayDown{SnatNewest: &apiv1.SnatNewest{Revision: m.view.snat.rev}}
}
