// Package snat allocates ports of a VIP to the servers behind it. It contains the allocator of a
// VIP's ranges (Block), the lease allocator of the manager's leader (Desk), the lease store (Book),
// and the pool of a server's ranges at its host (Stock). It has no clock: every step takes the
// time.
//
// A range is 8 ports whose numbers differ in the last three bits (design section 9.9; Ananta
// section 3.5.1). A lease binds a range to one DIP until it is returned, or until the DIP no longer
// belongs to the VIP.
package snat

import (
	"fmt"
	"net/netip"
)

const (
	// RangePorts is the number of ports in a range.
	RangePorts = 8
	// Ranges is the number of ranges of a VIP, including those that may never be leased.
	Ranges = 65536 / RangePorts
	// FirstRange is the first one that may be leased, because ports below 1024 are reserved for
	// services (RFC 6056 section 3.2).
	FirstRange = 1024 / RangePorts
	// MaxRanges is the maximum number of leased ranges of a VIP.
	MaxRanges = Ranges - FirstRange
)

// Range identifies 8 ports by their common bits: port>>3.
type Range uint16

// RangeOf returns the range of a port.
func RangeOf(port uint16) Range { return Range(port / RangePorts) }

// Port returns the range's first port.
func (r Range) Port() uint16 { return uint16(r) * RangePorts }

// String returns the range as first and last port: 1024-1031.
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

// Holder identifies a holder of ranges: a DIP whose connections leave with the VIP.
type Holder struct {
	VIP VIP
	DIP netip.Addr
}

// Closed returns the ranges that may not be leased because endpoints listen on first to last, both
// included, and those below FirstRange.
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
