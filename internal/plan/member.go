package plan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

// Limits of an endpoint's memory.
const (
	// MemberQuarantine is how long the id of a removed member stays unused by others: the longest idle time a flow
	// entry or a cookie can survive (protocol section 1.6: 24 h), so that no old flow meets a stranger's id.
	MemberQuarantine = 24 * time.Hour
	// MaxMemberID is the largest 16-bit member id.
	MaxMemberID = 1<<16 - 1
	// MaxHistory is how many earlier memberships an endpoint remembers (design section 9.4).
	MaxHistory = 8
)

// ErrMemberIDs: every member id of the endpoint is in use or in quarantine.
var ErrMemberIDs = errors.New("no free member id")

// SizeCode chooses the binary logarithm of a ring's size from the ring's weights (none is 0) and the previous code,
// 0 for none. It has hysteresis, since resizing moves most flows.
type SizeCode func(weights []uint16, previous uint8) uint8

// MemberState is a backend's place in one endpoint.
type MemberState struct {
	ID      uint16
	Backend lb.BackendKey
	Weight  uint16 // 0 while draining
}

// Quarantined is an id that only its former backend may get back before Until.
type Quarantined struct {
	ID      uint16
	Backend lb.BackendKey
	Until   time.Time
}

// Membership is what a generation's ring is made of.
type Membership struct {
	Generation int64
	RingCode   uint8
	KeyID      uint32
	Members    []MemberState // ordered by ID
}

// EndpointState is what an endpoint remembers over time. The embedded Membership is the present one.
type EndpointState struct {
	Key lb.EndpointKey
	Membership
	Quarantine []Quarantined // ordered by ID
	History    []Membership  // before the present one, oldest first, at most MaxHistory
}

// Wanted is a backend as the operator wants it, with its effective weight.
type Wanted struct {
	Backend lb.BackendKey
	Weight  uint16
}

// Advance returns the endpoint's state once its members are the wanted ones. Ids of present members stay; a backend
// that comes back within its quarantine gets its old id; others get the lowest ids that are neither in use nor in
// quarantine, in the order of (DIP, port). The generation grows when members, weights, ring size or key changed.
// The order of wanted does not matter; its backends are distinct. prev is not modified.
func Advance(prev EndpointState, wanted []Wanted, keyID uint32, size SizeCode, now time.Time) (EndpointState, error) {
	next := prev
	next.Quarantine = slices.DeleteFunc(slices.Clone(prev.Quarantine), func(q Quarantined) bool { return !q.Until.After(now) })
	members, err := next.place(wanted, now)
	if err != nil {
		return EndpointState{}, fmt.Errorf("endpoint %s: %w", FormatKey(prev.Key), err)
	}
	ring := Membership{Generation: prev.Generation, KeyID: keyID, Members: members, RingCode: prev.RingCode}
	// A ring without weights keeps its size, so that draining everything and coming back moves nothing.
	if w := weights(members); len(w) > 0 || prev.RingCode == 0 {
		ring.RingCode = size(w, prev.RingCode)
	}
	if prev.Generation > 0 && prev.Membership.same(ring) {
		return next, nil
	}
	if prev.Generation > 0 {
		next.History = append(slices.Clone(prev.History), prev.Membership)
		next.History = next.History[max(0, len(next.History)-MaxHistory):]
	}
	ring.Generation++
	next.Membership = ring
	return next, nil
}

// place gives every wanted backend its id and moves those that left into quarantine.
func (s *EndpointState) place(wanted []Wanted, now time.Time) ([]MemberState, error) {
	wanted = slices.SortedFunc(slices.Values(wanted), func(a, b Wanted) int { return compareBackend(a.Backend, b.Backend) })
	ids := make(map[lb.BackendKey]uint16, len(s.Members)+len(s.Quarantine))
	left := make(map[lb.BackendKey]uint16, len(s.Members))
	taken := make(map[uint16]bool, len(ids))
	for _, q := range s.Quarantine {
		ids[q.Backend], taken[q.ID] = q.ID, true
	}
	for _, m := range s.Members {
		ids[m.Backend], taken[m.ID], left[m.Backend] = m.ID, true, m.ID
	}
	members := make([]MemberState, 0, len(wanted))
	free := 0
	for _, w := range wanted {
		id, known := ids[w.Backend]
		if !known {
			for free <= MaxMemberID && taken[uint16(free)] {
				free++
			}
			if free > MaxMemberID {
				return nil, fmt.Errorf("%w: %d in use, %d in quarantine for up to %s", ErrMemberIDs, len(s.Members), len(s.Quarantine), MemberQuarantine)
			}
			id = uint16(free)
			free++
		}
		delete(left, w.Backend)
		members = append(members, MemberState{ID: id, Backend: w.Backend, Weight: w.Weight})
	}
	slices.SortFunc(members, func(a, b MemberState) int { return cmp.Compare(a.ID, b.ID) })
	s.quarantine(members, left, now)
	return members, nil
}

// quarantine adds the members that left and takes out those that came back.
func (s *EndpointState) quarantine(members []MemberState, left map[lb.BackendKey]uint16, now time.Time) {
	back := make(map[lb.BackendKey]bool, len(members))
	for _, m := range members {
		back[m.Backend] = true
	}
	s.Quarantine = slices.DeleteFunc(s.Quarantine, func(q Quarantined) bool { return back[q.Backend] })
	for backend, id := range left {
		s.Quarantine = append(s.Quarantine, Quarantined{ID: id, Backend: backend, Until: now.Add(MemberQuarantine)})
	}
	slices.SortFunc(s.Quarantine, func(a, b Quarantined) int { return cmp.Compare(a.ID, b.ID) })
}

// Idle tells whether nothing of the endpoint needs to be remembered any more.
func (s *EndpointState) Idle(now time.Time) bool {
	return len(s.Members) == 0 && !slices.ContainsFunc(s.Quarantine, func(q Quarantined) bool { return q.Until.After(now) })
}

// same tells whether two memberships make equal rings.
func (m Membership) same(o Membership) bool {
	return m.RingCode == o.RingCode && m.KeyID == o.KeyID && slices.Equal(m.Members, o.Members)
}

// weights are those of the members that are in the ring.
func weights(members []MemberState) []uint16 {
	var out []uint16
	for _, m := range members {
		if m.Weight > 0 {
			out = append(out, m.Weight)
		}
	}
	return out
}

func compareBackend(a, b lb.BackendKey) int {
	return cmp.Or(a.DIP.Compare(b.DIP), cmp.Compare(a.Port, b.Port))
}
