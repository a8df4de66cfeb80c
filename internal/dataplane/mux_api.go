package dataplane

import (
	"net/netip"

	"github.com/shuntlb/shunt/internal/lb"
)

// MuxTables is the mux's data plane as its agent sees it. *Mux is the real one, *FakeMux the in-memory twin.
// It is not safe for concurrent use but for SetAlive, SetNextHop, Trace, Counters and Alive.
type MuxTables interface {
	// Apply makes the tables equal to the full wanted state: adds, changes, then prunes. Alive bits of members that
	// stay are kept; new members begin as MuxMember.Alive says. Nothing is published unless all of it fits.
	Apply(MuxState) error
	// SetAlive sets the alive bits of members: one atomic store each. Unknown ones are ignored.
	SetAlive([]MemberAlive)
	// Alive reads the alive bit of a member. Of tables that were adopted it is what the agent before obeyed last.
	Alive(e lb.EndpointKey, member uint16) (alive, known bool)
	// SetNextHops replaces the way to outer destinations: address and how it is reached; a zero NextHop means unresolved.
	SetNextHops(map[netip.Addr]NextHop) error
	// Trace walks the tables as the program does.
	Trace(Packet) (Trace, error)
	// Counters sums over the CPUs.
	Counters() (MuxCounters, error)
	// Close lets go of the handles; the program keeps forwarding from its pins.
	Close() error
}

// MuxState is the full wanted state of the mux's tables.
type MuxState struct {
	RingKeys      map[uint8][16]byte // by slot (key id modulo 2)
	TunnelSources []netip.Prefix     // at most one IPv4, one IPv6 (/64)
	Endpoints     []MuxEndpoint
}

// MuxEndpoint is one endpoint with its finished ring.
type MuxEndpoint struct {
	Key        lb.EndpointKey
	Generation int64
	KeySlot    uint8
	RingCode   uint8
	Ring       []uint16 // 1<<RingCode member ids, or nil when no member has weight
	Members    []MuxMember
}

// MuxMember is a member of an endpoint.
type MuxMember struct {
	ID        uint16
	Outer     netip.Addr
	MTU       uint32 // of the path to Outer
	Choosable bool   // weight above 0
	Alive     bool   // initial state
}

// MemberAlive is one health flip.
type MemberAlive struct {
	Endpoint lb.EndpointKey
	Member   uint16
	Alive    bool
}

// NextHop is how an outer destination is reached.
type NextHop struct {
	MAC     [6]byte
	Ifindex int
}

// Packet is what Trace is asked about.
type Packet struct {
	VNI        uint32
	Client     netip.Addr
	VIP        netip.Addr
	Protocol   lb.Protocol
	ClientPort uint16
	Port       uint16
}

// Trace is the walk of a packet.
type Trace struct {
	Verdict  string // "forwarded", or the reason's name
	Endpoint lb.EndpointKey
	Member   uint16
	Outer    netip.Addr
	Source   netip.Addr // outer source
	Steps    []string
}

// MuxCounters are totals since the maps were made.
type MuxCounters struct {
	Reasons map[string]uint64 // by name: "no_endpoint"
	Members map[MemberKey]Counter
	// Endpoints count what found the endpoint, forwarded or not.
	Endpoints map[lb.EndpointKey]Counter
}

// MemberKey names a member of an endpoint.
type MemberKey struct {
	Endpoint lb.EndpointKey
	Member   uint16
}

// Counter counts packets and the bytes of inner IP packets.
type Counter struct{ Packets, Bytes uint64 }
