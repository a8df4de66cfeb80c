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
)

// Object is one of *Service, *Node, *Network.
type Object interface {
	Kind() Kind
	ObjectName() string
}

// Protocol is the transport protocol of an endpoint; its number is IANA's.
type Protocol uint8

// Protocols an endpoint may have.
const (
	TCP Protocol = 6
	UDP Protocol = 17
)

// EndpointKey is the natural key of an endpoint: (VNI, VIP, protocol, port).
type EndpointKey struct {
	VNI      uint32 // 24 bits; 0 is the underlay
	VIP      netip.Addr
	Protocol Protocol
	Port     uint16
}

// BackendKey is the natural key of a backend within an endpoint of one VIP.
type BackendKey struct {
	DIP  netip.Addr
	Port uint16
}

// Service is a named set of VIPs with their endpoints, owned by a tenant.
type Service struct {
	Name      string
	Tenant    string
	VIPs      []netip.Addr
	Endpoints []Endpoint
	// SNAT: DIPs whose outbound connections leave with the VIP. Not supported by this version.
	SNAT []netip.Addr
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
	Protocol  Protocol
	Port      uint16
	Path      string // "dsr"
	Affinity  string // "hash"
	Scheduler string // "maglev"
	Rewrite   Rewrite
	Backends  []Backend
	Health    Health
}

// Backend is a server: one DIP, or one of each family.
type Backend struct {
	DIPs   []netip.Addr
	Port   uint16 // never 0 once defaults are filled in
	Host   netip.Addr
	Weight uint16 // 0 to 1000
	Drain  bool
}

// Health is how muxes check the backends of an endpoint.
type Health struct {
	Kind     string // "tcp" or "http"
	Path     string
	Host     string
	Interval time.Duration
	Timeout  time.Duration
	Rise     uint32
	Fall     uint32
	Port     uint16 // 0: the backend's
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

// String returns the protocol's name in YAML.
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	}
	return "?"
}
