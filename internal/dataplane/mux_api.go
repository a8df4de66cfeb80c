package dataplane

import (
	"context"
	"net/netip"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

// MuxTables is the mux's data plane as its agent sees it. *Mux is the real one, *FakeMux the in-memory twin.
// It is not safe for concurrent use but for SetAlive, SetBackup, SetSchedules, Scheduled, SetNextHops, Sweep, Flows, Pressure, Trace, Counters,
// SetNATAddresses, NATUse and Alive.
type MuxTables interface {
	// Apply makes the tables equal to the full wanted state: adds, changes, then prunes. Alive bits of members that
	// stay are kept; new members begin as MuxMember.Alive says. Nothing is published unless all of it fits.
	Apply(MuxState) error
	// Change does for some VIPs what Apply does for all, at the cost of these alone; all else stays as the last Apply or Change
	// gave it. It is refused before the first Apply.
	Change(MuxChange) error
	// SetAlive sets the alive bits of members: one atomic store each. Unknown ones are ignored.
	SetAlive([]MemberAlive)
	// Alive reads the alive bit of a member. Of tables that were adopted it is what the agent before obeyed last.
	Alive(e lb.EndpointKey, member uint16) (alive, known bool)
	// Rings reads the rings of an endpoint as the last Apply or Change gave them, for MuxEndpoint.KeepRings: nil when there are none.
	Rings(e lb.EndpointKey) (ring, backup []uint16)
	// SetNextHops replaces the way to outer destinations: address and how it is reached; a zero NextHop means unresolved.
	SetNextHops(map[netip.Addr]NextHop) error
	// SetSchedules gives endpoints with a scheduler the sequences and loads by which new flows are given to members from then on. Unknown endpoints
	// and members, and endpoints of another scheduler, are ignored. On error those that were no room for keep what they had.
	SetSchedules([]Schedule) error
	// Scheduled tells what packets made of what schedulers of endpoints go by.
	Scheduled([]lb.EndpointKey) []Scheduled
	// SetBackup lets the backups of endpoints take part or not: one atomic store each. Unknown endpoints are ignored.
	SetBackup(map[lb.EndpointKey]bool)
	// Sweep goes once through the flow table: forgets flows that are idle for too long, follows members whose words
	// moved, counts the rest. Then through the records of connections: it frees those that are idle or closed. Forwarding goes on meanwhile.
	Sweep() (FlowTotals, error)
	// Flows lists for each endpoint its connections that have records and its flows in the flow table, at most max in all. Neither holds addresses
	// of clients. It walks each table once, whatever the number of endpoints, and returns the error of ctx when that ends.
	Flows(ctx context.Context, of []lb.EndpointKey, max int) ([][]Flow, error)
	// Pressure tells how full the tables are.
	Pressure() []TablePressure
	// Trace walks the tables as the program does.
	Trace(Packet) (Trace, error)
	// Counters sums over the CPUs.
	Counters() (MuxCounters, error)
	// SetNATAddresses replaces the addresses that packets of path nat leave from towards servers, at most MaxNATAddresses of each family. Sessions of
	// addresses that are gone end, the others stay.
	SetNATAddresses([]NATAddress) error
	// NATUse is how many sessions of path nat there were at the last Sweep, and how many there is room for.
	NATUse() (used, capacity uint64)
	// Close lets go of the handles; the program keeps forwarding from its pins.
	Close() error
}

// MuxState is the full wanted state of the mux's tables.
type MuxState struct {
	RingKeys      map[uint8][16]byte // by slot (key id modulo 2)
	TunnelSources []netip.Prefix     // at most one IPv4, one IPv6 (/64)
	Endpoints     []MuxEndpoint
	// VIPs is what applies to whole VIPs. Those that neither have endpoints nor are Outbound are passed over; VIPs of endpoints that are not
	// here have no limits.
	VIPs []MuxVIP
}

// MuxVIP is what applies to a whole VIP.
type MuxVIP struct {
	VNI     uint32
	VIP     netip.Addr
	Limits  lb.Limits   // 0: none; Ping too
	Sources *SourceList // nil: every source
	// Outbound: the VIP is in the tables also without endpoints, for its ports that servers send from (MuxSNAT).
	Outbound bool
}

// SourceList is a list of source prefixes (lb.Sources). Lists with equal digests are equal; it is never changed.
type SourceList struct {
	Digest      [32]byte
	Allow, Deny []netip.Prefix
}

// MuxEndpoint is one endpoint with its finished ring.
type MuxEndpoint struct {
	Key        lb.EndpointKey
	Generation int64
	KeySlot    uint8
	// RingTweak makes the endpoint's own hash key of that of the slot (ring.Key.Tweaked). 0: it uses the slot's.
	RingTweak uint64
	RingCode  uint8
	Ring      []uint16 // 1<<RingCode member ids, or nil when no member has weight
	Members   []MuxMember
	// BackupRing is the ring while backups take part: nil when there are none. UseBackup is the initial state.
	BackupRing []uint16
	BackupCode uint8
	UseBackup  bool
	// KeepRings: Ring and BackupRing are those that the tables got by the last Apply or Change, and not given again. It is refused
	// where they have none, and where a ring names a member that goes.
	KeepRings bool
	Affinity  Affinity
	// Scheduler is how new flows are given to members; it needs an affinity that remembers them.
	Scheduler ScheduleKind
	// Cookie is what cookies are read with: with AffinityCookie, and one of tcp.
	Cookie *MuxCookie
	// QUIC, when not nil, is how connection ids name members, before the flow table is asked: with AffinityCookie, and one of udp.
	QUIC *MuxQUIC
	// Source: bits of the client's address that count, 0 for whole flows; in affinity flow clients are remembered for
	// SourceFor.
	SourcePrefix4, SourcePrefix6 uint8
	SourceFor                    time.Duration
	OnePacket                    bool
	Idle                         lb.Idle
	// Track: connections whose packets show a valid cookie, or a connection id of a member, have records. With Cookie or QUIC.
	Track bool
	// FlowsFirst: live entries of the flow table go before cookies and connection ids. With Cookie or QUIC, for as long as connections from before the
	// endpoint had cookies may be there.
	FlowsFirst bool
	// KeepDead: flows stay at members that are dead but still in Members. New flows do not go there.
	KeepDead        bool
	Fragments3Tuple bool
	Encap           Encap
	// NAT: the mux rewrites packets both ways instead of encapsulating them, and remembers each flow (path nat). The members' outer destinations are the
	// servers themselves. It needs one of tcp or udp, and room for sessions (MuxLimits.NAT).
	NAT bool
}

// Affinity is what the mux remembers of a flow.
type Affinity uint8

// AffinityHash: nothing. AffinityFlow: the member, in the flow table. AffinityCookie: the packets carry the member; the flow table has those that do not.
const (
	AffinityHash Affinity = iota
	AffinityFlow
	AffinityCookie
)

// Encap is a form of tunnel.
type Encap uint8

// EncapIPIP is IP in IP (RFC 2003, RFC 2473), EncapGUE is UDP with a GUE header that names the member.
const (
	EncapIPIP Encap = iota
	EncapGUE
)

// encapNone is how packets of path nat go to their server: as they are.
const encapNone Encap = 255

// carrier is how packets of the endpoint go to their members.
func (e MuxEndpoint) carrier() Encap {
	if e.NAT {
		return encapNone
	}
	return e.Encap
}

// MuxMember is a member of an endpoint.
type MuxMember struct {
	ID        uint16
	Outer     netip.Addr
	MTU       uint32 // of the path to Outer
	Port      uint16 // of the server: with MuxEndpoint.NAT alone, else 0
	Choosable bool   // weight above 0
	Alive     bool   // initial state
}

// FlowClass is how much the mux knows of a flow.
type FlowClass uint8

// FlowUntrusted: only first packets were seen. FlowTrusted: a later segment with ACK, or a second datagram.
// FlowClosing: a FIN or RST was seen.
const (
	FlowUntrusted FlowClass = 1
	FlowTrusted   FlowClass = 2
	FlowClosing   FlowClass = 3
)

// Flow is an entry of the flow table, or a record of a connection.
type Flow struct {
	Member uint16
	Class  FlowClass
	Age    time.Duration // since the last packet that refreshed it
	Source bool          // remembers a client (MuxEndpoint.SourceFor), not a flow
	// Tracked: a connection's record (MuxEndpoint.Track), not an entry of the flow table. It counts what was sent to the member since the first packet that named
	// it to this program. FlowUntrusted is on probation.
	Tracked        bool
	Packets, Bytes uint64 // of inner IP packets
}

// FlowTotals is what Sweep saw.
type FlowTotals struct {
	Capacity uint64
	ByClass  map[FlowClass]uint64
	Members  map[MemberKey]uint64 // flows of members that have any
	Expired  uint64
	Over     []Share // VIPs that hold more than their share of a table
	Pressed  bool    // a table that VIPs share is filled to a quarter at least: shares may be exceeded before long
}

// Share is a VIP that holds more than its share of a table.
type Share struct {
	VIP   lb.EndpointKey
	Table string // of a mux as in TablePressure: "flows" or "nat_sessions", or "nat_untrusted" of the latter; of a host "flows"
	Held  uint64
	Share uint64 // the most that a VIP may hold while the table is under pressure
}

// TablePressure is how full a table is, in its own unit.
type TablePressure struct {
	Name           string // "endpoints", "members", "backends", "rings", "flows", "sources", "source_lists", "port_ranges", "devices", "snat_vips", "quic_endpoints", "cookie_sets", "nat_sessions", "connections"
	Used, Capacity uint64
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
	Ifindex int    // that frames leave by: the parent of a VLAN device, a slave of a bond
	Tag     uint32 // TPID:16 | TCI:16 of the VLAN tag that frames get, 0: none
}

// Packet is what Trace is asked about.
type Packet struct {
	VNI        uint32
	Client     netip.Addr
	VIP        netip.Addr
	Protocol   lb.Protocol
	ClientPort uint16
	Port       uint16
	Segment    Segment
	Echo       uint32 // the timestamp that a segment echoes (TSecr, RFC 7323), 0: none
	// CID is the destination's connection id of a QUIC packet; nil: the first packet of a connection.
	CID []byte
}

// Segment is what a packet means to the flow that it is of.
type Segment uint8

// Segments of a flow: a TCP SYN; a later one with ACK, or a datagram; FIN or RST.
const (
	SegmentOpening Segment = iota
	SegmentLater
	SegmentClosing
)

// Trace is the walk of a packet.
type Trace struct {
	Verdict  string // "forwarded", or the reason's name
	Endpoint lb.EndpointKey
	Member   uint16
	Outer    netip.Addr
	Source   netip.Addr // outer source
	SNAT     bool       // it goes to the server that sends from the VIP's port: there is no endpoint and no member
	Steps    []string
}

// MuxCounters are totals since the maps were made.
type MuxCounters struct {
	Reasons map[string]uint64 // by name: "no_endpoint"
	Members map[MemberKey]Counter
	// Endpoints count what found the endpoint, forwarded or not; they never go back while the endpoint stays.
	Endpoints map[lb.EndpointKey]Counter
	// Refused count the part of Endpoints that went to no member since the tables were made, by endpoint; endpoints without any are left out. Tables of another size
	// count from 0.
	Refused map[lb.EndpointKey]Counter
	// Answers count what came back to connections that servers opened, by VIP with SNAT, forwarded or not. Key: the VIP without protocol and port.
	Answers map[lb.EndpointKey]Counter
}

// MemberKey names a member of an endpoint.
type MemberKey struct {
	Endpoint lb.EndpointKey
	Member   uint16
}

// Counter counts packets and the bytes of inner IP packets.
type Counter struct{ Packets, Bytes uint64 }
