// Package snat decides which ports of a VIP the servers behind it may send from: the allocator of a VIP's ranges, the desk at which
// the manager's leader serves asks, the book of leases as the store has it, and the pool of a server's ranges at its host. It has
// no clock: every step takes the time.
//
// A range is 8 ports whose numbers differ in the last three bits (design section 9.9; Ananta section 3.5.1). A lease binds a range
// to one DIP until it is given back, or until the DIP is no longer one of the VIP's.
package snat

import (
	"fmt"
	"net/netip"
)

const (
	// RangePorts is how many ports a range has.
	RangePorts = 8
	// Ranges is how many ranges a VIP has, those that may never be leased included.
	Ranges = 65536 / RangePorts
	// FirstRange is the first one that may be leased: ports below 1024 are left to services (RFC 6056 section 3.2).
	FirstRange = 1024 / RangePorts
	// MaxRanges is how many ranges of a VIP may be leased at most.
	MaxRanges = Ranges - FirstRange
)

// Range names 8 ports by what they share: port>>3.
type Range uint16

// RangeOf is the range that a port lies in.
func RangeOf(port uint16) Range { return Range(port / RangePorts) }

// Port is the range's first port.
func (r Range) Port() uint16 { return uint16(r) * RangePorts }

// String is the range as people write it: 1024-1031.
func (r Range) String() string { return fmt.Sprintf("%d-%d", r.Port(), r.Port()+RangePorts-1) }

// VIP is an address whose ports are leased, in its network (VNI; 0 is the underlay).
type VIP struct {
	VNI  uint32
	Addr netip.Addr
}

// Compare orders VIPs.
func (v VIP) Compare(o VIP) int {
	if v.VNI != o.VNI {
		if v.VNI < o.VNI {
			return -1
		}
		return 1
	}
	return v.Addr.Compare(o.Addr)
}

// Holder is who holds ranges: a DIP whose connections leave with the VIP.
type Holder struct {
	VIP VIP
	DIP netip.Addr
}

// Closed are the ranges that may not be leased because of endpoints that listen on first to last, both included; it begins with those
// below FirstRange.
func Closed(ports ...[2]uint16) *Bitmap {
	b := &Bitmap{}
	for r := range Range(FirstRange) {
		b.Set(r)
	}
	for _, p := range ports {
		for r := int(RangeOf(p[0])); r <= int(RangeOf(p[1])); r++ {
			b.Set(Range(r))
		}
	}
	return b
}
