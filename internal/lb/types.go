// Package lb holds Shunt's domain types, their strict YAML form, their defaults and their validation. It is pure.
package lb

import (
	"net/netip"
	"time"
)

// Kind names an object kind as it is written in YAML.
type Kind string

// The kinds this version knows.
const (
	KindService Kind = "Service"
	KindNode    Kind = "Node"
	KindNetwork Kind = "Network"
	KindTenant  Kind = "Tenant"
	KindPolicy  Kind = "Policy"
)

// Kinds are all kinds, as they are listed to people.
var Kinds = []Kind{KindService, KindNode, KindNetwork, KindTenant, KindPolicy}

// Object is one of *Service, *Node, *Network, *Tenant, *Policy.
type Object interface {
	Kind() Kind
	ObjectName() string
}

// Protocol is the transport protocol of an endpoint; its number is IANA's.
type Protocol uint8

// Protocols an endpoint may have. AnyProtocol takes IANA's reserved number; such an endpoint takes every packet to its
// VIP that no other endpoint takes.
const (
	TCP         Protocol = 6
	UDP         Protocol = 17
	AnyProtocol Protocol = 255
)

// EndpointKey is the natural key of an endpoint: (VNI, VIP, protocol, port or range of ports).
type EndpointKey struct {
	VNI      uint32 // 24 bits; 0 is the underlay
	VIP      netip.Addr
	Protocol Protocol
	Port     uint16 // the only port, or the first of a range; 0 for all ports
	PortEnd  uint16 // the last port of a range, 65535 for all ports; 0 for a single port
}

// AllPorts is the PortEnd of a key that has all ports.
const AllPorts = 65535

// BackendKey is the natural key of a backend within an endpoint of one VIP.
type BackendKey struct {
	DIP  netip.Addr
	Port uint16 // 0: packets keep the port they have (ranges and all ports)
}

// Service is a named set of VIPs with their endpoints, owned by a tenant.
type Service struct {
	Name   string
	Tenant string
	VIPs   []netip.Addr
	// Endpoints may be empty where SNAT is not: see Outbound.
	Endpoints []Endpoint
	// SNAT: servers whose outbound connections leave with the VIP, IPv4 alone.
	SNAT []SNATServer
	// Limits, Sources and Placement that are nil are those of the Policy, else the defaults: see Effective.
	Limits    *Limits
	Sources   *Sources
	Placement *Placement
	// Policy is the name of one; empty for none.
	Policy string
}

// Limits bound what each VIP of a service takes, per mux and second; 0 is no limit.
type Limits struct {
	Packets     uint64
	Connections uint64 // new flows
	Ping        uint64 // echo requests answered; never 0 once defaults are filled in
}

// Sources say which clients a service takes, by their addresses. The longest prefix that holds an address decides. What
// no prefix holds is let through when Allow is empty, else refused.
type Sources struct {
	Allow []netip.Prefix
	Deny  []netip.Prefix
}

// Placement says which muxes serve a VIP.
type Placement struct {
	// Replicas is the number of muxes of each VIP; 0: every mux.
	Replicas uint32
	// By is what is spread evenly: PlaceByVIPs or PlaceByLoad.
	By string
}

// Rewrite says who turns VIP:port into DIP:port.
type Rewrite string

// RewriteHost: the host agent translates. RewriteNone: the server owns the VIP, packets stay untouched.
const (
	RewriteHost Rewrite = "host"
	RewriteNone Rewrite = "none"
)

