package plan

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

// Limits of an endpoint's memory.
const (
	// MemberQuarantine is how long the id of a removed member stays unused by others: the longest idle time a flow
	// entry or a cookie can survive (protocol section 1.6: 24 h), so that no old flow meets a stranger's id.
	MemberQuarantine = 24 * time.Hour
	// MinYoung is how long at least an endpoint that became one of cookies is young (EndpointState.Young), whatever its idle time: a connection from before is
	// known by the flow table alone as long as it lives.
	MinYoung = 24 * time.Hour
	// MaxMemberID is the largest member id: 16 bits but for NoMember.
	MaxMemberID = 1<<16 - 2
	// NoMember stands in a tunnel's metadata for "the outer destination says it all".
	NoMember = 1<<16 - 1
	// MaxHistory is how many earlier memberships an endpoint remembers (design section 9.4), as long as they have at
	// most MaxHistoryMembers in all: of 65,535 members one is remembered, in 3 MB. The steps of a slow start are two of them.
	MaxHistory        = 8
	MaxHistoryMembers = 1 << 16
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
	Weight  uint16 // in the ring: 0 while draining
	Backup  bool
	// Down: the ring is made without it, because every mux called it dead for long enough.
	Down bool
	// Warming is since when it grows to its weight; zero when it has it.
	Warming time.Time
	// Draining is since when it drains; zero when it does not.
	Draining time.Time
	// Host is the underlay address of the machine that runs it, for as long as it may be a former owner; zero when nobody said it.
	Host netip.Addr
	// Fallen: muxes call it dead, and none alive. Revived is when they ceased to. While it is dead its slots' connections begin on others,
	// where they are sent on to for as long as the window of repair. Both are noted where Input.Revives.
	Fallen  bool
	Revived time.Time
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
	// Until is when another took its place; zero of the present one.
	Until time.Time
}

// EndpointState is what an endpoint remembers over time. The embedded Membership is the present one.
type EndpointState struct {
	Key lb.EndpointKey
	Membership
	Quarantine []Quarantined // ordered by ID
	// History are the memberships before the present one that ceased to be it within Input.RepairWindow, oldest first, at most
	// MaxHistory. Members in it keep Warming and Host only, and Fallen when they left with that membership.
	History []Membership
	// Cookies: the endpoint has affinity cookie. Young is until when flows may be there from before that, whose packets carry no cookie; zero when there are
	// none.
	Cookies bool
	Young   time.Time
	// Form is the form of cookies that the endpoint's hosts stamp, or stamped last; empty where they never did. QUIC is the format of the connection ids that its
	// servers make, or made last; nil where it never read any. Fading is until when connections with such cookies or ids may be there although the endpoint has
	// affinity cookie no more; zero when there are none.
	Form   string
	QUIC   *lb.QUIC
	Fading time.Time
}

// Fades reports whether muxes still read the cookies, or connection ids, of an endpoint that has affinity cookie no more: connections that a scheduler placed are
// in no flow table. With path nat nothing fades: muxes stamped the cookies, and have a session for each connection. Nor with what affinity cookie cannot have.
func (s *EndpointState) Fades(ep *lb.Endpoint) bool {
	if s.Fading.IsZero() || ep.Cookies() || ep.Translated() || (s.QUIC == nil && s.Form == "") {
		return false
	}
	if ep.Source != nil || ep.OnePacket || ep.Fragments == lb.Fragments3Tuple { // a flow is something else there than what carries the cookie
		return false
	}
	was := lb.Endpoint{Affinity: lb.AffinityCookie, Protocol: ep.Protocol, QUIC: s.QUIC, Cookie: lb.Cookie{Form: s.Form}}
	return len(s.Members) == 0 || int(s.Members[len(s.Members)-1].ID) < was.MaxMembers()
}

// Idle tells whether nothing of the endpoint needs to be remembered any more.
func (s *EndpointState) Idle(now time.Time) bool {
	return len(s.Members) == 0 && !slices.ContainsFunc(s.Quarantine, func(q Quarantined) bool { return q.Until.After(now) })
}

// same tells whether two memberships make equal rings.
func (m Membership) same(o Membership) bool {
	return m.RingCode == o.RingCode && m.KeyID == o.KeyID && slices.EqualFunc(m.Members, o.Members, MemberState.same)
}

// same tells whether two members are the same to a ring.
func (m MemberState) same(o MemberState) bool { return m.timeless() == o.timeless() }

// timeless is the member without what no ring depends on.
func (m MemberState) timeless() MemberState {
	m.Warming, m.Draining, m.Host, m.Fallen, m.Revived = time.Time{}, time.Time{}, netip.Addr{}, false, time.Time{}
	return m
}

// past is the membership as the history keeps it, without members that left dead.
func (m Membership) past(until time.Time) Membership {
	m.Members, m.Until = slices.Clone(m.Members), until
	for i := range m.Members {
		m.Members[i].Draining, m.Members[i].Fallen, m.Members[i].Revived = time.Time{}, false, time.Time{}
	}
	return m
}

// Equal tells whether both states remember the same. A membership of the history is known by its generation.
func (s *EndpointState) Equal(o *EndpointState) bool {
	return s.Key == o.Key && s.Generation == o.Generation && s.Cookies == o.Cookies && s.Young.Equal(o.Young) && s.Form == o.Form && s.QUIC.Equal(o.QUIC) && s.Fading.Equal(o.Fading) && s.Membership.same(o.Membership) &&
		slices.EqualFunc(s.Members, o.Members, func(a, b MemberState) bool {
			return a.Warming.Equal(b.Warming) && a.Draining.Equal(b.Draining) && a.Host == b.Host && a.Fallen == b.Fallen && a.Revived.Equal(b.Revived)
		}) &&
		slices.EqualFunc(s.History, o.History, func(a, b Membership) bool {
			return a.Generation == b.Generation && a.Until.Equal(b.Until)
		}) &&
		slices.EqualFunc(s.Quarantine, o.Quarantine, func(a, b Quarantined) bool {
			return a.ID == b.ID && a.Backend == b.Backend && a.Until.Equal(b.Until)
		})
}

func compareBackend(a, b lb.BackendKey) int {
	return cmp.Or(a.DIP.Compare(b.DIP), cmp.Compare(a.Port, b.Port))
}

// away tells whether connections of the member's slots may be others': they began while it was dead.
func (m MemberState) away() bool { return m.Fallen || !m.Revived.IsZero() }

// Special tells whether the member is not plainly in service.
func (m MemberState) Special() bool { return m.Backup || m.Changing() }

// Changing tells whether time or health brings the member back to plain service, or out of it.
func (m MemberState) Changing() bool {
	return m.Down || !m.Warming.IsZero() || !m.Draining.IsZero()
}

// Shares are the members' weights in percent of those they were configured with, in their order.
func (m Membership) Shares(wanted map[lb.BackendKey]uint16) []uint32 {
	scale := uint32(1)
	if slices.ContainsFunc(m.Members, func(m MemberState) bool { return !m.Warming.IsZero() }) {
		scale = slowSteps
	}
	out := make([]uint32, len(m.Members))
	for i, member := range m.Members {
		if full := uint32(wanted[member.Backend]) * scale; full > 0 {
			out[i] = 100 * uint32(member.Weight) / full
		}
	}
	return out
}
