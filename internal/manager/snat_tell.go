package manager

import (
	"maps"
	"net/netip"
	"slices"
	"sort"
	"time"

	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/snat"
)

const (
	// snatChunk is the approximate size of one message of a lease snapshot.
	snatChunk = 512 << 10
	// snatRenew is the interval at which a mux receives the confirmation that its leases are the
	// newest, if nothing changes. The mux withdraws VIPs with SNAT if it receives none for several
	// intervals.
	snatRenew = time.Second
	// maxSNATAnswers bounds the answers that wait for a host that does not read. The host repeats
	// requests whose answers were dropped.
	maxSNATAnswers = 16384
)

// snatTold is the SNAT state that was sent on a session. It belongs to the sending goroutine.
type snatTold struct {
	// leases: the node has a snapshot and all batches up to rev.
	leases  bool
	rev     int64
	conf    int64
	holders *apiv1.SnatHolders
	// renew: the next confirmation that the mux has the newest leases is due.
	renew bool
}

// snatRenewals returns a channel that fires when the mux's next confirmation is due. It is nil for
// other roles.
func (m *Manager) snatRenewals(s *session) <-chan time.Time {
	if s.role != lb.RoleMux {
		return nil
	}
	return m.o.Clock.After(snatRenew)
}

// snatUpdates returns the pending SNAT updates of a node: leases for a mux, and the DIPs that may
// request ports for a host.
func (m *Manager) snatUpdates(s *session) []*apiv1.PlanUpdate {
	v := m.view
	v.mu.RLock()
	defer v.mu.RUnlock()
	switch s.role {
	case lb.RoleMux:
		return v.snatLeasesLocked(s.name, &s.snat, m.snatNewestLocked())
	case lb.RoleHost:
		if s.snat.conf == v.snat.conf {
			return nil
		}
		s.snat.conf = v.snat.conf
		holders := v.snatHoldersLocked(s.name)
		// A host that was away may hold ports of servers that were removed from snat meanwhile, so
		// an empty list is sent, too.
		unused := len(v.snat.vips) == 0 && v.snat.rev == 0
		if s.snat.holders == nil && unused || s.snat.holders != nil && proto.Equal(holders, s.snat.holders) {
			return nil
		}
		s.snat.holders = holders
		return []*apiv1.PlanUpdate{{SnatHolders: holders}}
	}
	return nil
}

func (v *view) snatHoldersLocked(node string) *apiv1.SnatHolders {
	out, n := &apiv1.SnatHolders{}, v.state.Nodes[node]
	if n == nil {
		return out
	}
	for _, name := range slices.SortedFunc(maps.Keys(v.snat.vips), snat.VIP.Compare) {
		s := v.snat.vips[name]
		for _, dip := range slices.SortedFunc(maps.Keys(s.dips), netip.Addr.Compare) {
			if slices.Contains(n.Addresses, s.dips[dip].host) {
				out.Holders = append(out.Holders, convert.ToSNATHolding(snat.Holder{VIP: name, DIP: dip}, v.networks.SNATTimes(name.Addr).Idle))
			}
		}
	}
	return out
}

// snatLeasesLocked returns the updates that a mux lacks: batches if the view has all of them, else
// a snapshot. newest: the view has the newest leases.
func (v *view) snatLeasesLocked(mux string, t *snatTold, newest bool) []*apiv1.PlanUpdate {
	s := &v.snat
	if !t.leases && len(s.vips) == 0 && s.rev == 0 {
		return nil // SNAT is not used
	}
	rev, renew := max(1, s.rev), t.renew
	t.renew = false
	if t.leases && t.rev == rev && t.conf == s.conf {
		if renew && newest {
			return []*apiv1.PlanUpdate{{SnatLeases: &apiv1.SnatLeases{Revision: rev, Newest: true}}}
		}
		return nil
	}
	var vips []*apiv1.SnatVIP
	if !t.leases || t.conf != s.conf {
		vips = v.snatMuxVIPsLocked(mux)
	}
	first := sort.Search(len(s.recent), func(i int) bool { return s.recent[i].rev > t.rev })
	// No gap: the last batch that the mux has is also here, or the mux has the revision before the
	// oldest batch here.
	whole := t.leases && (t.rev == rev || first > 0)
	if !whole && !newest {
		return nil // the mux may have newer leases: it keeps them while they are confirmed
	}
	if whole {
		up := &apiv1.SnatLeases{Revision: rev, Configured: t.conf != s.conf, Vips: vips, Newest: newest}
		for _, b := range s.recent[first:] {
			up.Batches = append(up.Batches, b.raw)
		}
		t.rev, t.conf = rev, s.conf
		return []*apiv1.PlanUpdate{{SnatLeases: up}}
	}
	if vips == nil {
		vips = v.snatMuxVIPsLocked(mux)
	}
	up := &apiv1.SnatLeases{Snapshot: true, Configured: true, Vips: vips}
	out, size := []*apiv1.PlanUpdate{{SnatLeases: up}}, 0
	for _, name := range s.book.VIPs() {
		if size > snatChunk {
			up, size = &apiv1.SnatLeases{}, 0
			out = append(out, &apiv1.PlanUpdate{SnatLeases: up})
		}
		raw := s.book.Page(name).Pack(nil)
		up.Pages, size = append(up.Pages, raw), size+len(raw)
	}
	up.Revision, up.Newest = rev, newest
	t.leases, t.rev, t.conf = true, rev, s.conf
	return out
}

// askSNAT adds answers to those that wait for a host.
func (s *session) askSNAT(a *apiv1.SnatAnswers) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.snatAnswers == nil || s.snatAnswers.GetEpoch() < a.GetEpoch():
		s.snatAnswers = &apiv1.SnatAnswers{Epoch: a.GetEpoch(), Answers: slices.Clone(a.GetAnswers())}
	case s.snatAnswers.GetEpoch() > a.GetEpoch() || len(s.snatAnswers.GetAnswers()) > maxSNATAnswers:
		return false
	default:
		s.snatAnswers.Answers = append(s.snatAnswers.Answers, a.GetAnswers()...)
	}
	s.signal()
	return true
}

// takeSNAT returns the pending answers and clears them.
func (s *session) takeSNAT() *apiv1.PlanUpdate {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.snatAnswers == nil {
		return nil
	}
	up := &apiv1.PlanUpdate{SnatAnswers: s.snatAnswers}
	s.snatAnswers = nil
	return up
}