// Endpoint is what a service offers on each of its VIPs.
type Endpoint struct {
	Protocol Protocol
	Port     uint16 // as in EndpointKey
	PortEnd  uint16
	Path     string // PathDSR or PathNAT
	Affinity string // AffinityHash, AffinityFlow or AffinityCookie
	// QUIC, when not nil, says that the protocol is QUIC; Protocol is UDP, which is what is on the wire, and in keys and tables.
	QUIC *QUIC
	// Cookie is for affinity cookie with protocol tcp.
	Cookie Cookie
	// Track: connections have records, which count their packets and bytes. Affinity cookie only.
	Track bool
	// Source, when not nil, keeps the flows of one client (or prefix of clients) on one backend.
	Source    *SourceAffinity
	Scheduler string // one of Scheduler…
	Schedule  Schedule
	Rewrite   Rewrite
	Backends  []Backend
	Health    Health
	// OnePacket sends every datagram to a backend of its own choice: for protocols of one question and one answer.
	OnePacket bool
	Idle      Idle
	// Fragments is FragmentsDrop or Fragments3Tuple: at most one endpoint of a VIP and protocol.
	Fragments string
	Encap     string // EncapIPIP or EncapGUE; empty: the Network's
	// BackupBelow is the share of healthy weight among the backends that are not backups, in percent, below which
	// backups take part.
	BackupBelow uint8
	// FailOpen: when all backends are unhealthy they are treated as healthy; otherwise the VIP is withdrawn.
	FailOpen bool
	// Unhealthy is UnhealthyKeep or UnhealthyMove; empty is as KeepsDead says.
	Unhealthy string
	// SlowStart is the time in which a new backend, or one that came back, grows to its weight; 0: at once.
	SlowStart time.Duration
	// DrainTimeout is how long a draining backend keeps its flows; 0: without end.
	DrainTimeout time.Duration
	// RepairWindow is for how long hosts send packets of connections that they do not know on to the backend that had them before a
	// change; 0: they do not. Of endpoints that are not TCP it is nil, else never once defaults are filled in.
	RepairWindow *time.Duration
	// HostIdle is how long hosts keep flows without packets; a zero field is that of DefaultHostIdle. It has no part that the protocol does not
	// have (HostIdle.Of), and none at all with RewriteNone: hosts remember no flow then.
	HostIdle HostIdle
	// Load is how hosts learn what backends say of their own load; what is zero is as by default.
	Load Load
}

// What becomes of the flows of a backend that is unhealthy but still configured: they stay with it, or other backends get their packets.
const (
	UnhealthyKeep = "keep"
	UnhealthyMove = "move"
)

// KeepsDead tells whether an unhealthy backend keeps its flows: by default where their packets name it (affinity cookie).
func (e *Endpoint) KeepsDead() bool {
	return e.Unhealthy == UnhealthyKeep || e.Unhealthy == "" && e.Cookies()
}

// Repairs is the endpoint's RepairWindow, 0 where there is none.
func (e *Endpoint) Repairs() time.Duration {
	if e.RepairWindow == nil {
		return 0
	}
	return *e.RepairWindow
}

// SourceAffinity says which bits of a client's address count, and for how long a client without packets is remembered
// (affinity flow only).
type SourceAffinity struct {
	Prefix4, Prefix6 uint8
	For              time.Duration
}

// Idle is how long flows without packets stay in the mux's flow table: before and after they are trusted. It is zero for
// endpoints that remember no flow (KeepsFlows). OpeningIdle says what else bounds it.
type Idle struct {
	Untrusted, Trusted time.Duration
}

// Backend is a server: one DIP, or one of each family.
type Backend struct {
	DIPs   []netip.Addr
	Port   uint16     // 0 for ranges and all ports: packets keep theirs; else never 0 once defaults are filled in
	Host   netip.Addr // zero only with path nat, where nothing is sent to it
	Weight uint16     // 0 to 1000
	Drain  bool
	// Backup: takes part only when too few of the others are healthy (Endpoint.BackupBelow).
	Backup bool
}

// Role is what a node does.
type Role string

// Roles of nodes in this version.
const (
	RoleMux  Role = "mux"
	RoleHost Role = "host"
)

// Node is a machine that runs a mux or a host agent.
type Node struct {
	Name      string
	Role      Role
	Zone      string
	Addresses []netip.Addr // at most one of each family
	BGP       *BGP
	Drain     bool
	Capacity  Capacity // muxes only
	// NAT, of muxes only, is for endpoints with path nat; nil: the mux serves none.
	NAT *NAT
}

// Capacity is what a mux can take; 0 is no limit.
type Capacity struct {
	VIPs    uint32
	Packets uint64 // a second
}

// BGP is how a mux speaks to its routers.
type BGP struct {
	ASN      uint32
	RouterID netip.Addr // IPv4 form; zero: the node's first IPv4 address
	Peers    []BGPPeer
}

