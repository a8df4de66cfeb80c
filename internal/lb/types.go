// Package lb holds Shunt's domain types, their strict YAML form, their defaults and their
// validation. It is pure.
package lb

import (
	"net/netip"
	"time"
)

// Kind names an object kind as it is written in YAML.
type Kind string

// The kinds of this version.
const (
	KindService Kind = "Service"
	KindNode    Kind = "Node"
	KindNetwork Kind = "Network"
	KindTenant  Kind = "Tenant"
	KindPolicy  Kind = "Policy"
)

// Kinds lists all kinds in display order.
var Kinds = []Kind{KindService, KindNode, KindNetwork, KindTenant, KindPolicy}

// Object is one of *Service, *Node, *Network, *Tenant, *Policy.
type Object interface {
	Kind() Kind
	ObjectName() string
}

// Protocol is the transport protocol of an endpoint; its number is IANA's.
type Protocol uint8

// Protocols of endpoints. AnyProtocol is IANA's reserved number; such an endpoint receives every
// packet to its VIP that no other endpoint receives.
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
	Port uint16 // 0: packets keep their port (ranges and all ports)
}

// Service is a named set of VIPs with their endpoints, owned by a tenant.
type Service struct {
	Name   string
	Tenant string
	VIPs   []netip.Addr
	// Endpoints may be empty if SNAT is not: see Outbound.
	Endpoints []Endpoint
	// SNAT lists servers whose outbound connections leave with the VIP, IPv4 only.
	SNAT []SNATServer
	// Limits, Sources and Placement that are nil come from the Policy, else from the defaults: see
	// Effective.
	Limits    *Limits
	Sources   *Sources
	Placement *Placement
	// Policy is the name of a policy; empty for none.
	Policy string
}

// Limits bounds the traffic to each VIP of a service, per mux and second; 0 is no limit.
type Limits struct {
	Packets     uint64
	Connections uint64 // new flows
	Ping        uint64 // echo requests answered; never 0 once defaults are filled in
}

// Sources selects the clients of a service by their addresses. The longest prefix that contains an
// address decides. An address in no prefix is accepted when Allow is empty, else refused.
type Sources struct {
	Allow []netip.Prefix
	Deny  []netip.Prefix
}

// Placement selects the muxes that serve a VIP.
type Placement struct {
	// Replicas is the number of muxes of each VIP; 0: every mux.
	Replicas uint32
	// By is the quantity to spread evenly: PlaceByVIPs or PlaceByLoad.
	By string
}

// Rewrite selects where VIP:port is translated to DIP:port.
type Rewrite string

// RewriteHost: the host agent translates. RewriteNone: the server owns the VIP, packets are not
// modified.
const (
	RewriteHost Rewrite = "host"
	RewriteNone Rewrite = "none"
)

// Endpoint is a protocol and port range of a service on each of its VIPs.
type Endpoint struct {
	Protocol Protocol
	Port     uint16 // as in EndpointKey
	PortEnd  uint16
	Path     string // PathDSR or PathNAT
	Affinity string // AffinityHash, AffinityFlow or AffinityCookie
	// QUIC is not nil if the protocol is QUIC; Protocol is then UDP, as in packets, keys and
	// tables.
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
	// OnePacket balances every datagram on its own, for protocols of one request and one response.
	OnePacket bool
	Idle      Idle
	// Fragments is FragmentsDrop or Fragments3Tuple: at most one endpoint of a VIP and protocol.
	Fragments string
	Encap     string // EncapIPIP or EncapGUE; empty: the Network's
	// BackupBelow is the share of healthy weight among the backends that are not backups, in
	// percent, below which backups are active.
	BackupBelow uint8
	// FailOpen: when all backends are unhealthy they are treated as healthy; otherwise the VIP is
	// withdrawn.
	FailOpen bool
	// Unhealthy is UnhealthyKeep or UnhealthyMove; empty: see KeepsDead.
	Unhealthy string
	// SlowStart is the time in which a new or returning backend grows to its weight; 0: no slow
	// start.
	SlowStart time.Duration
	// DrainTimeout is how long a draining backend keeps its flows; 0: without limit.
	DrainTimeout time.Duration
	// RepairWindow is how long after a change hosts forward packets of unknown connections to the
	// backend that had them before; 0: they do not. It is nil for endpoints that are not TCP, else
	// never nil once defaults are filled in.
	RepairWindow *time.Duration
	// HostIdle is how long hosts keep flows without packets; a zero field means that of
	// DefaultHostIdle. Fields of other protocols are zero (HostIdle.Of), and all with RewriteNone,
	// because hosts then track no flows.
	HostIdle HostIdle
	// Load configures how hosts learn the load of backends; zero fields have their defaults.
	Load Load
}

// Values of Endpoint.Unhealthy: flows of an unhealthy backend that is still configured stay with
// it, or move to other backends.
const (
	UnhealthyKeep = "keep"
	UnhealthyMove = "move"
)

