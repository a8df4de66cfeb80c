package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

// Wanted is a configured backend.
type Wanted struct {
	Backend lb.BackendKey
	Weight  uint16 // 0 when it drains
	Backup  bool
}

// Input holds the inputs of an endpoint's next state, in addition to the current state.
type Input struct {
	// Wanted are the configured backends, distinct, in any order.
	Wanted []Wanted
	// KeyID is the ring hash key for the endpoint.
	KeyID uint32
	Size  SizeCode
	// MaxIDs is the number of member ids, from 0 on; 0: all up to MaxMemberID.
	MaxIDs int
	// SlowStart and DrainTimeout are as in lb.Endpoint.
	SlowStart, DrainTimeout time.Duration
	// RepairWindow is how long a displaced membership stays in the history; 0: it is not kept.
	RepairWindow time.Duration
	// Hosts are the underlay addresses of the machines that run wanted backends, as far as they are
	// available.
	Hosts map[lb.BackendKey]netip.Addr
	// DownAfter is how long a member must be dead before the ring is built without it; 0: never.
	DownAfter time.Duration
	// Revives: deaths and returns of members are recorded, because muxes do not track the
	// connections.
	Revives bool
	// Cookies: the endpoint has affinity cookie. Idle is how long muxes keep its trusted flows.
	Cookies bool
	Idle    time.Duration
	// Form is the form of the cookies that hosts stamp; empty: they stamp none.
	Form string
	// QUIC is the format of the connection ids that servers make; nil: the protocol is not QUIC.
	QUIC *lb.QUIC
	// Heard returns the combined reports of the muxes about a member; nil: there are none.
	Heard func(id uint16) Heard
	Now   time.Time
}

// Advance returns the endpoint's state at Now. Current members keep their ids. A backend that
// returns within its quarantine gets its old id. Others get the lowest ids that are neither in use
// nor in quarantine, in the order of (DIP, port). phase documents the changes over time. The
// generation increases when the ring changes: members, weights, Down, size or key. prev is not
// modified.
func Advance(prev EndpointState, in Input) (EndpointState, error) {
	next := prev
	next.Quarantine = slices.DeleteFunc(slices.Clone(prev.Quarantine), func(q Quarantined) bool { return !q.Until.After(in.Now) })
	next.age(in)
	members, err := next.place(in.staying(prev), in.maxIDs(), in.Now)
	if err != nil {
		return prev, fmt.Errorf("endpoint %s: %w", FormatKey(prev.Key), err)
	}
	in.phase(prev.Members, members)
	in.fall(prev.Members, members)
	ring := Membership{Generation: prev.Generation, KeyID: in.KeyID, Members: members, RingCode: prev.RingCode}
	// A ring without weights keeps its size, so that draining all members and undoing it moves no
	// flow.
	if w := finalWeights(members); len(w) > 0 || prev.RingCode == 0 {
		ring.RingCode = in.Size(w, prev.RingCode)
	}
	scale(members, in.SlowStart, in.Now)
	for i := range members {
		members[i].Host = in.Hosts[members[i].Backend]
	}
	next.History = in.recent(prev.History)
	if prev.Generation > 0 && prev.Membership.same(ring) {
		next.Members = members
		return next, nil
	}
	if prev.Generation > 0 {
		next.History = in.recent(remember(next.History, in.displaced(prev.Membership, members)))
	}
	ring.Generation++
	next.Membership = ring
	return next, nil
}

