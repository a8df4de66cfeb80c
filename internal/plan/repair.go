package plan

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/shuntlb/shunt/internal/lb"
)

// Repair is what hosts with members of an endpoint must know to find former owners of flows.
type Repair struct {
	Key lb.EndpointKey
	// Hash is the ring hash key of all memberships: the present one, or with Rotated the one before.
	Hash Key
	// Rotated: the last change gave the endpoint another ring hash key. The only membership is that of before.
	Rotated bool
	// Encap, Source and Fragments are as in Endpoint.
	Encap     string
	Source    *lb.SourceAffinity
	Fragments string
	Targets   []Target // ordered by ID
	// Memberships have no times and neither backends nor hosts: Targets do. Oldest first; the last is the present one. Before it is once
	// more the present one, with those down that are dead or were lately, if there are such. When it is the only one, nothing was displaced, and cookies alone
	// say whose a flow is.
	Memberships []Seats
}

// Seats are what a ring is made of.
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

// Target is who a flow may belong to: a member of one of the memberships, and the way to it.
type Target struct {
	ID   uint16
	DIP  netip.Addr
	Port uint16
	// Outer is as in Member. Host is the underlay address of its host: the source of what that sends on.
	Outer, Host netip.Addr
	// Fallen: muxes call it dead, so that nothing is sent on to it.
	Fallen bool
}

// MakeRepair is what the endpoint's hosts need for repair; false when nothing is repaired, or nothing was displaced lately and packets do not say themselves whose
// they are. Memberships under another hash key are left out: no flow has the slot that it had. When the last change was that of the
// key, flows of before are found by the key and membership of then, and those that changes before displaced are not. keys are the live ones; encap is that of the VIP's Network.
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

// rotatedRepair is what hosts need after the ring key was replaced; false when that was not the last change, or the former key is gone.
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

// aimAll adds the members, and those that the history has.
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

// without is the membership as muxes walk it while those are dead that are or were.
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

// CompareRepairs orders them by endpoint.
func CompareRepairs(a, b Repair) int { return CompareKeys(a.Key, b.Key) }
