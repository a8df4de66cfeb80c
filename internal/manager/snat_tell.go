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
	// snatChunk is about how large a message of a snapshot of leases is.
	snatChunk = 512 << 10
	// snatRenew is how often a mux hears that its leases are the newest, when nothing changes: it withdraws VIPs with SNAT when it
	// does not for several times as long.
	snatRenew = time.Second
	// maxSNATAnswers bounds what waits for a host that does not read. What is dropped the host asks for afresh.
	maxSNATAnswers = 16384
)

// snatTold is what a session was told of SNAT; it belongs to the sending goroutine.
type snatTold struct {
	// leases: the node has a snapshot and all batches up to rev.
	leases  bool
	rev     int64
	conf    int64
	holders *apiv1.SnatHolders
	// renew: the mux has to hear that it has the newest.
	renew bool
}

// snatRenewals fires when a mux has to hear again that its leases are the newest.
func (m *Manager) snatRenewals(s *session) <-chan time.Time {
	if s.role != lb.RoleMux {
		return nil
	}
	return m.o.Clock.After(snatRenew)
}

// snatUpdates is what a node must hear of SNAT now: of leases, when it is a mux, and of the DIPs that may ask, when it is a host.
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
		// One that was away may hold ports of servers that left snat meanwhile: it hears that it has none, too.
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

// snatLeasesLocked is what a mux lacks: batches when the view has all of them, else everything. newest: the view has all that there
// is.
func (v *view) snatLeasesLocked(mux string, t *snatTold, newest bool) []*apiv1.PlanUpdate {
	s := &v.snat
	if !t.leases && len(s.vips) == 0 && s.rev == 0 {
		return nil // nobody uses it
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
	// Without a gap: the batch that the mux has last is here too, or it has what the oldest one here follows.
	whole := t.leases && (t.rev == rev || first > 0)
	if !whole && !newest {
		return nil // what the mux has may be newer: it goes by that, as long as it may
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

// takeSNAT takes the answers that wait.
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
