package plan

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

// Limits of an endpoint's state.
const (
	// MemberQuarantine is how long the id of a removed member is not reused: the longest idle time
	// of a flow entry or a cookie (protocol section 1.6: 24 h), so that no old flow reaches another
	// backend by the id.
	MemberQuarantine = 24 * time.Hour
	// MinYoung is the minimum time that an endpoint is young after it got cookies
	// (EndpointState.Young), whatever its idle time. Connections from before exist only in the flow
	// table.
	MinYoung = 24 * time.Hour
	// MaxMemberID is the largest member id: 16 bits without NoMember.
	MaxMemberID = 1<<16 - 2
	// NoMember in a tunnel's metadata means that the outer destination alone identifies the member.
	NoMember = 1<<16 - 1
	// MaxHistory is the maximum number of earlier memberships of an endpoint (design section 9.4),
	// which have at most MaxHistoryMembers in total: with 65,535 members there is one, in 3 MB. The
	// steps of a slow start count as two.
	MaxHistory        = 8
	MaxHistoryMembers = 1 << 16
)

// ErrMemberIDs means that every member id of the endpoint is in use or in quarantine.
var ErrMemberIDs = errors.New("no free member id")

// SizeCode returns the binary logarithm of a ring's size from the ring's weights (none is 0) and
// the previous code, 0 for none. It has hysteresis, because resizing moves most flows.
type SizeCode func(weights []uint16, previous uint8) uint8

// MemberState is the state of a backend in one endpoint.
type MemberState struct {
	ID      uint16
	Backend lb.BackendKey
	Weight  uint16 // in the ring: 0 while draining
	Backup  bool
	// Down: the ring is built without it, because every mux reported it dead for long enough.
	Down bool
	// Warming is the begin of its slow start; zero when it has its full weight.
	Warming time.Time
	// Draining is the begin of its drain; zero when it does not drain.
	Draining time.Time
	// Host is the underlay address of its machine, kept as long as it may be the previous owner of
	// flows; zero when it is not configured.
	Host netip.Addr
	// Fallen: muxes report it dead, and none alive. Revived is when these reports ended. While it
	// is dead, connections of its slots begin on other members, which hosts forward them to for the
	// repair window. Both are recorded only with Input.Revives.
	Fallen  bool
	Revived time.Time
}

// Quarantined is an id that only its previous backend may get before Until.
type Quarantined struct {
	ID      uint16
	Backend lb.BackendKey
	Until   time.Time
}

// Membership is the input of one generation's ring.
type Membership struct {
	Generation int64
	RingCode   uint8
	KeyID      uint32
	Members    []MemberState // ordered by ID
	// Until is when the next one replaced it; zero for the current one.
	Until time.Time
}

// EndpointState is the state of an endpoint over time. The embedded Membership is the current one.
type EndpointState struct {
	Key lb.EndpointKey
	Membership
	Quarantine []Quarantined // ordered by ID
	// History are the previous memberships that were replaced within Input.RepairWindow, oldest
	// first, at most MaxHistory. Members in it keep only Warming and Host, and Fallen when they
	// left with that membership.
	History []Membership
	// Cookies: the endpoint has affinity cookie. Young is the time until which flows from before
	// that may exist, whose packets carry no cookie; zero when there are none.
	Cookies bool
	Young   time.Time
	// Form is the form of cookies that the endpoint's hosts stamp or stamped last; empty if they
	// never did. QUIC is the format of the connection ids that its servers make or made last; nil
	// if it never read any. Fading is the time until which connections with such cookies or ids may
	// exist although the endpoint no longer has affinity cookie; zero when there are none.
	Form   string
	QUIC   *lb.QUIC
	Fading time.Time
}

// Fades reports whether muxes still read the cookies or connection ids of an endpoint that no
// longer has affinity cookie, because connections that a scheduler placed are in no flow table. It
// returns false with path nat, because muxes stamped the cookies and have a session for each
// connection, and for endpoints that cannot have affinity cookie.
func (s *EndpointState) Fades(ep *lb.Endpoint) bool {
	if s.Fading.IsZero() || ep.Cookies() || ep.Translated() || (s.QUIC == nil && s.Form == "") {
		return false
	}
	// their flows are not the connections that carry cookies
	if ep.Source != nil || ep.OnePacket || ep.Fragments == lb.Fragments3Tuple {
		return false
	}
	was := lb.Endpoint{Affinity: lb.AffinityCookie, Protocol: ep.Protocol, QUIC: s.QUIC, Cookie: lb.Cookie{Form: s.Form}}
	return len(s.Members) == 0 || int(s.Members[len(s.Members)-1].ID) < was.MaxMembers()
}

// Idle reports whether the endpoint's state can be deleted.
func (s *EndpointState) Idle(now time.Time) bool {
	return len(s.Members) == 0 && !slices.ContainsFunc(s.Quarantine, func(q Quarantined) bool { return q.Until.After(now) })
}

// same reports whether two memberships have equal rings.
func (m Membership) same(o Membership) bool {
	return m.RingCode == o.RingCode && m.KeyID == o.KeyID && slices.EqualFunc(m.Members, o.Members, MemberState.same)
}

// same reports whether two members are equal for a ring.
func (m MemberState) same(o MemberState) bool { return m.timeless() == o.timeless() }

// timeless returns the member without the fields that do not affect rings.
func (m MemberState) timeless() MemberState {
	m.Warming, m.Draining, m.Host, m.Fallen, m.Revived = time.Time{}, time.Time{}, netip.Addr{}, false, time.Time{}
	return m
}

// past returns the membership as the history stores it. Fallen is cleared; displaced sets it for
// members that left dead.
func (m Membership) past(until time.Time) Membership {
	m.Members, m.Until = slices.Clone(m.Members), until
	for i := range m.Members {
		m.Members[i].Draining, m.Members[i].Fallen, m.Members[i].Revived = time.Time{}, false, time.Time{}
	}
	return m
}

// Equal reports whether both states are equal. It compares memberships of the history by generation
// and Until.
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

// away reports whether connections of the member's slots may belong to other members because they
// began while it was dead.
func (m MemberState) away() bool { return m.Fallen || !m.Revived.IsZero() }

// Special reports whether the member is not in normal service.
func (m MemberState) Special() bool { return m.Backup || m.Changing() }

// Changing reports whether time or health will bring the member into normal service or out of it.
func (m MemberState) Changing() bool {
	return m.Down || !m.Warming.IsZero() || !m.Draining.IsZero()
}

// Shares returns the members' weights in percent of the configured ones, in their order.
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
