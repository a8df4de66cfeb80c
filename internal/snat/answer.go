package snat

import "time"

// Kind is the type of an answer.
type Kind uint8

const (
	// Granted: the DIP may use these ranges in addition from now on.
	Granted Kind = iota + 1
	// All: these are all ranges of the DIP.
	All
	// Taken: these ranges no longer belong to the DIP, because it returned them, or no longer
	// belongs to the VIP.
	Taken
	// Leave: new connections may not take ports of these ranges; they must be returned when the
	// last connection ends.
	Leave
	// Refused: there is nothing to grant at present.
	Refused
	// Shrink: the DIP may keep Keep of its ranges, the most recently used ones. New connections may
	// not take ports of the others, which must be returned as soon as they are unused.
	Shrink
	// Reclaim: ranges that are unused now must be returned soon, except a few, because other DIPs
	// need them.
	Reclaim
)

// Reason is the reason of a refusal.
type Reason uint8

const (
	// ReasonExhausted: the VIP has no free range.
	ReasonExhausted Reason = iota + 1
	// ReasonDIPLimit: the DIP has reached its limit.
	ReasonDIPLimit
	// ReasonTenantLimit: the tenant has reached its limit.
	ReasonTenantLimit
)

// reasons are their names in events and metrics.
var reasons = [...]string{"", "exhausted", "dip_limit", "tenant_limit"}

// String returns the name in events and metrics.
func (r Reason) String() string { return reasons[r] }

// ParseReason parses the output of String; unknown names count as exhausted.
func ParseReason(s string) Reason {
	for i, name := range reasons {
		if name == s {
			return Reason(i)
		}
	}
	return ReasonExhausted
}

// Answer is a message of the allocator to the host of a DIP.
type Answer struct {
	Holder Holder
	Kind   Kind
	Ranges []Range
	// Keep is the number of ranges that the DIP may keep with Shrink.
	Keep int
	// Revision orders grants and takings: for Granted and All the revision of the commit that muxes
	// acknowledged, for Taken that of the commit that took the ranges.
	Revision int64
	Reason   Reason
	// Asked is when the request for Granted arrived, Served when its turn came, and Stored when the
	// batch was stored, by the allocator's clock; zero otherwise.
	Asked, Served, Stored time.Time
}
