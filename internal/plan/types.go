// Package plan computes what one node must know from the wanted state of all. It is pure.
package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/shuntlb/shunt/internal/lb"
)

// Plan is the full wanted state of one node as of one revision.
type Plan struct {
	Revision int64
	Epoch    int64
	Node     lb.Node
	// MTU of the underlay.
	MTU uint32
	// TunnelSources are the prefixes outer sources come from: a mux has at most one of each family, a host those of all
	// Networks.
	TunnelSources []netip.Prefix
	// VIPs and Underlay are the prefixes of all Networks, for hosts.
	VIPs, Underlay []netip.Prefix
	// Inside: for hosts, the destinations that connections of servers with SNAT go to as they are.
	Inside []netip.Prefix
	// Switches: for hosts, the prefixes that switches of all Networks tunnel from.
	Switches []netip.Prefix
	// RingKeys are the ring hash keys that endpoints name, ordered by id.
	RingKeys []Key
	// Endpoints: for muxes, ordered by key.
	Endpoints []Endpoint
	// Services: for muxes, ordered by name: what endpoints of one service share.
	Services []Service
	// Sources: for muxes, ordered by policy: the lists that several services take from one.
	Sources []Sources
	// Bindings: for hosts, ordered by key.
	Bindings []Binding
	// Repairs: for hosts, ordered by key: of endpoints of their bindings from which something was displaced lately.
	Repairs []Repair
	// Cookies are the keys of cookies in TCP timestamps, ordered by VIP: of a mux those of the VIPs that it serves, of a host those of the
	// VIPs that it has bindings with Cookie of.
	Cookies []CookieKeys
	// CIDs: for muxes, ordered by VIP: the keys of QUIC connection ids of the VIPs that they serve.
	CIDs []CIDKeys
}

// Whole tells whether every list of sources that services take is there: without it they would let everybody through.
func (p *Plan) Whole() error {
	for i := range p.Services {
		of := p.Services[i].SourcesOf
		if of == "" {
			continue
		}
		if _, found := slices.BinarySearchFunc(p.Sources, of, func(s Sources, of string) int { return cmp.Compare(s.Policy, of) }); !found {
			return fmt.Errorf("service %s: the sources of policy %s are not in the plan", p.Services[i].Name, of)
		}
	}
	return nil
}

// Key is a live secret; the slot in the data plane of one that muxes get is ID modulo 2.
type Key struct {
	ID  uint32
	Key [16]byte
}

// Endpoint is an endpoint of one VIP, as a mux needs it.
type Endpoint struct {
	Key        lb.EndpointKey
	Service    string
	Generation int64
	// RingCode is the binary logarithm of the ring's size.
	RingCode uint8
	// KeyID names the ring hash key.
	KeyID uint32
	// RingTweak makes the VIP's own hash key of that one (ring.Key.Tweaked); 0: it has none.
	RingTweak uint64
	Members   []Member // ordered by ID
	Health    lb.Health
	// The rest is as in lb.Endpoint, defaults filled in; Encap is never empty.
	Affinity    string
	Source      *lb.SourceAffinity
	OnePacket   bool
	Idle        lb.Idle
	Fragments   string
	Encap       string
	BackupBelow uint8
	FailOpen    bool
	Scheduler   string
	// ScheduleBy is lb.Schedule.By.
	ScheduleBy string
	Track      bool
	// QUIC, when not nil, says that the protocol is QUIC.
	QUIC *lb.QUIC
	// Cookie is lb.Cookie.Form: empty where TCP timestamps carry none.
	Cookie string
	// NAT: the mux rewrites packets both ways (path nat), and the outer destination of members is their DIP.
	NAT bool
	// FlowsFirst: the flow table goes before cookies and connection ids, because flows from before the endpoint had these may be there (EndpointState.Young).
	FlowsFirst bool
	// KeepDead: flows stay at members that are dead but in Members.
	KeepDead bool
}

// Service is what the endpoints of one service share.
type Service struct {
	Name    string
	VIPs    []netip.Addr
	Limits  lb.Limits
	Sources lb.Sources
	// SourcesOf names the policy whose list in Plan.Sources counts; Sources is empty then.
	SourcesOf string
	// Outbound: the service has no endpoint. Its VIP, the only one, is in the tables for answers to connections that servers open.
	Outbound bool
	// Tenant owns the service, Created is the revision that created it; empty and 0 from managers of former builds.
	Tenant  string
	Created int64
}

// Sources is the list of a policy, for all services that take it from there.
type Sources struct {
	Policy string
	lb.Sources
}

// Member is a backend's place in one endpoint (design section 9.1).
type Member struct {
	ID     uint16
	DIP    netip.Addr
	Port   uint16
	Weight uint16 // in the ring; 0 while draining, less than configured during a slow start
	// Backup: in the ring only while backups take part.
	Backup bool
	// Down: dead for so long that the ring is made without it (design section 9.3): its slots are those of the
	// fallback chain.
	Down bool
	// Outer is the tunnel's destination, unique per member of an endpoint (design section 9.2).
	Outer netip.Addr
	// Host is the underlay address of its host, with health from host alone; else zero.
	Host netip.Addr
}

// Binding is a member of an endpoint as its host needs it.
type Binding struct {
	Key     lb.EndpointKey
	Service string
	Member  uint16
	Outer   netip.Addr
	DIP     netip.Addr
	DIPPort uint16 // 0: the port the packet has (ranges and all ports)
	Rewrite bool
	Encap   string // lb.EncapIPIP or lb.EncapGUE; empty is IPIP
	// Idle is how long the host keeps its flows; a zero field is that of lb.DefaultHostIdle.
	Idle lb.HostIdle
	// Health is what the host checks; without checks when it does not.
	Health lb.Health
	// Share is its weight among the members on its host for new flows that come from switches; 0: it gets none, and where no Network has
	// switches.
	Share uint16
	// Load is how it learns what the member says of its load.
	Load lb.Load
	// Cookie: the host puts the member into TCP timestamps, under the VIP's keys in Plan.Cookies: by stamping them (lb.CookieEVC) where it rewrites,
	// else by making the handshakes (lb.CookieCO).
	Cookie bool
	// QUIC, when not nil, says that the protocol is QUIC.
	QUIC *lb.QUIC
	// Tenant owns the service, Created is the revision that created it; empty and 0 from managers of former builds.
	Tenant  string
	Created int64
}