// age updates Young and Fading. When an endpoint gets cookies, its existing flows continue without
// them: it is young from then on. The same holds for a state written by a build that did not record
// cookies. When it loses cookies that its hosts stamped, or connection ids that its servers made,
// its connections keep using them: it fades from then on.
func (s *EndpointState) age(in Input) {
	switch {
	case in.Cookies || len(in.Wanted) == 0:
		s.Fading = time.Time{}
	case s.Generation > 0 && s.Cookies && (hostForm(s.Form) || s.QUIC != nil):
		s.Fading = in.Now.Add(max(in.Idle, MinYoung))
	case !s.Fading.After(in.Now):
		s.Fading = time.Time{}
	}
	if in.Cookies {
		s.Form, s.QUIC = in.Form, in.QUIC
	} else if s.Fading.IsZero() {
		s.Form, s.QUIC = "", nil
	}
	switch {
	case !in.Cookies:
		s.Young = time.Time{}
	case s.Generation > 0 && !s.Cookies:
		s.Young = in.Now.Add(max(in.Idle, MinYoung))
	case !s.Young.After(in.Now):
		s.Young = time.Time{}
	}
	s.Cookies = in.Cookies
}

// hostForm reports whether hosts stamp cookies of the form. Such cookies remain in use after the
// hosts stop stamping.
func hostForm(form string) bool { return form == lb.CookieEVC || form == lb.CookieCO }

// displaced returns the membership as the history stores it when next replaces it. Members that
// leave while dead stay Fallen, because they are not checked from here on and hosts must not
// forward packets to them.
func (in *Input) displaced(m Membership, next []MemberState) Membership {
	stays := make(map[uint16]bool, len(next))
	for i := range next {
		stays[next[i].ID] = true
	}
	out := m.past(in.Now)
	for i := range out.Members {
		old := &m.Members[i]
		out.Members[i].Fallen = !stays[old.ID] && (old.Fallen || old.Down || in.heard(old.ID).Health == HeardDead)
	}
	return out
}

// maxIDs returns the number of member ids.
func (in *Input) maxIDs() int {
	if in.MaxIDs == 0 {
		return MaxMemberID + 1
	}
	return in.MaxIDs
}

// place assigns one of the ids to every wanted backend and moves the members that left into
// quarantine.
func (s *EndpointState) place(wanted []Wanted, ids int, now time.Time) ([]MemberState, error) {
	wanted = slices.SortedFunc(slices.Values(wanted), func(a, b Wanted) int { return compareBackend(a.Backend, b.Backend) })
	had := make(map[lb.BackendKey]uint16, len(s.Members)+len(s.Quarantine))
	left := make(map[lb.BackendKey]uint16, len(s.Members))
	taken := make(map[uint16]bool, len(had))
	for _, q := range s.Quarantine {
		had[q.Backend], taken[q.ID] = q.ID, true
	}
	for _, m := range s.Members {
		had[m.Backend], taken[m.ID], left[m.Backend] = m.ID, true, m.ID
	}
	members := make([]MemberState, 0, len(wanted))
	free := 0
	for _, w := range wanted {
		id, known := had[w.Backend]
		if int(id) >= ids {
			return nil, fmt.Errorf("%w: %s has %d, and with affinity cookie the largest is %d: ids are given anew %s after their backend left",
				ErrMemberIDs, netip.AddrPortFrom(w.Backend.DIP, w.Backend.Port), id, ids-1, MemberQuarantine)
		}
		if !known {
			for free < ids && taken[uint16(free)] {
				free++
			}
			if free >= ids {
				return nil, fmt.Errorf("%w: of %d, %d in use, %d in quarantine for up to %s", ErrMemberIDs, ids, len(s.Members), len(s.Quarantine), MemberQuarantine)
			}
			id = uint16(free)
			free++
		}
		delete(left, w.Backend)
		members = append(members, MemberState{ID: id, Backend: w.Backend, Weight: w.Weight, Backup: w.Backup})
	}
	slices.SortFunc(members, func(a, b MemberState) int { return cmp.Compare(a.ID, b.ID) })
	s.quarantine(members, left, now)
	return members, nil
}

// quarantine adds the members that left and removes those that returned.
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

// finalWeights returns the ring weights of the members after all slow starts.
func finalWeights(members []MemberState) []uint16 {
	var out []uint16
	for _, m := range members {
		if m.Weight > 0 {
			out = append(out, m.Weight)
		}
	}
	return out
}
