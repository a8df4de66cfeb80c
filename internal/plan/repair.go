package plan

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/shuntlb/shunt/internal/lb"
)

// Repair holds the data from which hosts with members of an endpoint find the previous owners of
// flows.
type Repair struct {
	Key lb.EndpointKey
	// Hash is the ring hash key of all memberships: the current one, or with Rotated the previous
	// one.
	Hash Key
	// Rotated reports that the last change replaced the endpoint's ring hash key. The only
	// membership is then the one before that change.
	Rotated bool
	// Encap, Source and Fragments are as in Endpoint.
	Encap     string
	Source    *lb.SourceAffinity
	Fragments string
	Targets   []Target // ordered by ID
	// Memberships have no times, backends or hosts, because Targets have them. They are ordered,
	// oldest first; the last is the current one. If members are dead or were dead recently, the
	// last but one is a copy of the current one with these members down. If there is only one, no
	// flow was displaced, and only cookies identify the owner of a flow.
	Memberships []Seats
}

// Seats is the input of one ring.
type Seats struct {
	Generation int64
	RingCode   uint8
	Seats      []Seat // ordered by ID
}

// Seat is a member in a ring.
type Seat struct {
	ID, Weight   uint16
	Backup, Down bool
}

// Target is a possible owner of a flow: a member of one of the memberships, and its addresses.
type Target struct {
	ID   uint16
	DIP  netip.Addr
	Port uint16
	// Outer is as in Member. Host is the underlay address of its host: the source of packets that
	// the host forwards.
	Outer, Host netip.Addr
	// Fallen reports that the muxes consider it dead, so nothing is forwarded to it.
	Fallen bool
}

// MakeRepair returns the repair data for the endpoint's hosts. It returns false when the endpoint
// does not repair, or when nothing was displaced recently and packets do not identify their member.
// It omits memberships under another hash key, because their flows hash to other slots. If the last
// change replaced the key, flows from before it are found by the previous key and membership, and
// flows that earlier changes displaced are not found. keys are the live ones; encap is that of the
// VIP's Network.
func MakeRepair(ep *lb.Endpoint, st *EndpointState, keys []Key, encap string) (*Repair, bool) {
	hash, live := hostRingKey(keys, st.KeyID, st.Key)
	if ep.Repairs() == 0 || !live {
		return nil, false
	}
	if out, ok := rotatedRepair(ep, st, keys, encap); ok {
		return out, true
	}
	out := &Repair{Key: st.Key, Hash: hash, Encap: cmp.Or(ep.Encap, encap), Source: ep.Source, Fragments: ep.Fragments}
	for i := range st.History {
		if m := &st.History[i]; m.KeyID == st.KeyID {
			out.Memberships = append(out.Memberships, m.seats())
		}
	}
	if slices.ContainsFunc(st.Members, MemberState.away) {
		out.Memberships = append(out.Memberships, st.Membership.without())
	}
	if len(out.Memberships) == 0 && !ep.Stamped() {
		return nil, false
	}
	out.Memberships = append(out.Memberships, st.Membership.seats())
	out.aimAll(ep, st)
	return out, true
}

// rotatedRepair returns the repair data after the ring key was replaced; false when this was not
// the last change, or the previous key is no longer live.
func rotatedRepair(ep *lb.Endpoint, st *EndpointState, keys []Key, encap string) (*Repair, bool) {
	n := len(st.History)
	if n == 0 || st.History[n-1].KeyID == st.KeyID {
		return nil, false
	}
	before := &st.History[n-1]
	hash, live := hostRingKey(keys, before.KeyID, st.Key)
	if !live {
		return nil, false
	}
	out := &Repair{
		Key: st.Key, Hash: hash, Encap: cmp.Or(ep.Encap, encap), Source: ep.Source, Fragments: ep.Fragments, Rotated: true, Memberships: []Seats{before.seats()},
	}
	out.aimAll(ep, st)
	return out, true
}

// aimAll adds the current members and the previous members in the history as targets.
func (r *Repair) aimAll(ep *lb.Endpoint, st *EndpointState) {
	hosts := HostsOf(ep, st.Key.VIP)
	for _, m := range st.Members {
		r.aim(&m, hosts[m.Backend])
	}
	for _, m := range st.Former() {
		r.aim(&m, m.Host)
	}
	slices.SortFunc(r.Targets, func(a, b Target) int { return cmp.Compare(a.ID, b.ID) })
}

// aim adds a target.
func (r *Repair) aim(m *MemberState, host netip.Addr) {
	r.Targets = append(r.Targets, Target{ID: m.ID, DIP: m.Backend.DIP, Port: m.Backend.Port, Outer: lb.Outer(m.Backend.DIP, host), Host: host, Fallen: m.Fallen})
}

// without returns the membership with all members down that are dead or were dead recently, as
// muxes use it meanwhile.
func (m *Membership) without() Seats {
	out := m.seats()
	for i := range out.Seats {
		out.Seats[i].Down = out.Seats[i].Down || m.Members[i].away()
	}
	return out
}

func (m *Membership) seats() Seats {
	out := Seats{Generation: m.Generation, RingCode: m.RingCode, Seats: make([]Seat, len(m.Members))}
	for i, s := range m.Members {
		out.Seats[i] = Seat{ID: s.ID, Weight: s.Weight, Backup: s.Backup, Down: s.Down}
	}
	return out
}

// CompareRepairs orders repairs by endpoint.
func CompareRepairs(a, b Repair) int { return CompareKeys(a.Key, b.Key) }