// KeepsDead reports whether an unhealthy backend keeps its flows: by default if their packets name
// it (affinity cookie).
func (e *Endpoint) KeepsDead() bool {
	return e.Unhealthy == UnhealthyKeep || e.Unhealthy == "" && e.Cookies()
}

// Repairs returns the endpoint's RepairWindow, 0 if it is not set.
func (e *Endpoint) Repairs() time.Duration {
	if e.RepairWindow == nil {
		return 0
	}
	return *e.RepairWindow
}

// SourceAffinity sets the significant bits of a client's address, and how long a client without
// packets is kept (affinity flow only).
type SourceAffinity struct {
	Prefix4, Prefix6 uint8
	For              time.Duration
}

// Idle is how long flows without packets stay in the mux's flow table: before and after they are
// trusted. It is zero for endpoints without flow state (KeepsFlows). OpeningIdle describes a
// further bound.
type Idle struct {
	Untrusted, Trusted time.Duration
}

// Backend is a server: one DIP, or one of each family.
type Backend struct {
	DIPs []netip.Addr
	// 0 for ranges and all ports: packets keep theirs; else never 0 once defaults are filled in
	Port   uint16
	Host   netip.Addr // zero only with path nat, where no packets go to it
	Weight uint16     // 0 to 1000
	Drain  bool
	// Backup: active only when too few of the others are healthy (Endpoint.BackupBelow).
	Backup bool
}

// Role is the function of a node.
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
	// NAT, for muxes only, serves endpoints with path nat; nil: the mux serves none.
	NAT *NAT
}

// Capacity is the capacity of a mux; 0 is no limit.
type Capacity struct {
	VIPs    uint32
	Packets uint64 // a second
}

// BGP configures the sessions of a mux with its routers.
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
	// TTLSecurity is the maximum distance of the router in hops, checked by the TTL of its packets
	// (RFC 5082); 0: not checked.
	TTLSecurity uint32
	// Multihop is the TTL of packets to an external router that is not on the link; 0: it is on the
	// link.
	Multihop uint32
}

// BFD holds the timers of a BFD session (RFC 5880 section 6.8).
type BFD struct {
	Transmit   time.Duration
	Receive    time.Duration
	Multiplier uint32
}

// Network defines the address ranges of VIPs, underlay and tunnels.
type Network struct {
	Name          string
	VIPs          []netip.Prefix
	Underlay      []netip.Prefix
	MTU           uint32
	TunnelSources []netip.Prefix // at most one of each family
	Encap         string         // EncapIPIP or EncapGUE, for endpoints that do not set it
	// Switches are the prefixes from which switches tunnel; hosts select the member of packets that
	// arrive from there for their own address.
	Switches []netip.Prefix
	// SNAT holds the times of leased ports of its VIPs.
	SNAT SNATTimes
}

// Tenant owns services and addresses. A tenant of a service need not exist: it then has the default
// quotas and owns no address.
type Tenant struct {
	Name   string
	Weight uint32 // share of SNAT port leases while several tenants request them
	VNI    uint32 // of its addresses; 0 is the underlay
	Quotas Quotas
	// DIPs are the prefixes of its servers' addresses, VIPs those of its VIPs. They do not overlap
	// those of other Tenants.
	DIPs, VIPs []netip.Prefix
	// Hosts are the prefixes of the machines of its servers. Several Tenants may list the same
	// machine.
	Hosts []netip.Prefix
	// Shared are the DIPs and VIPs that services of other tenants may use, too.
	Shared []Share
}

// Share permits other tenants to use addresses of a Tenant: DIPs as backends and check addresses,
// not as SNAT sources.
type Share struct {
	Tenants []string
	// DIPs are each inside the Tenant's DIPs, VIPs inside its VIPs.
	DIPs, VIPs []netip.Prefix
}

// Unlimited is the value of a quota without a limit; YAML writes it "unlimited".
const Unlimited = 1<<32 - 1

// Quotas limits the objects and changes of a tenant. 0 of the first four is the value of
// DefaultQuotas for changes by clients with role tenant, and no limit for changes by others.
type Quotas struct {
	Services  uint32
	Endpoints uint32 // of all its services, each counted once for every VIP
	Backends  uint32 // of all its endpoints, and SNAT servers with a host
	Changes   uint32 // modifying requests, per minute
	// SNATPorts limits the leases of all its DIPs, SNATPortsPerDIP those of one DIP for each VIP;
	// 0: 1,024.
	SNATPorts, SNATPortsPerDIP uint32
	// Probes limits the health probes that one mux sends in a second; 0: DefaultProbes.
	Probes uint32
}

// Policy holds settings that several services share. Each of its fields that is not nil applies to
// a service that uses the policy and does not set that field itself.
type Policy struct {
	Name string
	// Tenant is the only tenant whose services may use it; every tenant if empty.
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
