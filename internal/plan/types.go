// Package plan computes what one node must know from the wanted state of all. It is pure.
package plan

import (
	"net/netip"

	"github.com/shuntlb/shunt/internal/lb"
)

// Plan is the full wanted state of one node as of one revision.
type Plan struct {
	Revision int64
	Epoch    int64
	Node     lb.Node
	// MTU of the underlay.
	MTU uint32
	// TunnelSources are the prefixes outer sources come from, at most one of each family.
	TunnelSources []netip.Prefix
	// RingKeys are the live ring hash keys.
	RingKeys []Key
	// Endpoints: for muxes, ordered by key.
	Endpoints []Endpoint
	// Bindings: for hosts, ordered by key.
	Bindings []Binding
}

// Key is a live secret; its slot in the data plane is ID modulo 2.
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
	KeyID   uint32
	Members []Member // ordered by ID
	Check   lb.Health
}

// Member is a backend's place in one endpoint (design section 9.1).
type Member struct {
	ID     uint16
	DIP    netip.Addr
	Port   uint16
	Weight uint16 // 0 while draining
	// Outer is the tunnel's destination, unique per member of an endpoint (design section 9.2).
	Outer netip.Addr
}

// Binding is a member of an endpoint as its host needs it.
type Binding struct {
	Key     lb.EndpointKey
	Service string
	Member  uint16
	Outer   netip.Addr
	DIP     netip.Addr
	DIPPort uint16
	Rewrite bool
}
