// Package place decides which muxes serve which VIPs. It is pure: what it decides is a function of what it was told and
// of where the VIPs were.
//
// The rules, each before those after it:
//
//  1. No VIP on a mux that drains or is down.
//  2. No mux over its capacity. VIPs are never placed past it; a mux whose packets grew past it gives away what others
//     have room for, and keeps the rest: taking a VIP from everybody would turn an overload into an outage.
//  3. As many replicas as asked for. Where there is not room for all, a VIP without any mux comes first, and others are
//     moved when that makes room.
//  4. In as many zones as possible.
//  5. On the muxes with the fewest VIPs, or the least load; equals are told apart by a hash of VIP and mux.
//  6. Nothing else moves until two muxes differ by more than a bound (Bounds); then the one that is out of line is
//     evened out, and no other.
package place

import (
	"cmp"
	"net/netip"
)

// Key names a VIP.
type Key struct {
	VNI uint32
	VIP netip.Addr
}

// Compare orders keys by VNI and address.
func (k Key) Compare(o Key) int { return cmp.Or(cmp.Compare(k.VNI, o.VNI), k.VIP.Compare(o.VIP)) }

// By is what is spread evenly.
type By uint8

// ByVIPs spreads the number of VIPs that are placed by number, ByLoad the packets of all.
const (
	ByVIPs By = iota
	ByLoad
	measures // how many there are
)

// VIP is what is placed.
type VIP struct {
	Key Key
	// Replicas is the number of muxes that are to serve it. A VIP with none is placed nowhere.
	Replicas int
	By       By
	// Load in packets per second; each of its muxes gets an equal part.
	Load uint64
}

// Mux is where VIPs are placed.
type Mux struct {
	Name, Zone string
	// Drain and Down take everything away.
	Drain, Down bool
	// Away: it keeps what it has, and gets more only where no other mux can take it.
	Away bool
	// VIPs and Packets per second are its capacity; 0 is no limit.
	VIPs    uint32
	Packets uint64
	// BaseVIPs and BasePackets are what it has beside what is placed: VIPs that are on every mux.
	BaseVIPs    uint32
	BasePackets uint64
}

// Bounds say how uneven muxes may be before a VIP moves for it.
type Bounds struct {
	// VIPs and Load are percentages of the mean. Numbers of VIPs that differ by one are always even.
	VIPs, Load uint32
}

// DefaultBounds lets numbers differ by a tenth of the mean and loads, which are never still, by a quarter.
var DefaultBounds = Bounds{VIPs: 10, Load: 25}

// Change is a VIP whose muxes are others than before; names are ordered.
type Change struct {
	Key      Key
	Was, Now []string
}

// Reason says why a VIP has fewer muxes than it asks for.
type Reason uint8

// FewMuxes: there are not as many that are up and do not drain. Capacity: those there are have no room.
const (
	FewMuxes Reason = iota + 1
	Capacity
)

// Problem is a VIP that has fewer muxes than it asks for.
type Problem struct {
	Key            Key
	Placed, Wanted int
	Reason         Reason
	// Muxes is how many are up and do not drain.
	Muxes int
}
