// Package plan computes the wanted state of one node from the wanted state of the cluster. It is
// pure.
package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/shuntlb/shunt/internal/lb"
)

// Plan is the full wanted state of one node at one revision.
type Plan struct {
	Revision int64
	Epoch    int64
	Node     lb.Node
	// MTU is that of the underlay.
	MTU uint32
	// TunnelSources are the prefixes of outer sources: a mux has at most one of each family, a host
	// has those of all Networks.
	TunnelSources []netip.Prefix
	// VIPs and Underlay are the prefixes of all Networks, for hosts.
	VIPs, Underlay []netip.Prefix
	// Inside: for hosts, the destinations for which connections of servers with SNAT are not
	// translated.
	Inside []netip.Prefix
	// Switches: for hosts, the prefixes that switches of all Networks tunnel from.
	Switches []netip.Prefix
	// RingKeys are the ring hash keys in use by endpoints, ordered by id.
	RingKeys []Key
	// Endpoints: for muxes, ordered by key.
	Endpoints []Endpoint
	// Services: for muxes, ordered by name: the data that endpoints of one service share.
	Services []Service
	// Sources: for muxes, ordered by policy: the source lists that several services share.
	Sources []Sources
	// Bindings: for hosts, ordered by key.
	Bindings []Binding
	// Repairs: for hosts, ordered by key: one per endpoint of their bindings from which flows were
	// displaced recently.
	Repairs []Repair
	// Cookies are the keys of cookies in TCP timestamps, ordered by VIP. A mux has those of the
	// VIPs that it serves, a host those of the VIPs for which it has bindings with Cookie.
	Cookies []CookieKeys
	// CIDs: for muxes, ordered by VIP: the keys of QUIC connection ids of the VIPs that they serve.
	CIDs []CIDKeys
}

// Whole returns an error if a source list that a service uses is missing. Without its list the
// service would accept every source.
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

// Key is a live secret. Its slot in a mux's data plane is ID modulo 2.
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
	// RingTweak derives the VIP's own hash key from that key (ring.Key.Tweaked); 0: there is none.
	RingTweak uint64
	Members   []Member // ordered by ID
	Health    lb.Health
	// The following fields are as in lb.Endpoint, with defaults filled in; Encap is never empty.
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
	// QUIC is not nil if the protocol is QUIC.
	QUIC *lb.QUIC
	// Cookie is lb.Cookie.Form; empty if TCP timestamps carry no cookie.
	Cookie string
	// NAT: the mux rewrites packets both ways (path nat), and the outer destination of members is
	// their DIP.
	NAT bool
	// FlowsFirst: the flow table takes precedence over cookies and connection ids, because it may
	// hold flows from before the endpoint had them (EndpointState.Young).
	FlowsFirst bool
	// KeepDead: flows stay on dead members that are still in Members.
	KeepDead bool
}

// Service holds the data that the endpoints of one service share.
type Service struct {
	Name    string
	VIPs    []netip.Addr
	Limits  lb.Limits
	Sources lb.Sources
	// SourcesOf names the policy in Plan.Sources whose list applies; Sources is then empty.
	SourcesOf string
	// Outbound: the service has no endpoint. Its only VIP is in the tables for replies to
	// connections that servers open.
	Outbound bool
	// Tenant owns the service. Created is the revision that created it. Both are zero in plans from
	// managers of earlier builds.
	Tenant  string
	Created int64
}

// Sources is the source list of a policy, shared by all services that use it.
type Sources struct {
	Policy string
	lb.Sources
}

// Member is a backend in one endpoint (design section 9.1).
type Member struct {
	ID     uint16
	DIP    netip.Addr
	Port   uint16
	Weight uint16 // in the ring; 0 while draining, less than configured during a slow start
	// Backup: in the ring only while backups are active.
	Backup bool
	// Down: dead long enough that the ring is built without it (design section 9.3); its slots use
	// the fallback chain.
	Down bool
	// Outer is the destination of the tunnel, unique per member of an endpoint (design section
	// 9.2).
	Outer netip.Addr
	// Host is the underlay address of its host if only hosts check health, else zero.
	Host netip.Addr
}

// Binding is a member of an endpoint on its host.
type Binding struct {
	Key     lb.EndpointKey
	Service string
	Member  uint16
	Outer   netip.Addr
	DIP     netip.Addr
	DIPPort uint16 // 0: the destination port of the packet (port ranges and all ports)
	Rewrite bool
	Encap   string // lb.EncapIPIP or lb.EncapGUE; empty is IPIP
	// Idle is how long the host keeps its flows; a zero field means that of lb.DefaultHostIdle.
	Idle lb.HostIdle
	// Health holds the checks that the host runs; it has none if the host does not check.
	Health lb.Health
	// Share is its weight among the members on its host for new flows from switches. 0: it gets
	// none; it is also 0 if no Network has switches.
	Share uint16
	// Load is how the host learns the load of the member.
	Load lb.Load
	// Cookie: the host puts the member into TCP timestamps, under the VIP's keys in Plan.Cookies.
	// It stamps them (lb.CookieEVC) if it rewrites, else it answers the handshakes (lb.CookieCO).
	Cookie bool
	// QUIC is not nil if the protocol is QUIC.
	QUIC *lb.QUIC
	// Tenant owns the service. Created is the revision that created it. Both are zero in plans from
	// managers of earlier builds.
	Tenant  string
	Created int64
}
