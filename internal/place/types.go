// Package place decides which muxes serve which VIPs. It is pure: its decision is a function of the
// inputs and of the previous placement.
//
// The rules, in order of precedence:
//
//  1. No VIP on a mux that drains or is down.
//  2. No mux over its capacity. VIPs are never placed beyond it. A mux whose packets grew beyond
//     it loses the VIPs that others have room for, and keeps the rest, because removing a VIP
//     from all muxes would turn an overload into an outage.
//  3. As many replicas as configured. If there is not room for all, a VIP without any mux comes
//     first, and others are moved if that makes room.
//  4. In as many zones as possible.
//  5. On the muxes with the fewest VIPs, or the least load; a hash of VIP and mux breaks ties.
//  6. Nothing else moves until two muxes differ by more than a bound (Bounds); then only the one
//     that is out of bounds is evened out.
package place

import (
	"cmp"
	"net/netip"
)

// Key identifies a VIP.
type Key struct {
	VNI uint32
	VIP netip.Addr
}

// Compare orders keys by VNI and address.
func (k Key) Compare(o Key) int { return cmp.Or(cmp.Compare(k.VNI, o.VNI), k.VIP.Compare(o.VIP)) }

// By is the quantity that is spread evenly.
type By uint8

// ByVIPs spreads the number of VIPs that are placed by number, ByLoad the packets of all VIPs.
const (
	ByVIPs By = iota
	ByLoad
	measures // number of values
)

// VIP is a VIP to place.
type VIP struct {
	Key Key
	// Replicas is the number of muxes that are to serve it. A VIP with none is not placed.
	Replicas int
	By       By
	// Load is in packets per second; each of its muxes gets an equal part.
	Load uint64
}

// Mux is a mux on which VIPs are placed.
type Mux struct {
	Name, Zone string
	// Drain and Down remove all VIPs.
	Drain, Down bool
	// Away: it keeps its VIPs, and gets more only if no other mux can take them.
	Away bool
	// VIPs and Packets per second are its capacity; 0 is no limit.
	VIPs    uint32
	Packets uint64
	// BaseVIPs and BasePackets are its use outside of the placement: VIPs that are on every mux.
	BaseVIPs    uint32
	BasePackets uint64
}

// Bounds limits how uneven muxes may be before a VIP moves for it.
type Bounds struct {
	// VIPs and Load are percentages of the mean. Numbers of VIPs that differ by one always count as
	// even.
	VIPs, Load uint32
}

// DefaultBounds lets numbers differ by a tenth of the mean, and loads, which vary constantly, by a
// quarter.
var DefaultBounds = Bounds{VIPs: 10, Load: 25}

// Change is a VIP whose muxes changed; names are ordered.
type Change struct {
	Key      Key
	Was, Now []string
}

// Reason is the reason why a VIP has fewer muxes than configured.
type Reason uint8

// FewMuxes: too few muxes are up and do not drain. Capacity: these muxes have no room.
const (
	FewMuxes Reason = iota + 1
	Capacity
)

// Problem is a VIP with fewer muxes than configured.
type Problem struct {
	Key            Key
	Placed, Wanted int
	Reason         Reason
	// Muxes is the number of muxes that are up and do not drain.
	Muxes int
}