// BGPPeer is one router.
type BGPPeer struct {
	Address      netip.Addr
	ASN          uint32
	PasswordFile string
	BFD          *BFD
	// TTLSecurity is how many hops away the router is at most, by the TTL of its packets (RFC 5082); 0: it is not looked at.
	TTLSecurity uint32
	// Multihop is the TTL of packets to an external router that is not on the link; 0: it is.
	Multihop uint32
}

// BFD are the timers of a BFD session (RFC 5880 section 6.8).
type BFD struct {
	Transmit   time.Duration
	Receive    time.Duration
	Multiplier uint32
}

// Network says which addresses belong to whom.
type Network struct {
	Name          string
	VIPs          []netip.Prefix
	Underlay      []netip.Prefix
	MTU           uint32
	TunnelSources []netip.Prefix // at most one of each family
	Encap         string         // EncapIPIP or EncapGUE, for endpoints that say nothing
	// Switches are where switches tunnel from: hosts choose the member of what comes from there to their own address.
	Switches []netip.Prefix
	// SNAT are the times of ports of its VIPs that are leased to servers.
	SNAT SNATTimes
}

// Tenant owns services and addresses. One that services name need not exist: then it has the default quotas and owns no address.
type Tenant struct {
	Name   string
	Weight uint32 // share of leases of SNAT ports while several tenants ask
	VNI    uint32 // of its addresses; 0 is the underlay
	Quotas Quotas
	// DIPs are the prefixes of its servers' addresses, VIPs those of its VIPs. No two Tenants' overlap.
	DIPs, VIPs []netip.Prefix
	// Hosts are the prefixes of the machines that its servers are on. Several Tenants may list the same machine.
	Hosts []netip.Prefix
	// Shared are the DIPs and VIPs that services of other tenants may name too.
	Shared []Share
}

// Share permits other tenants to name addresses of a Tenant: DIPs as backends and check addresses, not as SNAT sources.
type Share struct {
	Tenants []string
	// DIPs are each inside the Tenant's DIPs, VIPs inside its VIPs.
	DIPs, VIPs []netip.Prefix
}

// Unlimited is the value of a quota that bounds nothing; YAML writes it "unlimited".
const Unlimited = 1<<32 - 1

// Quotas bound what a tenant may have and do. 0 of the first four is the value of DefaultQuotas
// for changes by callers of role tenant, and no limit for changes by others.
type Quotas struct {
	Services  uint32
	Endpoints uint32 // of all its services, each counted once for every VIP
	Backends  uint32 // of all its endpoints, and servers that SNAT names with their host
	Changes   uint32 // requests that change something, per minute
	// SNATPorts are leased to all its DIPs at most, SNATPortsPerDIP to one of them for each VIP; 0: 1,024.
	SNATPorts, SNATPortsPerDIP uint32
	// Probes are those that health checks make in a second, as one mux sends them; 0: DefaultProbes.
	Probes uint32
}

// Policy is what several services share: each of its fields that is not nil counts for a service that names the policy
// and does not say anything of that field itself.
type Policy struct {
	Name string
	// Tenant whose services may name it; those of every tenant when empty.
	Tenant    string
	Limits    *Limits
	Sources   *Sources
	Placement *Placement
}

// Kind implements Object.
func (*Service) Kind() Kind { return KindService }

// ObjectName implements Object.
func (s *Service) ObjectName() string { return s.Name }

// Kind implements Object.
func (*Node) Kind() Kind { return KindNode }

// ObjectName implements Object.
func (n *Node) ObjectName() string { return n.Name }

// Kind implements Object.
func (*Network) Kind() Kind { return KindNetwork }

// ObjectName implements Object.
func (n *Network) ObjectName() string { return n.Name }

// Kind implements Object.
func (*Tenant) Kind() Kind { return KindTenant }

// ObjectName implements Object.
func (t *Tenant) ObjectName() string { return t.Name }

// Kind implements Object.
func (*Policy) Kind() Kind { return KindPolicy }

// ObjectName implements Object.
func (p *Policy) ObjectName() string { return p.Name }

// String returns the protocol's name in YAML.
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case AnyProtocol:
		return "any"
	}
	return "?"
}
